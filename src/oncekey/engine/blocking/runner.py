"""Drives the flow in the caller's thread.

Owns the blocking answers to each effect: calling the store, running the body, sleeping, recovering.
The rules are in core/attempt_flow.py; this file only does what it is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any, TypeVar

from oncekey.core.attempt_flow import attempt as attempt_flow
from oncekey.core.attempt_flow import close
from oncekey.core.commands import Command, Look, Release, Reply, Seen
from oncekey.core.effects import (
    ApplyCommand,
    AttemptOutcome,
    CommandResult,
    Grant,
    Raised,
    Recover,
    Recovered,
    Returned,
    RunBody,
    Sleep,
    StartedTooLate,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.late_owner import starts_too_late
from oncekey.core.record import Record, State
from oncekey.core.recovery import recover as recover_flow
from oncekey.core.store import CallerTransaction
from oncekey.engine.attempt_base import AttemptBase
from oncekey.engine.blocking.attempt import Attempt
from oncekey.engine.blocking.coalescer import Coalescer
from oncekey.engine.blocking.deferred_writer import DeferredWriter
from oncekey.engine.blocking.heartbeat import Heartbeat
from oncekey.engine.blocking.shared_claims import SharedClaims
from oncekey.engine.clock import new_owner
from oncekey.engine.context import enter, entered, leave
from oncekey.engine.duplicates import Duplicates
from oncekey.engine.jobs import BodyNotRun, Job, Kernel
from oncekey.engine.results import Result
from oncekey.engine.runner_base import MAKE_UP_TRIES, NOTHING, Progress, whole_call
from oncekey.engine.turns import depth, turn

T = TypeVar("T")
Body = Callable[[Attempt], T]


class Runner:
    """Runs jobs on a store, through a coalescer or, in a transaction, directly."""

    def __init__(
        self,
        kernel: Kernel,
        apply: Callable[[Sequence[Command]], list[Reply]],
        *,
        coalesce: bool = True,
        max_in_flight: int = 1,
        enlisted: CallerTransaction | None = None,
        connection: Any = None,
    ) -> None:
        self.kernel = kernel
        self._apply = apply
        self._coalesce = coalesce
        self._max_in_flight = max_in_flight
        self._enlisted = enlisted
        self._connection = connection
        self._clock = kernel.clock
        self.reset()

    def reset(self) -> None:
        """Fresh locks and threads: at the start, and in a forked child."""
        if self._enlisted is None:  # in a caller's transaction nothing is shared or kept alive
            self._coalescer = Coalescer(
                self._apply, max_in_flight=self._max_in_flight, now=self._clock.now
            )
            self._heart = Heartbeat(self._coalescer.apply_many, self._clock)
            self._offering = DeferredWriter(self._coalescer.apply_many, self._clock)
            self._duplicates = Duplicates()
            self.kernel.reset()

    def run(self, job: Job, body: Body[T]) -> Result[T]:
        if self._enlisted is not None:
            with turn(self._connection, threading.get_ident()):
                outcome = self._drive(Progress(self.kernel.task(job), entered()), job, body, None)
        else:
            outcome = self._run(job, body)
        stored = self.kernel.settle(job, outcome)
        return self.kernel.conclude(job, outcome, stored)

    def look(self, id: bytes) -> Seen:
        reply = self.apply(Look(id)).reply
        if isinstance(reply, StoreUnavailable):
            raise reply
        assert isinstance(reply, Seen)
        return reply

    def recover(self, job: Job, record: Record) -> State | None:
        """Decide an unknown key by its `recover`; the state it was given, None for none yet."""
        flow = recover_flow(record)
        result: object = None
        while True:
            try:
                effect = flow.send(result)
            except StopIteration as stop:
                state: State | None = stop.value
                return state
            if type(effect) is ApplyCommand:
                result = self.apply(effect.command)
            elif type(effect) is Sleep:
                result = self.sleep(effect)
            else:
                assert type(effect) is Recover
                result = self._recover(effect, job)

    def stop(self) -> None:
        self._heart.stop()
        self._offering.stop()

    @property
    def parts(self) -> tuple[Heartbeat, DeferredWriter]:
        """Those with threads of their own."""
        return self._heart, self._offering

    # --- answers ------------------------------------------------------------------------------

    def _run(self, job: Job, body: Body[Any]) -> AttemptOutcome:
        progress = Progress(self.kernel.task(job), entered())
        shared = SharedClaims(self._duplicates, self.kernel.holders, self._clock, self.apply)
        try:
            return self._drive(progress, job, body, shared)
        except BaseException:
            # Interrupted (Ctrl-C), or the user's recover raised. That is what the caller has to
            # see, but first the key.
            for _ in range(MAKE_UP_TRIES):
                with suppress(BaseException):  # told again, or the store failed
                    self._make_up(progress, job)
                    break
            raise
        finally:
            shared.end()

    def _drive(
        self, progress: Progress, job: Job, body: Body[Any], shared: SharedClaims | None
    ) -> AttemptOutcome:
        flow = attempt_flow(progress.task)
        result: object = None
        deadline: int | None = None
        while True:
            try:
                effect = flow.send(result)
            except StopIteration as stop:
                outcome: AttemptOutcome = stop.value
                if shared is not None:
                    self._offer(outcome.deferred)
                progress.ended = True
                return outcome
            if type(effect) is ApplyCommand:
                if shared is None:
                    result = self.apply(effect.command, deadline)
                else:
                    result = shared.apply(effect, deadline)
            elif type(effect) is RunBody:
                result = self._run_body(progress, effect.grant, job, body)
                deadline = getattr(result, "deadline", None)
            elif type(effect) is Sleep:
                if shared is not None and effect.watch is not None:
                    result = shared.sleep(effect)
                else:
                    result = self.sleep(effect)
            else:
                assert type(effect) is Recover
                result = self._recover(effect, job)

    def _make_up(self, progress: Progress, job: Job) -> None:
        """Leave the key as it has to be left. May itself be interrupted, and is then done again."""
        if progress.ended:
            return
        task, attempt = progress.task, progress.attempt
        if attempt is None or not progress.begun:
            # Nothing has happened, so a claim that may have been taken is given back.
            if attempt is not None:
                self._let_go(progress, attempt)
            for owner in progress.owners():
                release = Release(task.id, owner, None)
                if isinstance(self.apply(release).reply, StoreUnavailable):
                    self._offer(release)
        else:
            self._let_go(progress, attempt)
            body_result = self._result(progress, attempt, job)
            flow = close(task, attempt._grant, body_result)
            result: object = None
            try:
                while True:
                    effect = flow.send(result)
                    if type(effect) is ApplyCommand:
                        result = self.apply(effect.command, body_result.deadline)
                    else:
                        assert type(effect) is Sleep
                        result = self.sleep(effect)
            except StopIteration as stop:
                self._offer(stop.value.deferred)
                self.kernel.settle(job, stop.value)
        progress.ended = True

    def _offer(self, deferred: Command | None) -> None:
        """Have the store take later what it did not take now."""
        if deferred is not None:
            self._offering.add(deferred)

    def apply(self, command: Command, deadline: int | None = None) -> CommandResult:
        """What the store said, and when it was asked; `deadline` is the command's owner's."""
        if self._coalesce:
            return self._coalescer.apply(command, deadline)
        now = self._clock.now
        sent_at = now()
        reply: Reply | StoreUnavailable
        try:
            (reply,) = self._apply((command,))
        except StoreUnavailable as error:
            reply = error
        return CommandResult(reply, sent_at, now())

    def _run_body(
        self, progress: Progress, grant: Grant, job: Job, body: Body[Any]
    ) -> Returned | Raised | StartedTooLate:
        refusal = self.kernel.refusal(job)
        if refusal is not None:
            return Raised(refusal, grant.deadline)
        attempt = Attempt(self, job, grant)
        if progress.attempt is None:
            self.kernel.tell_claimed(job, grant)
        progress.attempt = attempt
        if self._enlisted is not None:
            return self._run_enlisted(self._enlisted, attempt, job, body)
        call = None if type(body) is FunctionType else whole_call(body, attempt)
        if starts_too_late(grant, self._clock.now()):
            progress.spare = new_owner()
            return StartedTooLate(progress.spare)
        self._heart.watch(attempt)
        enter(attempt)
        self.kernel.holders.add(job.fingerprint, attempt)
        progress.begun = True
        try:
            progress.value = body(attempt) if call is None else call[0]
        except BaseException as error:
            progress.error = error
        self._let_go(progress, attempt)
        return self._result(progress, attempt, job)

    def _let_go(self, progress: Progress, attempt: AttemptBase) -> None:
        """The body is through. Done again after an interruption, it changes nothing."""
        self.kernel.holders.remove(attempt)
        self._heart.forget(attempt)
        attempt._close()
        enter(progress.outer)

    def _result(self, progress: Progress, attempt: AttemptBase, job: Job) -> Returned | Raised:
        """What the body came to, as the flow needs it."""
        deadline = attempt._deadline
        if progress.value is NOTHING:
            # Interrupted on its way into the body, if nothing else is known.
            return Raised(progress.error or KeyboardInterrupt(), deadline)
        try:
            self.kernel.refuse_unstarted(job, progress.value)
        except BodyNotRun as error:
            return Raised(error, deadline)
        return self.kernel.pack(job.codec, job.policy, progress.value, deadline)

    def _run_enlisted(
        self, enlisted: CallerTransaction, attempt: Attempt, job: Job, body: Body[Any]
    ) -> Returned | Raised:
        """In the caller's transaction: no lease to keep, and a raising body's rows are undone."""
        attempt._enter_transaction(depth(self._connection))
        enlisted.set_savepoint()
        here = enter(attempt)
        try:
            value = body(attempt)
            self.kernel.refuse_unstarted(job, value)
        except BaseException as error:
            enlisted.rollback_to_savepoint()
            return Raised(error, attempt._repeat_until)
        finally:
            leave(here)
            attempt._close()
        enlisted.release_savepoint()
        return self.kernel.pack(job.codec, job.policy, value, attempt._repeat_until)

    def rollback(self, attempt: AttemptBase) -> None:
        attempt._check_undo(depth(self._connection))
        assert self._enlisted is not None
        self._enlisted.rollback_to_savepoint()
        self._enlisted.set_savepoint()

    def sleep(self, effect: Sleep) -> int:
        self._clock.wait(threading.Event(), self._clock.jitter(effect.us))
        return self._clock.now()

    def _recover(self, effect: Recover, job: Job) -> Recovered | None:
        assert job.policy.recover is not None
        result = job.policy.recover(self.kernel.unknown_key(job, effect.record))
        return self.kernel.recovered(job, result)
