"""Serves an ASGI app with uvicorn in this process, on a loopback socket that is bound beforehand.

Owns ports and the start and stop of one uvicorn server. Leaves signals to the process's owner.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from oncekey.demo import DemoFailed

HOST = "127.0.0.1"
PORT_DEFAULT = 8000
_BACKLOG = 128
_CONCURRENCY_MAX = 200
_HEAD_MAX_BYTES = 32 * 1024
_GRACE_SECONDS = 3
_POLL_SECONDS = 0.01


def bind(port: int | None = 0) -> socket.socket:
    """A listening loopback socket; port None means the usual one if it is free, else any."""
    if port is None:
        try:
            return bind(PORT_DEFAULT)
        except DemoFailed:
            return bind(0)
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen(_BACKLOG)  # now, so that nobody else can take the port
    except OSError as error:
        listening.close()
        raise DemoFailed(f"port {port} of {HOST} cannot be had: {error.strerror}") from error
    return listening


class Server:
    """One app and the uvicorn server that serves it."""

    def __init__(self, app: Any, listening: socket.socket) -> None:
        self.port: int = listening.getsockname()[1]
        self._socket = listening
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            http="h11",  # it limits the size of a request's head
            h11_max_incomplete_event_size=_HEAD_MAX_BYTES,
            ws="none",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_CONCURRENCY_MAX,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        self._server = _ServerWithoutSignals(config)
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    async def start(self) -> None:
        task = self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if task.done():
                raise DemoFailed(f"the server on port {self.port} ended at its start")
            await asyncio.sleep(_POLL_SECONDS)

    async def stop(self) -> None:
        """Stops the server; running requests get a grace period."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None
        self._socket.close()


class _ServerWithoutSignals(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
