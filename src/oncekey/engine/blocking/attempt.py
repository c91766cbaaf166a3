"""The running attempt as a blocking body sees it: steps and renewals.

Owns the blocking answers to what `stepping.step` asks; the rules are there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from oncekey.core.codec import codec_for
from oncekey.core.commands import Command, Lost, Renew
from oncekey.core.duration import Duration
from oncekey.core.effects import (
    ApplyCommand,
    CommandResult,
    Grant,
    Probe,
    ProbeFoundNothing,
    Raised,
    Returned,
    RunStep,
    Sleep,
    StepOutcome,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.step_flow import step as step_flow
from oncekey.core.step_format import StepResult
from oncekey.engine.attempt_base import AttemptBase
from oncekey.engine.blocking.parallel import Parallel
from oncekey.engine.context import in_step
from oncekey.engine.jobs import Job, Kernel
from oncekey.engine.step_calls import StepCall, bare, packed

V = TypeVar("V")


class RunnerProtocol(Protocol):
    """What an attempt needs of its runner."""

    kernel: Kernel

    def apply(self, command: Command, deadline: int | None = None) -> CommandResult: ...
    def sleep(self, effect: Sleep) -> int: ...
    def rollback(self, attempt: AttemptBase) -> None: ...


class Attempt(AttemptBase):
    """One run of a body, in its thread."""

    __slots__ = ("_job", "_runner")

    def __init__(self, runner: RunnerProtocol, job: Job, grant: Grant) -> None:
        kernel = runner.kernel
        super().__init__(kernel.identities, job.identity, grant, job.policy, kernel.clock)
        self._runner = runner
        self._job = job

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
        """Run `fn(child_key)` once: a step that finished in an earlier attempt is not repeated.

        The intent is on record before `fn` is called, its result after; an unfinished step is
        called again, with the same child key.

        request   what to send: written down first, and given as `fn(child_key, request)`, on
                  every run as it was on the first
        probe     for a provider that knows no keys: asked like `fn` before an unfinished step is
                  called again; gives what happened, or None for "nothing did"
        probe_grace  how long a call may be under way: a "nothing did" counts only after that
                  time; the lease unless said otherwise
        """
        if self._is_late:
            self.renew()
        call = self._begin_step(
            name,
            request=request,
            probed=probe is not None,
            probe_grace=probe_grace,
            codec=self._runner.kernel.codec if codec is None else codec_for(codec),
        )
        try:
            outcome = self._drive_step(call, fn, probe)
        except BaseException:
            self._doubt_step(call)
            raise
        value: V = self._end_step(call, outcome)
        return value

    def parallel(self) -> Parallel:
        """Steps side by side, each in a thread of its own; leaving the block waits for all.

        with attempt.parallel() as steps:
            hold = steps.step("inventory:reserve", reserve)
            paid = steps.step("payment:charge", charge)
        hold.result(), paid.result()
        """
        return Parallel(self.step, self._refuse_repeated, in_transaction=self._depth > 0)

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
        """Take back the rows this body has written in the caller's transaction so far, and go on:
        what it returns is stored as usual. For an answer that is to be kept though nothing was
        done, such as a refusal. Raising Terminal undoes the rows as well, and stores the failure.
        """
        self._runner.rollback(self)

    def _drive_step(
        self, call: StepCall, fn: Callable[..., Any], probe: Callable[..., Any] | None
    ) -> StepOutcome:
        flow = step_flow(self._grant, self._repeat_until, call.plan, call.saved)
        result: object = None
        while True:
            try:
                effect = flow.send(result)
            except StopIteration as stop:
                outcome: StepOutcome = stop.value
                return outcome
            if type(effect) is RunStep:
                with in_step(self, call.plan.name, call.child):
                    result = self._ask(call, fn)
            elif type(effect) is Probe:
                assert probe is not None
                result = self._ask(call, probe, none_is_no=True)
            elif type(effect) is Sleep:
                result = self._runner.sleep(effect)
            else:
                assert type(effect) is ApplyCommand
                result = self._runner.apply(effect.command, self._deadline)

    def _ask(
        self, call: StepCall, fn: Callable[..., Any], *, none_is_no: bool = False
    ) -> Returned | Raised | ProbeFoundNothing:
        kernel = self._runner.kernel
        try:
            result = fn(*call.args)
            kernel.refuse_unstarted(self._job, bare(result), f"step {call.plan.name!r}")
        except BaseException as error:
            return Raised(error, self._repeat_until)
        if result is None and none_is_no:
            return ProbeFoundNothing(self._repeat_until)
        made = kernel.pack(call.codec, self._job.policy, bare(result), self._repeat_until)
        return packed(result, made)
