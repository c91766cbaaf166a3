"""Drains guards that get no lifespan events because their app is mounted in another one.

A server tells the end to the app it serves, and that one does not tell what is mounted in it. So
whoever is told waits for those too: another guard of the process, or `draining()` in the lifespan
of the app that is served. Owns who is to be waited for. Knows no framework.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol
from weakref import WeakSet

_log = logging.getLogger("oncekey")


class Drained(Protocol):
    """A guard. `lifespans`: how many of its own are running."""

    lifespans: int

    async def drain(self) -> None: ...


_untold: WeakSet[Any] = WeakSet()  # guards that have served a request outside of any lifespan
_warned: WeakSet[Any] = WeakSet()
_covered: WeakSet[asyncio.AbstractEventLoop] = WeakSet()  # loops whose end somebody waits for


def serves(guard: Drained, scope: Any) -> None:
    """A guard begins a request. Remember it if nobody will tell it when to end, and say so."""
    if guard.lifespans:
        return
    _untold.add(guard)
    if not scope.get("root_path") or guard in _warned:
        return
    _warned.add(guard)
    if asyncio.get_running_loop() not in _covered:
        _log.warning(
            "the guarded app at %s gets no lifespan events, so a server that shuts down does not "
            "wait for what it runs. In the lifespan of the app that is served: "
            "async with oncekey.http.asgi.draining(): yield",
            scope["root_path"],
        )


@asynccontextmanager
async def draining() -> AsyncIterator[None]:
    """Wait at the end for the requests that mounted guards are running, each for its own `drain`
    at most. For the lifespan of the app that is served, around whatever its handlers need."""
    loop = asyncio.get_running_loop()
    _covered.add(loop)
    try:
        yield
    finally:
        _covered.discard(loop)
        await drain_untold()


async def drain_untold() -> None:
    guards = [guard for guard in _untold if not guard.lifespans]
    await asyncio.gather(*(guard.drain() for guard in guards))
