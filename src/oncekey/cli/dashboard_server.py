"""Serves the dashboard with uvicorn until a signal comes. Nothing is logged: a one-time link has
its code in the query."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvicorn

from oncekey.cli.output import UsageProblem

_BACKLOG: Final = 64
_CONCURRENCY_MAX: Final = 64
_HEAD_MAX_BYTES: Final = 32 * 1024
_GRACE_SECONDS: Final = 3


def serve(app: Any, host: str, port: int, started: Callable[[str], None]) -> None:
    """Serves the app; calls `started` with its address as soon as it answers."""
    listening = _bind(host, port)
    asyncio.run(_serve(app, listening, started))


async def _serve(app: Any, listening: socket.socket, started: Callable[[str], None]) -> None:
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
    server = _Server(config)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    server.on_start = lambda: started(_address(listening))
    await server.serve(sockets=[listening])


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)  # now, so that nobody else can take the port
    except OSError as error:
        listening.close()
        why = error.strerror or error
        raise UsageProblem(f"port {port} of {host} cannot be had: {why}") from error
    return listening


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """A server that leaves signals alone, and says when it answers."""

    on_start: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
