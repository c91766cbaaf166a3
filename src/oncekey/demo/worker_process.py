"""`python -m oncekey.demo.worker_process`: the payments API in a process that can be killed.

It reads its settings from one line on stdin, writes its port as one line to stdout, and then one
line per request. When stdin ends, its parent is gone, and it exits as abruptly as a kill would.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oncekey.demo.api.database import PaymentsDatabase
from oncekey.demo.api.payment_routes import Shop
from oncekey.demo.api.payments_app import open_keys, payments_api
from oncekey.demo.api.provider_client import ProviderClient
from oncekey.demo.data_dir import DataDir
from oncekey.demo.naive.naive_app import NaiveShop, add_naive_handler
from oncekey.demo.naive.naive_database import NaiveDatabase
from oncekey.demo.request_log import LoggedRequest, RequestLogMiddleware
from oncekey.demo.server import Server, bind


async def serve(settings: dict[str, Any]) -> None:
    data_dir = DataDir(Path(settings["folder"]))
    provider = ProviderClient(settings["provider"], data_dir.provider_secret)
    app = payments_api(
        Shop(data_dir, PaymentsDatabase(data_dir.payments), provider), open_keys(settings["store"])
    )
    add_naive_handler(app, NaiveShop(data_dir, NaiveDatabase(data_dir.naive_payments), provider))
    logged = RequestLogMiddleware(
        app, server=f"worker {os.getpid()}", data_dir=data_dir, put=write_request
    )
    server = Server(logged, bind())
    await server.start()
    write({"port": server.port})
    await asyncio.Event().wait()


def write_request(request: LoggedRequest) -> None:
    write(asdict(request))


def write(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _exit_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def run_with_settings(main: Callable[[dict[str, Any]], Coroutine[Any, Any, None]]) -> None:
    """Runs a process of the demo until it is killed or its parent is gone."""
    settings = json.loads(sys.stdin.readline())
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    asyncio.run(main(settings))


if __name__ == "__main__":
    run_with_settings(serve)
