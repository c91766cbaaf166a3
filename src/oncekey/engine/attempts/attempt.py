"""The running attempt as a sync body sees it: steps, one after the other or in parallel, and
renewals.

A step drives core/step_flow.py in the body's thread. Each parallel step has a thread of its own and
runs to its end, also if others fail: each is stored by itself, and a retry runs only those that are
missing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from threading import Lock
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar, cast

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
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.flow_driver import drive
from oncekey.core.step_flow import StepOutcome
from oncekey.core.step_format import StepResult, result_value
from oncekey.engine.attempts.attempt_base import AttemptBase, in_step
from oncekey.engine.attempts.attempt_outcomes import check_started, pack
from oncekey.engine.attempts.attempt_steps import RunningStep, error_to_raise, packed_result
from oncekey.engine.event_bus import End, observed
from oncekey.engine.jobs import JobFactory

V = TypeVar("V")


class RunnerProtocol(Protocol):
    """What an attempt needs of its runner."""

    jobs: JobFactory

    def apply(self, command: Command, deadline: int | None = None) -> CommandResult: ...
    def sleep(self, effect: Sleep) -> int: ...
    def rollback(self, attempt: AttemptBase) -> None: ...
    def step_begins(self, attempt: AttemptBase, name: str) -> list[End]: ...


class Attempt(AttemptBase):
    """One run of a body, in its thread."""

    __slots__ = ("_running",)

    _runner: RunnerProtocol
    _running: Lock  # see `Progress`

    def step(
        self,
        name: str,
        fn: Callable[..., V | StepResult[V]],
        *,
        request: Any = None,
        probe: Callable[..., V | StepResult[V] | None] | None = None,
        probe_grace: Duration | None = None,
        codec: Any = None,
    ) -> V:
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
        """
        if self._is_late:
            self.renew()
        steps = self._steps
        running = steps.begin(
            self,
            name,
            request=request,
            probed=probe is not None,
            probe_grace=probe_grace,
            codec=self._runner.jobs.step_codec(codec, fn, name),
        )
        try:
            outcome = self._drive_step(running, fn, probe)
        except BaseException:
            steps.doubt(running)
            raise
        value: V = steps.end(running, outcome)
        return value

    def parallel(self) -> Parallel:
        """Run steps in parallel, each in a thread of its own; leaving the block waits for all.

        with attempt.parallel() as steps:
            hold = steps.step("inventory:reserve", reserve)
            paid = steps.step("payment:charge", charge)
        hold.result(), paid.result()
        """
        return Parallel(
            self.step, partial(self._steps.refuse_repeated, self), in_transaction=self._depth > 0
        )

    def renew(self) -> None:
        """Renew the lease now, e.g. before a long call that blocks heartbeats (a held GIL)."""
        if self._lost:
            self.check()
        grant = self._grant
        result = self._runner.apply(Renew(grant.id, grant.owner, grant.fence, grant.lease))
        if isinstance(result.reply, StoreUnavailable):
            raise result.reply
        if isinstance(result.reply, Lost):
            self._lost = True
            self.check()
        self._extend(result.sent_at + grant.lease)

    def rollback(self) -> None:
        """Roll back the rows that this body has written in the caller's transaction so far, and go
        on: what it returns is stored as usual. This is for a result to store although nothing was
        done, such as a refusal. Raising Terminal rolls back the rows too, and stores the failure.
        """
        self._runner.rollback(self)

    def _is_running(self) -> bool:
        return self._running.locked()

    def _drive_step(
        self, running: RunningStep, fn: Callable[..., Any], probe: Callable[..., Any] | None
    ) -> StepOutcome:
        def perform(effect: Effect) -> object:
            if type(effect) is RunStep:
                with in_step(running), observed(self._runner.step_begins(self, running.name)):
                    return self._call(running, fn)
            if type(effect) is Probe:
                assert probe is not None
                return self._call(running, probe, none_is_no=True)
            if type(effect) is Sleep:
                return self._runner.sleep(effect)
            return self._runner.apply(cast(Command, effect), self._deadline)

        return drive(self._step_flow(running), perform)

    def _call(
        self, running: RunningStep, fn: Callable[..., Any], *, none_is_no: bool = False
    ) -> Returned | Raised | ProbeFoundNothing:
        try:
            result = fn(*running.args)
            value = result_value(result)
            check_started(self._job, value, f"step {running.name!r}", fn)
        except BaseException as error:
            return Raised(error, self._repeat_until)
        if result is None and none_is_no:
            return ProbeFoundNothing(self._repeat_until)
        returned = pack(running.codec, self._job.policy, value, self._repeat_until)
        return packed_result(result, returned)


PARALLEL_MAX: Final = 16


class Parallel:
    """What `with attempt.parallel() as steps:` gives: `steps.step(...)` starts a step and returns
    its future. At most 16 run at once, the others wait."""

    def __init__(
        self, step: Callable[..., Any], refuse: Callable[[str, bool], None], *, in_transaction: bool
    ) -> None:
        if in_transaction:
            raise ConfigurationError(
                "parallel(): in a transaction steps run one after the other, since they are "
                "written on its one connection"
            )
        self._step = step
        self._refuse = refuse
        self._names: dict[str, Future[Any]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._started: list[Future[Any]] = []

    def step(self, name: str, fn: Callable[..., V], **options: Any) -> Future[V]:
        """Start `attempt.step` with these arguments; the future has its value or its error."""
        if self._pool is None:
            raise ConfigurationError("parallel(): use it as `with attempt.parallel() as steps:`")
        before = self._names.get(name)
        self._refuse(name, before is not None and not before.done())
        # In a copy of this context, since a thread begins with an empty one.
        work = partial(self._step, name, fn, **options)
        future: Future[V] = self._pool.submit(copy_context().run, work)
        self._started.append(future)
        self._names[name] = future
        return future

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(PARALLEL_MAX, thread_name_prefix="oncekey-step")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._pool is not None
        pool, self._pool = self._pool, None
        interrupted: BaseException | None = None
        while True:
            try:
                pool.shutdown(wait=True)
                break
            except BaseException as interruption:
                # Ctrl-C is raised once all threads have ended, since they cannot be stopped.
                interrupted = interrupted or interruption
        failed = [e for e in (future.exception() for future in self._started) if e is not None]
        if interrupted is not None:
            raise interrupted
        if failed and error is None:
            raise error_to_raise(failed)
