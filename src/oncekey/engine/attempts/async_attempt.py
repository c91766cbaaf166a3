"""The running attempt as an async body sees it: steps, one after the other or in parallel, and
renewals.

A step drives core/step_flow.py in the body's task. Each parallel step has a task of its own and
runs to its end, also if others fail: each is stored by itself, and a retry runs only those that are
missing. A TaskGroup would cancel the others in the middle of their calls.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

from oncekey.core.commands import Command, Lost, Renew
from oncekey.core.duration import Duration
from oncekey.core.effects import (
    CommandResult,
    Effect,
    Probe,
    ProbeFoundNothing,
    Raised,
    Returned,
    RunStep,
    Sleep,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.flow_driver import drive_async
from oncekey.core.step_flow import StepOutcome
from oncekey.core.step_format import result_value
from oncekey.engine.attempts.attempt_base import AttemptBase, in_step
from oncekey.engine.attempts.attempt_outcomes import check_started, pack
from oncekey.engine.attempts.attempt_steps import RunningStep, error_to_raise, packed_result
from oncekey.engine.clock import sleep
from oncekey.engine.event_bus import End, observed
from oncekey.engine.jobs import JobFactory

if TYPE_CHECKING:
    from oncekey.engine.attempts.async_body import AsyncProgress


class AsyncRunnerProtocol(Protocol):
    """What an attempt needs of its runner."""

    jobs: JobFactory

    async def apply(
        self, command: Command, interrupted: Callable[[], None], deadline: int | None = None
    ) -> CommandResult: ...
    async def rollback(self, attempt: AttemptBase) -> None: ...
    async def finish_early(self, progress: AsyncProgress) -> None: ...
    def step_begins(self, attempt: AttemptBase, name: str) -> list[End]: ...


class AsyncAttempt(AttemptBase):
    """One run of a body, in its task."""

    __slots__ = ("_progress",)

    _runner: AsyncRunnerProtocol
    _progress: AsyncProgress | None  # while the body runs

    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *,
        request: Any = None,
        probe: Callable[..., Any] | None = None,
        probe_grace: Duration | None = None,
        codec: Any = None,
    ) -> Any:
        """Run `fn(child_key)` once: a step that finished in an earlier attempt is not run again,
        its stored result is returned.

        The intent is stored before `fn` is called, the result after it. A step that began and did
        not finish is called again with the same child key.

        request      what to send. It is stored with the intent, and given as
                     `fn(child_key, request)` on every run as it was on the first
        probe        for a provider that knows no keys. It is called like `fn` before an unfinished
                     step is called again, and returns what happened, or None if nothing did
        probe_grace  how long a call may still arrive: before that a None of the probe is not
                     believed. The lease by default

        `fn` and `probe` may be plain or async functions. For steps at the same time see `parallel`.
        """
        if self._is_late:
            await self.renew()
        steps = self._steps
        running = steps.begin(
            self,
            name,
            request=request,
            probed=probe is not None,
            probe_grace=probe_grace,
            codec=self._runner.jobs.step_codec(codec, fn, name),
        )
        cancellation = _Cancellation()
        try:
            outcome = await self._drive_step(running, fn, probe, cancellation)
        except BaseException:
            steps.doubt(running)
            raise
        value = steps.end(running, outcome)
        if cancellation.came:
            steps.allow_again(name)  # the body may call it again to get what it gave
            raise asyncio.CancelledError  # it came while the step was being recorded
        return value

    def parallel(self) -> AsyncParallel:
        """Run steps in parallel, each in a task of its own; leaving the block waits for all.

        async with attempt.parallel() as steps:
            hold = steps.step("inventory:reserve", reserve)
            paid = steps.step("payment:charge", charge)
        hold.result(), paid.result()
        """
        return AsyncParallel(self.step, partial(self._steps.refuse_repeated, self))

    async def renew(self) -> None:
        """Renew the lease now, e.g. before a call that blocks the event loop."""
        if self._lost:
            self.check()
        grant = self._grant
        renew = Renew(grant.id, grant.owner, grant.fence, grant.lease)
        result = await self._runner.apply(renew, leave)
        if isinstance(result.reply, StoreUnavailable):
            raise result.reply
        if isinstance(result.reply, Lost):
            self._on_lost = None  # the error says it, so the task need not be cancelled as well
            self._lost = True
            self.check()
        self._extend(result.sent_at + grant.lease)

    async def rollback(self) -> None:
        """Roll back the rows that this body has written in the caller's transaction so far, and go
        on: what it returns is stored as usual. This is for a result to store although nothing was
        done, such as a refusal. Raising Terminal rolls back the rows too, and stores the failure.
        """
        await self._runner.rollback(self)

    def _is_running(self) -> bool:
        task = task_of(self)
        return task is not None and not task.done()

    async def _drive_step(
        self,
        running: RunningStep,
        fn: Callable[..., Any],
        probe: Callable[..., Any] | None,
        cancellation: _Cancellation,
    ) -> StepOutcome:
        clock = self._clock

        async def perform(effect: Effect) -> object:
            if type(effect) is RunStep or type(effect) is Probe:
                return await self._call(running, fn, probe, effect, cancellation)
            if type(effect) is Sleep:
                try:
                    await sleep(clock, clock.jitter(effect.us))
                except asyncio.CancelledError:
                    cancellation.note()  # what has happened must still be recorded (I14)
                return clock.now()
            command = cast(Command, effect)
            return await self._runner.apply(command, cancellation.note, self._deadline)

        return await drive_async(self._step_flow(running), perform)

    async def _call(
        self,
        running: RunningStep,
        fn: Callable[..., Any],
        probe: Callable[..., Any] | None,
        effect: RunStep | Probe,
        cancellation: _Cancellation,
    ) -> Returned | Raised | ProbeFoundNothing:
        if cancellation.came:
            return Raised(asyncio.CancelledError(), self._repeat_until)
        try:
            if type(effect) is RunStep:
                with in_step(running), observed(self._runner.step_begins(self, running.name)):
                    result = await _awaited(fn(*running.args))
            else:
                assert probe is not None
                result = await _awaited(probe(*running.args))
                if result is None:
                    return ProbeFoundNothing(self._repeat_until)
            value = result_value(result)
            check_started(self._job, value, f"step {running.name!r}")
        except BaseException as error:
            return Raised(error, self._repeat_until)
        returned = pack(running.codec, self._job.policy, value, self._repeat_until)
        return packed_result(result, returned)


def task_of(attempt: AsyncAttempt) -> asyncio.Task[Any] | None:
    """The task that a running attempt's body is in."""
    return attempt._progress.attempt_task if attempt._progress is not None else None


