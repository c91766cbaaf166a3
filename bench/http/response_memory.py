"""Measures the memory of many responses that are held back at the same time."""

from __future__ import annotations

import os
import socket
import tempfile
import time
import urllib.request
from pathlib import Path

from tests.support.servers.http_servers import Uvicorn

from bench.figures import Ratio, Report, progress
from oncekey.http.message import SPILL_BYTES

ROOT = Path(__file__).parents[2]
IN_FLIGHT = 50
SIZES = (1_000_000, 8_000_000)
# Beside what is held: the connection, the request, the task, and what the allocator keeps.
SLACK_BYTES = 512 * 1024
WAIT_SECONDS = 60.0


def report() -> Report:
    ratios = []
    for size in SIZES:
        each = _memory_of(size) / IN_FLIGHT
        progress(f"{IN_FLIGHT} responses of {size:,} bytes in flight: {each:,.0f} bytes each")
        ratios.append(
            Ratio(
                f"memory of a response of {size:,} bytes in flight",
                each,
                SPILL_BYTES + SLACK_BYTES,
                at_most=True,
                unit=" bytes",
            )
        )
    return Report(f"HTTP, {IN_FLIGHT} large responses in flight at once", [], ratios)


def _memory_of(size: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        env = {"CONTESTANT": "oncekey", "STORE": f"sqlite:///{folder}/keys.db"}
        with Uvicorn("bench.http.apps:app", http="httptools", cwd=ROOT, env=env) as server:
            _ask(server.url, "waiting")
            before = _resident(server.pid)
            asked = [_begin(server.port, size, number) for number in range(IN_FLIGHT)]
            ends = time.monotonic() + WAIT_SECONDS
            while int(_ask(server.url, "waiting")) < IN_FLIGHT:
                if time.monotonic() > ends:
                    raise RuntimeError("the responses did not get under way")
                time.sleep(0.05)
            grown = _resident(server.pid) - before
            _ask(server.url, "open")
            for one in asked:
                one.close()
    return grown


def _begin(port: int, size: int, number: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.sendall(
        f"POST /held/{size} HTTP/1.1\r\nHost: x\r\nAuthorization: me\r\nContent-Length: 0\r\n"
        f"Idempotency-Key: held-{number}\r\n\r\n".encode()
    )
    return made


def _ask(url: str, what: str) -> str:
    with urllib.request.urlopen(f"{url}/{what}", timeout=WAIT_SECONDS) as answer:
        return str(answer.read().decode())


def _resident(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
