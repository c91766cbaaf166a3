"""Serves a dashboard, or an app that has one, with uvicorn in a thread, on a loopback port."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

TOKEN = "a-token-for-the-tests-of-the-dashboard"
PATIENCE_SECONDS = 240


class _Server(uvicorn.Server):
    """Says when it answers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Gives the address of the app while it is served."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_config=None, access_log=False, lifespan="on", ws="none"
    )
    server = _Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert server.is_up.wait(PATIENCE_SECONDS)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)
