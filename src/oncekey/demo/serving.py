"""Servers in this process: an ASGI app on a loopback socket that is bound before anything starts.

Owns ports and the life of one uvicorn. Signals are left to whoever runs the process.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from oncekey.demo.errors import DemoFailed

HOST = "127.0.0.1"
PORT_DEFAULT = 8000
_BACKLOG = 128
_CONCURRENCY_MAX = 200
_HEAD_MAX_BYTES = 32 * 1024
_GRACE_SECONDS = 3
_TICK_SECONDS = 0.01


def bind(port: int | None = 0) -> socket.socket:
    """A loopback socket on this port; None is the usual one if it is free, else any."""
    if port is None:
        try:
            return bind(PORT_DEFAULT)
        except DemoFailed:
            return bind(0)
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((HOST, port))
        made.listen(_BACKLOG)  # at once, so that nobody else can take the port meanwhile
    except OSError as error:
        made.close()
        raise DemoFailed(f"port {port} of {HOST} cannot be had: {error.strerror}") from error
    return made


class Served:
    """One app being served."""

    def __init__(self, app: Any, listening: socket.socket) -> None:
        self.port: int = listening.getsockname()[1]
        self._socket = listening
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            http="h11",  # it limits what a request's head may take
            h11_max_incomplete_event_size=_HEAD_MAX_BYTES,
            ws="none",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_CONCURRENCY_MAX,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        self._server = _Quiet(config)
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    async def start(self) -> None:
        task = self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if task.done():
                raise DemoFailed(f"the server on port {self.port} ended at its start")
            await asyncio.sleep(_TICK_SECONDS)

    async def stop(self) -> None:
        """End it in order; running requests get a moment."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None
        self._socket.close()


class _Quiet(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
