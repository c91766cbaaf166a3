"""Calls the body of one attempt, in the attempt's own task.

What the body gives is recorded at once in `AsyncProgress`, so that a runner that is interrupted
knows what to do about the key.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import CoroutineType, coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from oncekey.core.effects import Raised, Returned
from oncekey.engine.aio.attempt import AsyncAttempt
from oncekey.engine.attempt_base import AttemptBase
from oncekey.engine.attempt_outcomes import UNSTARTED, BodyNotRun, not_run, pack
from oncekey.engine.body_check import warn_blocking
from oncekey.engine.context import enter, entered
from oncekey.engine.jobs import Job
from oncekey.engine.progress import NOTHING, Progress

if TYPE_CHECKING:
    from oncekey.engine.aio.loop_state import LoopState

T = TypeVar("T")
AsyncBody = Callable[[AsyncAttempt], Awaitable[T]]


class AsyncProgress(Progress):
    """How far a run in a task has come.

    loop_state      what belongs to the event loop it runs on; None in a caller's transaction
    attempt_task    the task of the attempt
    is_abandoned    its caller has left
    waited          its body has waited for anything
    """

    __slots__ = (
        "attempt_task",
        "is_abandoned",
        "loop_state",
        "waited",
    )

    def __init__(self, loop_state: LoopState | None, job: Job) -> None:
        super().__init__(job, entered())
        self.loop_state = loop_state
        self.attempt_task: asyncio.Task[Any] | None = None
        self.is_abandoned = False
        self.waited = False

    def abandon(self) -> None:
        self.is_abandoned = True


async def take_value(progress: AsyncProgress, job: Job, value: Any) -> None:
    """Await what the call of a body gave, if it can be awaited; what that returns is in `progress`
    at once, whatever comes next."""
    if type(value) is CoroutineType:
        await awaited(value, progress)
    elif inspect.isawaitable(value):
        progress.waited = True  # a future or the like: what it stands for runs elsewhere
        progress.value = await value
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
                body.close()
                raise
            except BaseException as error:
                waits_for = body.throw(error)
            else:
                waits_for = body.send(sent)
    except StopIteration as stop:
        progress.value = stop.value


def end_body(progress: AsyncProgress, attempt: AttemptBase) -> None:
    """The body has ended. Done again after an interruption, this changes nothing."""
    assert progress.loop_state is not None
    progress.loop_state.heartbeat.forget(attempt)
    attempt._closed = True
    enter(progress.outer)
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
    """Raise BodyNotRun if the body returned a coroutine or a generator and has run nothing before.
    One that waited, or took steps, counts as run: its caller learns that its result cannot be
    stored."""
    if type(progress.value) in UNSTARTED and not progress.waited and not attempt._has_steps:
        raise not_run(job, progress.value)
