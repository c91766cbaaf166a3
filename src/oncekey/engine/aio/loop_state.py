"""Holds what an engine has on one event loop, and brings that to its end.

Every loop has a coalescer, a heart and attempts of its own; none of it may be touched from another
one. Owns waiting for the attempts of a loop, also from another loop's thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Mapping
from typing import Final, NamedTuple

from oncekey.engine.aio.coalescer import AsyncCoalescer
from oncekey.engine.aio.deferred_writer import AsyncDeferredWriter
from oncekey.engine.aio.heartbeat import AsyncHeartbeat
from oncekey.engine.duplicates import Duplicates

# For what another loop cancels after its drain to close its keys.
DRAIN_MARGIN_SECONDS: Final = 5.0


class LoopState(NamedTuple):
    """What belongs to one event loop: its coalescer, what duplicates share there, its heart, what
    it still offers to the store, the attempts running on it."""

    coalescer: AsyncCoalescer
    duplicates: Duplicates
    heart: AsyncHeartbeat
    offering: AsyncDeferredWriter
    tasks: set[asyncio.Task[None]]


async def drain(home: LoopState, seconds: float) -> None:
    """On its own loop: let its attempts end; after `seconds` cancel what is left, and let that
    close its keys."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    # Again and again, for one that ends may have begun others. Not by the set alone: a task
    # that is cancelled before its first step never takes itself out of it.
    while tasks := {task for task in home.tasks if not task.done()}:
        _, late = await asyncio.wait(tasks, timeout=max(0.0, until - loop.time()))
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
    home.heart.stop()
    await home.offering.stop()


async def drain_others(
    homes: Mapping[asyncio.AbstractEventLoop, LoopState], seconds: float
) -> None:
    """The same for the loops of other threads. On one that does not run nothing can end."""
    here = asyncio.get_running_loop()
    drained = [
        asyncio.wrap_future(_drain_there(loop, home, seconds))
        for loop, home in homes.items()
        if loop is not here and loop.is_running() and home.tasks
    ]
    if drained:
        await asyncio.wait(drained, timeout=seconds + DRAIN_MARGIN_SECONDS)


def _drain_there(
    loop: asyncio.AbstractEventLoop, home: LoopState, seconds: float
) -> concurrent.futures.Future[None]:
    work = drain(home, seconds)
    try:
        return asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # it was closed just now
        work.close()
        nothing: concurrent.futures.Future[None] = concurrent.futures.Future()
        nothing.set_result(None)
        return nothing
