"""What an engine has on one event loop, how that is drained when the engine is closed, and the
errors for loops that are not asyncio's.

Every loop has a coalescer, a heartbeat and attempts of its own; none of them may be used from
another loop. Attempts of a loop can be drained from another loop's thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
from collections.abc import Coroutine, Mapping
from typing import Any, Final, NamedTuple

from oncekey.core.commands import Command
from oncekey.core.effects import CommandResult
from oncekey.core.errors import ConfigurationError
from oncekey.engine.attempts.async_attempt import leave
from oncekey.engine.background.heartbeat import AsyncHeartbeat
from oncekey.engine.batches.async_coalescer import Apply, AsyncCoalescer
from oncekey.engine.batches.deferred_writes import AsyncDeferredWriter
from oncekey.engine.batches.duplicates import Duplicates
from oncekey.engine.batches.shared_claims import AsyncSharedClaims, RunningAttempts, Send
from oncekey.engine.clock import Clock
from oncekey.engine.event_bus import EventBus

_ENGINE: Final = (
    "AsyncOnce needs asyncio, and this code runs on another event loop, such as Trio's: run it by "
    "asyncio.run(), or use Once in a thread, as trio.to_thread.run_sync() does"
)
_SERVED: Final = (
    "{} asyncio, and this server runs the app on another event loop, such as Trio's: start it with "
    "one of asyncio, as `hypercorn --worker-class asyncio` does"
)


def wrong_event_loop() -> ConfigurationError:
    """The error to raise where an engine finds no loop of asyncio."""
    return ConfigurationError(_ENGINE)


def running_loop() -> asyncio.AbstractEventLoop:
    """The loop that an engine is used on. Raises ConfigurationError on one of another kind."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise wrong_event_loop() from None


def require_asyncio(served: str) -> None:
    """Raise ConfigurationError if a server runs an app on an event loop of another kind. `served`
    is what needs asyncio, with its verb."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(_SERVED.format(served)) from None


# How much longer to wait for attempts on another loop: cancelled, they still close their keys.
DRAIN_MARGIN_SECONDS: Final = 5.0
# How often a drain looks for attempts that have finished early: their tasks go on without them.
DRAIN_POLL_SECONDS: Final = 0.05


class LoopState(NamedTuple):
    """What belongs to one event loop.

    send    has the store apply one command: by the coalescer, or at once where nothing waits
    tasks   the attempts that run on the loop
    """

    coalescer: AsyncCoalescer
    send: Send
    shared: AsyncSharedClaims
    heartbeat: AsyncHeartbeat
    deferred_writer: AsyncDeferredWriter
    tasks: set[asyncio.Task[None]]


def make_loop_state(
    apply: Apply,
    at_once: Send | None,
    running: RunningAttempts,
    clock: Clock,
    max_in_flight: int,
    events: EventBus,
) -> LoopState:
    """With `at_once`, commands are sent by that and not through a coalescer."""
    coalescer = AsyncCoalescer(apply, max_in_flight=max_in_flight, now=clock.now, events=events)
    send: Send = coalescer.send if at_once is None else at_once

    async def renew(command: Command) -> CommandResult:
        reply, sent_at = await send(command, leave)
        return CommandResult(reply, sent_at, clock.now())

    return LoopState(
        coalescer,
        send,
        AsyncSharedClaims(Duplicates(), running, clock, send),
        AsyncHeartbeat(clock, renew),
        AsyncDeferredWriter(renew, clock),
        set(),
    )


def start_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]
) -> asyncio.Task[None]:
    """A task; where Python can, it runs at once up to its first real wait."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)  # novm: not before 3.12
    return asyncio.Task(work, loop=loop, name="oncekey")  # without a number, which costs a text


async def drain(state: LoopState, seconds: float) -> None:
    """Let the attempts of the running loop end. After `seconds` cancel those that are left, and
    let them close their keys."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    cancelled: set[asyncio.Task[None]] = set()
    # In a loop, because an attempt that ends may have begun others. Not by the set alone: a task
    # that is cancelled before its first step never removes itself.
    while tasks := {task for task in state.tasks if not task.done()}:
        left = until - loop.time()
        if left <= 0:
            for task in tasks - cancelled:
                task.cancel()
            cancelled |= tasks
        in_time = min(left, DRAIN_POLL_SECONDS) if left > 0 else DRAIN_POLL_SECONDS
        await asyncio.wait(tasks, timeout=in_time)
    state.heartbeat.stop()
    await state.deferred_writer.stop()


async def drain_others(
    states: Mapping[asyncio.AbstractEventLoop, LoopState], seconds: float
) -> None:
    """The same for the loops of other threads. On one that does not run nothing can end."""
    own = asyncio.get_running_loop()
    drained = [
        asyncio.wrap_future(_drain_on(loop, state, seconds))
        for loop, state in states.items()
        if loop is not own and loop.is_running() and state.tasks
    ]
    if drained:
        await asyncio.wait(drained, timeout=seconds + DRAIN_MARGIN_SECONDS)


def _drain_on(
    loop: asyncio.AbstractEventLoop, state: LoopState, seconds: float
) -> concurrent.futures.Future[None]:
    work = drain(state, seconds)
    try:
        return asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # it was closed just now
        work.close()
        nothing: concurrent.futures.Future[None] = concurrent.futures.Future()
        nothing.set_result(None)
        return nothing
