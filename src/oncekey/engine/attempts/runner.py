"""Runs jobs in the caller's thread.

Drives the attempt flow of core/attempt_flow.py and performs its effects: applies commands to the
store, runs the body, sleeps, calls the user's `recover`. The rules are in the flow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any, TypeVar, cast

from oncekey.core.attempt_flow import close, finish_of, finished, granted
from oncekey.core.commands import (
    Claim,
    Claimed,
    Command,
    Done,
    Finish,
    Look,
    Release,
    Resolve,
    Seen,
)
from oncekey.core.effects import (
    AttemptOutcome,
    CommandResult,
    Effect,
    Grant,
    Raised,
    Recover,
    Recovered,
    RepeatClaim,
    Returned,
    Sleep,
    StartedTooLate,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.flow_driver import drive
from oncekey.core.late_owner import starts_too_late
from oncekey.core.record import Record, State
from oncekey.core.recovery import recover as recover_flow
from oncekey.core.store import CallerTransaction
from oncekey.engine.attempts.attempt import Attempt
from oncekey.engine.attempts.attempt_base import AttemptBase, enter, entered, leave
from oncekey.engine.attempts.attempt_outcomes import (
    UNSTARTED,
    Outcomes,
    check_started,
    not_run,
    pack,
)
from oncekey.engine.attempts.runner_base import (
    CLOSE_TRIES,
    NOTHING,
    Apply,
    HeldConnection,
    Progress,
    RunnerBase,
    flow_of,
    nesting_depth,
    one_by_one,
    whole_call,
)
from oncekey.engine.background.heartbeat import Heartbeat
from oncekey.engine.batches.batch import Sent
from oncekey.engine.batches.coalescer import Coalescer
from oncekey.engine.batches.deferred_writes import DeferredWriter
from oncekey.engine.batches.duplicates import Duplicates
from oncekey.engine.batches.shared_claims import RunningAttempts, SharedClaims
from oncekey.engine.clock import new_owner
from oncekey.engine.jobs import Job, JobFactory
from oncekey.engine.results import Result, conclude

T = TypeVar("T")
Body = Callable[[Attempt], T]


class Runner(RunnerBase):
    """Runs jobs on a store: through a coalescer, or directly in the caller's transaction."""

    def __init__(
        self,
        jobs: JobFactory,
        outcomes: Outcomes,
        apply: Apply,
        *,
        coalesce: bool = True,
        max_in_flight: int = 1,
        transaction: CallerTransaction | None = None,
        connection: Any = None,
    ) -> None:
        super().__init__(
            jobs, outcomes, coalesce=coalesce, max_in_flight=max_in_flight, connection=connection
        )
        self._apply = apply
        self._transaction = transaction
        # Has the store apply one command; `deadline=` is that of the command's owner.
        self._send = one_by_one(apply, self._clock.now, transaction)
        self.reset()

    def reset(self) -> None:
        """Make fresh locks and threads: at the start, and in a forked child."""
        if self._transaction is None:  # in a caller's transaction nothing is shared or kept alive
            self._coalescer = Coalescer(
                self._apply,
                max_in_flight=self._max_in_flight,
                now=self._clock.now,
                events=self._events,
            )
            if self._coalesce:
                self._send = self._coalescer.send
            self._heartbeat = Heartbeat(self._coalescer.apply_many, self._clock)
            self.deferred_writer = DeferredWriter(self._coalescer.apply_many, self._clock)
            self._running = RunningAttempts()
            self._shared = SharedClaims(Duplicates(), self._running, self._clock, self._send)
            self._outcomes.cache.reset()

    def stop(self) -> None:
        self._heartbeat.stop()
        self.deferred_writer.stop()

    @property
    def parts_with_threads(self) -> tuple[Heartbeat, DeferredWriter]:
        return self._heartbeat, self.deferred_writer

    # --- jobs ---------------------------------------------------------------------------------

    def claim_many(self, jobs: Sequence[Job]) -> list[Sent]:
        """Claim the keys of several jobs in batches of their own. Each job must then be run, with
        the reply to its claim."""
        results = self._coalescer.apply_many([job.claim for job in jobs])
        return [(result.reply, result.sent_at) for result in results]

    def run(self, job: Job, body: Body[T], sent: Sent | None = None) -> Result[T]:
        """Run a job to its end: its result, or the error to raise. `sent` is the reply to its claim
        if `claim_many` has sent it."""
        progress = Progress(job, entered())
        if self._transaction is not None:
            with HeldConnection(self._connection, threading.get_ident()):
                ended: AttemptOutcome | Result[T] = self._drive(progress, job, body, None, [])
        else:
            shared = self._shared
            progress.running = threading.Lock()
            # Python releases it however this ends, and then no heartbeat renews the lease any more.
            with progress.running:
                try:
                    ended = self._attempt(progress, job, body, shared, sent)
                except BaseException:
                    # Interrupted (Ctrl-C), or the user's `recover` raised: first close the key.
                    for _ in range(CLOSE_TRIES):
                        with suppress(BaseException):  # interrupted again, or the store failed
                            self._close_interrupted(progress, job)
                            break
                    raise
                finally:
                    shared.end(progress)
        if isinstance(ended, AttemptOutcome):
            self._outcomes.record(job, ended, progress.measured)
            return conclude(job, ended)
        return ended

    def look(self, id: bytes) -> Seen:
        reply = self.apply(Look(id)).reply
        if isinstance(reply, StoreUnavailable):
            raise reply
        assert isinstance(reply, Seen)
        return reply

    def recover(self, job: Job, record: Record) -> State | None:
        """Decide an unknown key by its `recover`; the state it was given, None for none yet."""

        def perform(effect: Effect) -> object:
            if type(effect) is Resolve:
                return self.apply(effect)
            if type(effect) is Sleep:
                return self.sleep(effect)
            assert type(effect) is Recover
            return self._recover(effect, job)

        return drive(recover_flow(record), perform)

    def _attempt(
        self,
        progress: Progress,
        job: Job,
        body: Body[Any],
        shared: SharedClaims,
        sent: Sent | None,
    ) -> AttemptOutcome | Result[Any]:
        """The usual way of an attempt, without its flow: claimed, returned, finished. If anything
        else happens, the flow gets the results so far and goes on. A result is recorded already, an
        outcome is not."""
        claim = job.claim
        try:
            if sent is None and shared.leads(claim):
                sent = self._send(claim)
                shared.duplicates.replied(claim, sent[0])
        except BaseException:
            shared.duplicates.leave(claim)
            raise
        if sent is None:
            return self._drive(progress, job, body, shared, [])
        reply, sent_at = sent
        progress.reply = reply
        if type(reply) is not Claimed or job.arguments:
            result = CommandResult(reply, sent_at, self._clock.now())
            return self._drive(progress, job, body, shared, [result])
        grant = granted(claim, reply, sent_at)
        ended = self._run_body(progress, grant, job, body)
        results: list[object] = [ended]
        if type(ended) is Returned:
            finish = finish_of(grant, ended)
            answer, finish_sent_at = self._send(finish, ended.deadline)
            if type(answer) is Done:
                progress.stored = finish, finish_sent_at
                progress.ended = True
                measured = progress.measured
                if ended.exact and (measured is not None or not self._events.subscribers):
                    return self._outcomes.finish(job, grant, ended, measured)
                return finished(grant, job.policy.times, ended)
            results.append(CommandResult(answer, finish_sent_at, self._clock.now()))
        results.insert(0, CommandResult(reply, sent_at, sent_at))
        return self._drive(progress, job, body, shared, results)

    def _drive(
        self,
        progress: Progress,
        job: Job,
        body: Body[Any],
        shared: SharedClaims | None,
        results: list[object],
    ) -> AttemptOutcome:
        """Perform the effects of the attempt flow; `results` are those of its first effects."""
        flow = flow_of(job)
        result: Any = None
        deadline: int | None = None
        while True:
            try:
                effect = flow.send(result)
            except StopIteration as stop:
                outcome: AttemptOutcome = stop.value
                if outcome.deferred is not None and shared is not None:
                    self.deferred_writer.add(outcome.deferred)
                progress.ended = True
                return outcome
            if results:
                result = results.pop(0)
                deadline = getattr(result, "deadline", deadline)
            elif type(effect) is Claim and shared is not None:
                result = shared.apply(progress, effect)
            elif type(effect) is Grant:
                result = self._run_body(progress, effect, job, body)
                deadline = getattr(result, "deadline", None)
            elif type(effect) is Finish:
                result = self.apply(effect, deadline)
                if type(result.reply) is Done:
                    progress.stored = effect, result.sent_at
            elif type(effect) is Sleep:
                if shared is not None and effect.watch is not None:
                    result = shared.sleep(progress, effect)
                else:
                    result = self.sleep(effect)
            elif type(effect) is Recover:
                result = self._recover(effect, job)
            elif type(effect) is RepeatClaim:
                progress.claim, progress.reply = effect.claim, None
                result = self.apply(effect.claim)
                progress.reply = result.reply
            else:
                result = self.apply(cast(Command, effect), deadline)

    def _close_interrupted(self, progress: Progress, job: Job) -> None:
        """Close the key of an interrupted run. If this is interrupted itself, it is done again."""
        if progress.ended:
            return
        attempt = progress.attempt
        if attempt is None or not progress.begun:
            # Nothing has happened, so a claim that may have been made is given back.
            if attempt is not None:
                self._end_body(progress, attempt)
            for owner in progress.owners():
                release = Release(job.claim.id, owner, None)
                if isinstance(self.apply(release).reply, StoreUnavailable):
                    self.deferred_writer.add(release)
        else:
            self._end_body(progress, attempt)
            ended = self._body_result(progress, attempt, job)

            def perform(effect: Effect) -> object:
                if type(effect) is Sleep:
                    return self.sleep(effect)
                return self.apply(cast(Command, effect), ended.deadline)

            outcome = drive(close(attempt._grant, job.policy.times, ended), perform)
            if outcome.deferred is not None:
                self.deferred_writer.add(outcome.deferred)
            self._outcomes.record(job, outcome, progress.measured)
        progress.ended = True

    # --- effects ------------------------------------------------------------------------------

    def apply(self, command: Command, deadline: int | None = None) -> CommandResult:
        """Apply one command to the store; `deadline` is that of the command's owner."""
        reply, sent_at = self._send(command, deadline)
        return CommandResult(reply, sent_at, self._clock.now())

    def sleep(self, effect: Sleep) -> int:
        self._clock.wait(threading.Event(), self._clock.jitter(effect.us))
        return self._clock.now()

    def _recover(self, effect: Recover, job: Job) -> Recovered | None:
        assert job.policy.recover is not None
        recovery = job.policy.recover(self._outcomes.unknown_key(job, effect.record))
        return self._outcomes.recovered(job, recovery)

    def _run_body(
        self, progress: Progress, grant: Grant, job: Job, body: Body[Any]
    ) -> Returned | Raised | StartedTooLate:
        refusal = self.jobs.refusal(job)
        if refusal is not None:
            return Raised(refusal, grant.deadline)
        attempt = Attempt(self, job, grant)
        if progress.attempt is None and (self._events.subscribers or grant.taken_over):
            self._emit_claimed(progress, grant)
        progress.attempt = attempt
        if self._transaction is not None:
            return self._run_in_transaction(self._transaction, progress, attempt, body)
        call = None if type(body) is FunctionType else whole_call(body, attempt)
        if starts_too_late(grant, self._clock.now()):
            progress.spare = new_owner()
            return StartedTooLate(progress.spare)
        attempt._running = progress.running
        self._heartbeat.watch(attempt)
        enter(attempt)
        self._running.add(attempt)
        if progress.measured is not None:
            self._events.body_begins(progress.measured)
        progress.begun = True
        try:
            progress.value = body(attempt) if call is None else call[0]
        except BaseException as error:
            progress.error = error
        self._end_body(progress, attempt)
        return self._body_result(progress, attempt, job)

    def _end_body(self, progress: Progress, attempt: AttemptBase) -> None:
        """The body has ended. Done again after an interruption, this changes nothing."""
        self._running.remove(attempt)
        self._heartbeat.forget(attempt)
        attempt._closed = True
        enter(progress.outer)
        if progress.measured is not None:
            progress.measured.end(self._clock.now())

    def _body_result(self, progress: Progress, attempt: AttemptBase, job: Job) -> Returned | Raised:
        """What the body returned or raised, for the flow."""
        value, deadline = progress.value, attempt._deadline
        if value is NOTHING:
            # Interrupted on the way into the body, if nothing else is known.
            return Raised(progress.error or KeyboardInterrupt(), deadline)
        if type(value) in UNSTARTED:
            return Raised(not_run(job, value), deadline)
        return pack(job.codec, job.policy, value, deadline)

    # --- in the caller's transaction ----------------------------------------------------------

    def _run_in_transaction(
        self, transaction: CallerTransaction, progress: Progress, attempt: Attempt, body: Body[Any]
    ) -> Returned | Raised:
        """There is no lease to keep, and the rows of a body that raises are rolled back."""
        job = progress.job
        attempt._enter_transaction(nesting_depth(self._connection))
        transaction.set_savepoint()
        token = enter(attempt)
        if progress.measured is not None:
            self._events.body_begins(progress.measured)
        try:
            value = body(attempt)
            check_started(job, value)
        except BaseException as error:
            transaction.rollback_to_savepoint()
            return Raised(error, attempt._repeat_until)
        finally:
            leave(token)
            attempt._close()
            if progress.measured is not None:
                progress.measured.end(self._clock.now())
        transaction.release_savepoint()
        return pack(job.codec, job.policy, value, attempt._repeat_until)

    def rollback(self, attempt: AttemptBase) -> None:
        attempt._check_rollback(nesting_depth(self._connection))
        assert self._transaction is not None
        self._transaction.rollback_to_savepoint()
        self._transaction.set_savepoint()
