"""Calls the body of one attempt, in the attempt's own task.

What the body gives is recorded at once in `AsyncProgress`, so that a runner that is interrupted
knows what to do about the key.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from types import CoroutineType, coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from oncekey.core.attempt_flow import Flow
from oncekey.core.effects import AttemptOutcome, Raised, Returned
from oncekey.engine.attempts.async_attempt import AsyncAttempt
from oncekey.engine.attempts.attempt_base import AttemptBase, enter, entered
from oncekey.engine.attempts.attempt_outcomes import UNSTARTED, BodyNotRun, not_run, pack
from oncekey.engine.attempts.runner_base import NOTHING, Progress
from oncekey.engine.batches.batch import Sent
from oncekey.engine.body_check import warn_blocking
from oncekey.engine.clock import Clock, sleep
from oncekey.engine.jobs import Job
from oncekey.engine.results import Result

if TYPE_CHECKING:
    from oncekey.engine.event_loop import LoopState

T = TypeVar("T")
AsyncBody = Callable[[AsyncAttempt], Awaitable[T]]
# What the caller of an attempt waits for; None if it is to be cancelled.
Ended = asyncio.Future[AttemptOutcome | Result[Any] | None]


class AsyncProgress(Progress):
    """How far a run in a task has come.

    loop_state      what belongs to the event loop it runs on; None in a caller's transaction
    attempt_task    the task of the attempt
    done            the future that its caller waits on
    flow            the attempt flow, once it was begun
    is_abandoned    its caller has left
    is_early        its outcome was given before the body's end, by `finish_early`
    sent            the reply to its claim, if that was sent with others before
    waited          its body has waited for anything
    was_cancelled   a cancellation came that was not raised, since this was reset
    """

    __slots__ = (
        "attempt_task",
        "done",
        "flow",
        "is_abandoned",
        "is_early",
        "loop_state",
        "sent",
        "waited",
        "was_cancelled",
    )

    attempt: AsyncAttempt | None

    def __init__(self, loop_state: LoopState | None, job: Job) -> None:
        super().__init__(job, entered())
        self.loop_state = loop_state
        self.attempt_task: asyncio.Task[Any] | None = None
        self.done: Ended | None = None
        self.flow: Flow | None = None
        self.is_abandoned = False
        self.is_early = False
        self.sent: Sent | None = None
        self.waited = False
        self.was_cancelled = False

    def abandon(self) -> None:
        self.is_abandoned = self.was_cancelled = True

    def has_outcome(self) -> bool:
        """True if the body has come to its outcome, by its end or by `finish_early`."""
        return self.value is not NOTHING or self.error is not None


async def take_value(progress: AsyncProgress, job: Job, value: Any) -> None:
    """Await what the call of a body gave, if it can be awaited; what that returns is in `progress`
    at once, whatever comes next."""
    if type(value) is CoroutineType:
        await awaited(value, progress)
    elif inspect.isawaitable(value):
        progress.waited = True  # a future or the like: what it stands for runs elsewhere
        returned = await value
        if progress.value is NOTHING and progress.error is None:  # see `awaited`
            progress.value = returned
    else:
        progress.value = value
        warn_blocking(job.operation)


@coroutine
def awaited(body: Coroutine[Any, Any, Any], progress: AsyncProgress) -> Generator[Any, Any, None]:
    """Await a body. What it returns is in `progress` without a call in between, after which a
    signal's handler could lose it; so is whether it ever waited for anything."""
    try:
        waits_for = body.send(None)
        progress.waited = True
        while True:
            try:
                sent = yield waits_for
            except GeneratorExit:
                raise
            except BaseException as error:
                waits_for = body.throw(error)
            else:
                waits_for = body.send(sent)
    except StopIteration as stop:
        # Not `has_outcome`, which is a call. A body that has finished early has either of them,
        # also if that was interrupted and the body went on as if nothing had happened.
        if progress.value is NOTHING and progress.error is None:
            progress.value = stop.value
    except BaseException:
        # If a signal's handler has raised here, the body still waits. Nobody would wake it again,
        # and it must not wait for the garbage collector to end.
        with suppress(RuntimeError):  # it waits again while it is being closed
            body.close()
        raise


def end_body(progress: AsyncProgress, attempt: AsyncAttempt) -> None:
    """The body has ended. Done again after an interruption, this changes nothing."""
    assert progress.loop_state is not None
    progress.loop_state.heartbeat.forget(attempt)
    attempt._closed = True
    attempt._progress = None  # or the two would keep each other
    # One that finishes early may do so in the body of a run of its own, where that is current.
    if not progress.is_early or entered() is attempt:
        enter(progress.outer)
    if progress.measured is not None:
        progress.measured.end(attempt._clock.now())
    if progress.is_early:
        return  # the body goes on, and so does its cancellation
    task = progress.attempt_task
    while task is not None and task.cancelling():
        task.uncancel()  # the cancellation was the body's; its outcome must still be stored


def body_result(progress: AsyncProgress, attempt: AttemptBase, job: Job) -> Returned | Raised:
    """What the body returned or raised, for the flow."""
    value, deadline = progress.value, attempt._deadline
    if value is NOTHING:
        return Raised(progress.error or asyncio.CancelledError(), deadline)
    try:
        check_begun(progress, attempt, job)
    except BodyNotRun as error:
        return Raised(error, deadline)
    return pack(job.codec, job.policy, value, deadline)


def check_begun(progress: AsyncProgress, attempt: AttemptBase, job: Job) -> None:
    """Raise BodyNotRun if the body returned a coroutine or a generator without having waited for
    anything. One that waited, or took steps, counts as run: its caller learns that its result
    cannot be stored. In both cases the key is closed."""
    if type(progress.value) in UNSTARTED and not progress.waited and not attempt._has_steps:
        raise not_run(job, progress.value)


async def pause(clock: Clock, us: int, progress: AsyncProgress) -> None:
    """Wait between two tries. A cancellation ends the pause; but not in a body that finishes early,
    whose own cancel scope may cancel it again and again: the store would get no pause at all."""
    until = clock.now() + us
    while (left := until - clock.now()) > 0:
        try:
            await sleep(clock, left)
        except asyncio.CancelledError:
            progress.abandon()
            if not progress.is_early:
                return
