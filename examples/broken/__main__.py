"""Starts one of the servers, on the loopback interface only.

python -m examples.broken --list
python -m examples.broken unscoped --port 8001
"""

from __future__ import annotations

import argparse
import socket

import uvicorn
from examples.broken.catalog import SERVERS, summary
from examples.broken.guard import KEEP_SECONDS
from examples.broken.payments import ALICE, BOB, payments_api

HOST = "127.0.0.1"
GRACE_SECONDS = 3


def serve(name: str, port: int, keep_seconds: float) -> None:
    """Serves until it is interrupted. With port 0 the system chooses one."""
    listening = socket.create_server((HOST, port))
    url = f"http://{HOST}:{listening.getsockname()[1]}"
    config = uvicorn.Config(
        payments_api(SERVERS[name](keep_seconds=keep_seconds)),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    print(f"{name} on {url}", flush=True)
    print(f"  tokens: {ALICE} and {BOB}", flush=True)
    print(f"  effects: {url}/effects?order=...", flush=True)
    uvicorn.Server(config).run(sockets=[listening])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.broken",
        description="A payments API with one fault, on 127.0.0.1. `correct` has none.",
    )
    parser.add_argument("name", nargs="?", choices=sorted(SERVERS), metavar="NAME")
    parser.add_argument("--list", action="store_true", help="name the servers and their faults")
    parser.add_argument("--port", type=int, default=0, help="0, the default, means any free one")
    parser.add_argument(
        "--keep", type=float, default=KEEP_SECONDS, help="seconds that a finished key is remembered"
    )
    given = parser.parse_args()
    if given.list or given.name is None:
        for name in SERVERS:
            print(f"{name:26} {summary(name)}")
        return
    serve(given.name, given.port, given.keep)


if __name__ == "__main__":
    main()
