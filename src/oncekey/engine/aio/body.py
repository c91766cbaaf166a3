"""Calls the body of one attempt, in the attempt's own task.

Owns what is noted of that at once, and what it came to as the flow needs it. Whatever interrupts a
run, its runner reads from here what is still owed to the key.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import Any, TypeVar

from oncekey.core.effects import Raised, Returned, Task
from oncekey.engine.aio.attempt import AsyncAttempt
from oncekey.engine.aio.loop_state import LoopState
from oncekey.engine.attempt_base import AttemptBase
from oncekey.engine.body_check import warn_blocking
from oncekey.engine.context import enter, entered
from oncekey.engine.jobs import BodyNotRun, Job, Kernel
from oncekey.engine.runner_base import NOTHING, Progress

T = TypeVar("T")
AsyncBody = Callable[[AsyncAttempt], Awaitable[T]]


class Control(Progress):
    """How far a run has come, and what its caller and its own task tell each other.

    home       what belongs to the loop it runs on
    own        its own task
    abandoned  its caller has left
    waited     not empty once its body has waited for anything
    """

    __slots__ = ("abandoned", "home", "own", "waited")

    def __init__(self, home: LoopState, task: Task) -> None:
        super().__init__(task, entered())
        self.home = home
        self.own: asyncio.Task[Any] | None = None
        self.abandoned = False
        self.waited: list[bool] = []

    def abandon(self) -> None:
        self.abandoned = True


async def call_body(
    control: Control, job: Job, attempt: AsyncAttempt, body: AsyncBody[Any]
) -> None:
    """Run the body; what it gives is in `control` at once, whatever comes next."""
    value: Any = body(attempt)
    if type(value) is CoroutineType or inspect.isawaitable(value):
        # Called in the loop's next turn: by then a body that waits for anything is waiting.
        asyncio.get_running_loop().call_soon(control.waited.append, True)
        control.value = await value
    else:
        control.value = value
        warn_blocking(job.identity.operation)


def let_go(control: Control, attempt: AttemptBase) -> None:
    """The body is through. Done again after an interruption, it changes nothing."""
    control.home.heart.forget(attempt)
    attempt._close()
    enter(control.outer)
    task = control.own
    while task is not None and task.cancelling():
        task.uncancel()  # it was the body's business; the outcome must still be stored


def result_of_body(
    kernel: Kernel, control: Control, attempt: AttemptBase, job: Job
) -> Returned | Raised:
    """What the body came to, as the flow needs it."""
    deadline = attempt._deadline
    if control.value is NOTHING:
        return Raised(control.error or asyncio.CancelledError(), deadline)
    try:
        refuse_unstarted(kernel, control, attempt, job)
    except BodyNotRun as error:
        return Raised(error, deadline)
    return kernel.pack(job.codec, job.policy, control.value, deadline)


def refuse_unstarted(kernel: Kernel, control: Control, attempt: AttemptBase, job: Job) -> None:
    """Raise BodyNotRun where nothing of the body has run. One that waited, or took steps, did
    something before it forgot to await the rest: it counts as run, and that what it gave cannot be
    stored is told to its caller."""
    if not control.waited and not attempt._steps.stored:
        kernel.refuse_unstarted(job, control.value)