def finish_early(
    attempt: AsyncAttempt, value: Any, error: BaseException | None = None
) -> Awaitable[None]:
    """Store what the body has come to, before it ends: a value, or an error as if it had raised
    that. The caller gets its result when this is stored; what the body still does belongs to no
    attempt, and what it returns is ignored. For a body that answers and then goes on.

    This may be awaited in the attempt's task or in one that the body has started. A cancellation
    meanwhile is raised when the outcome is stored."""
    progress = attempt._progress
    assert progress is not None, "the body has ended, or has finished early already"
    # Before anything is awaited: whatever interrupts that, the outcome is known and will be stored.
    if error is None:
        progress.value = value
    else:
        progress.error = error
    return attempt._runner.finish_early(progress)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class _Cancellation:
    """Remembers a cancellation that came while a store call had to be waited for."""

    def __init__(self) -> None:
        self.came = False

    def note(self) -> None:
        self.came = True


def leave() -> None:
    """For `interrupted=`: nothing depends on the reply, so a cancelled caller leaves at once."""
    raise asyncio.CancelledError


V = TypeVar("V")


class AsyncParallel:
    """What `async with attempt.parallel() as steps:` gives: `steps.step(...)` starts a step and
    returns its task."""

    def __init__(
        self, step: Callable[..., Coroutine[Any, Any, Any]], refuse: Callable[[str, bool], None]
    ) -> None:
        self._step = step
        self._refuse = refuse
        self._names: dict[str, asyncio.Task[Any]] = {}
        self._tasks: list[asyncio.Task[Any]] = []

    def step(
        self, name: str, fn: Callable[..., Awaitable[V] | V], **options: Any
    ) -> asyncio.Task[V]:
        """Start `attempt.step` with these arguments; the task has its value or its error."""
        before = self._names.get(name)
        self._refuse(name, before is not None and not before.done())
        work = self._step(name, fn, **options)
        task: asyncio.Task[V] = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        self._names[name] = task
        return task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        interrupted = isinstance(error, asyncio.CancelledError)
        if interrupted:
            self._cancel()
        # Wait until all have ended, however often we are cancelled: each must store what it has
        # begun, and the key must not be released while one of them is running.
        while running := [task for task in self._tasks if not task.done()]:
            try:
                await asyncio.wait(running)
            except asyncio.CancelledError:
                interrupted = True
                self._cancel()
        failed = [e for e in map(_error, self._tasks) if e is not None]
        if error is None and interrupted:
            raise asyncio.CancelledError
        if error is None and failed:
            raise error_to_raise(failed)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


def _error(task: asyncio.Task[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()
