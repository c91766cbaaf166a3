"""The running attempt as a sync body sees it: steps and renewals.

Drives core/step_flow.py in the body's thread: performs its effects and sends back their results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, Protocol, TypeVar, cast

from oncekey.core.commands import Command, Lost, Renew
from oncekey.core.duration import Duration
from oncekey.core.effects import (
    CommandResult,
    Probe,
    ProbeFoundNothing,
    Raised,
    Returned,
    RunStep,
    Sleep,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.step_flow import StepOutcome
from oncekey.core.step_flow import step as step_flow
from oncekey.core.step_format import StepResult, result_value
from oncekey.engine.attempt_base import AttemptBase
from oncekey.engine.attempt_outcomes import check_started, pack
from oncekey.engine.attempt_steps import RunningStep, packed_result
from oncekey.engine.blocking.parallel import Parallel
from oncekey.engine.context import in_step
from oncekey.engine.jobs import JobFactory
from oncekey.engine.observers import End, observed

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
        flow = step_flow(
            self._grant,
            self._repeat_until,
            running.name,
            running.intent,
            running.saved,
            running.probe_grace,
        )
        result: object = None
        while True:
            try:
                effect = flow.send(result)
            except StopIteration as stop:
                outcome: StepOutcome = stop.value
                return outcome
            if type(effect) is RunStep:
                with in_step(running), observed(self._runner.step_begins(self, running.name)):
                    result = self._call(running, fn)
            elif type(effect) is Probe:
                assert probe is not None
                result = self._call(running, probe, none_is_no=True)
            elif type(effect) is Sleep:
                result = self._runner.sleep(effect)
            else:
                result = self._runner.apply(cast(Command, effect), self._deadline)

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
