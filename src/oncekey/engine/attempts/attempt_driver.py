"""Drives the attempt flow on an event loop.

Performs the effects of core/attempt_flow.py in the task that awaits it: applies commands to the
store, runs the body, sleeps, calls the user's `recover`. The rules are in the flow; which task that
is, and what a cancellation of the caller means, is in runner.py.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import CoroutineType
from typing import Any, cast

from oncekey.core.attempt_flow import close, finish_of, finished, granted
from oncekey.core.commands import Claim, Claimed, Command, Done, Finish, Release, Reply
from oncekey.core.effects import (
    AttemptOutcome,
    CommandResult,
    Effect,
    Grant,
    Overtaken,
    Raised,
    Recover,
    Recovered,
    RepeatClaim,
    Returned,
    Sleep,
    StartedTooLate,
)
from oncekey.core.errors import NotStarted, StoreUnavailable
from oncekey.core.flow_driver import drive_async
from oncekey.core.late_owner import starts_too_late
from oncekey.core.store import AsyncCallerTransaction
from oncekey.engine.attempts.async_attempt import AsyncAttempt
from oncekey.engine.attempts.async_body import (
    AsyncBody,
    AsyncProgress,
    awaited,
    body_result,
    check_begun,
    end_body,
    pause,
    take_value,
)
from oncekey.engine.attempts.attempt_base import AttemptBase
from oncekey.engine.attempts.attempt_base import enter as enter_body
from oncekey.engine.attempts.attempt_base import leave as leave_body
from oncekey.engine.attempts.attempt_outcomes import Outcomes, pack
from oncekey.engine.attempts.runner_base import (
    RunnerBase,
    flow_of,
    nesting_depth,
    one_by_one,
)
from oncekey.engine.batches.shared_claims import RunningAttempts, send_at_once
from oncekey.engine.clock import new_owner
from oncekey.engine.event_loop import (
    LoopState,
    make_loop_state,
    wrong_event_loop,
)
from oncekey.engine.jobs import Job, JobFactory
from oncekey.engine.results import Result


class AsyncDriver(RunnerBase):
    """Performs effects on a store: through each loop's coalescer, or directly in a transaction."""

    def __init__(
        self,
        jobs: JobFactory,
        outcomes: Outcomes,
        apply: Callable[[Sequence[Command]], Awaitable[list[Reply]]],
        *,
        apply_at_once: Callable[[Sequence[Command]], list[Reply]] | None = None,
        coalesce: bool = True,
        max_in_flight: int = 1,
        transaction: AsyncCallerTransaction | None = None,
        connection: Any = None,
    ) -> None:
        super().__init__(
            jobs, outcomes, coalesce=coalesce, max_in_flight=max_in_flight, connection=connection
        )
        self._apply = apply
        now = self._clock.now
        self._at_once = send_at_once(apply, now, transaction)
        self._send_now = one_by_one(apply_at_once, now, transaction) if apply_at_once else None
        self._transaction = transaction
        self.engine: Callable[[], object] = lambda: None
        self.reset()

    def reset(self) -> None:
        """Begin without loops and tasks: at the start, and in a forked child."""
        self._lock = threading.Lock()
        self._loop_states: dict[asyncio.AbstractEventLoop, LoopState] = {}
        if self._transaction is None:
            self._running = RunningAttempts()
            self._outcomes.cache.reset()

    def loop_state(self) -> LoopState:
        """What belongs to the running loop."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise wrong_event_loop() from None
        state = self._loop_states.get(loop)
        return self._make_loop_state(loop) if state is None else state

    def _make_loop_state(self, loop: asyncio.AbstractEventLoop) -> LoopState:
        at_once = None if self._coalesce else self._at_once
        made = make_loop_state(
            self._apply, at_once, self._running, self._clock, self._max_in_flight, self._events
        )
        with self._lock:
            # Loops come and go, one after the other, where every task has an asyncio.run.
            known = self._loop_states.items()
            self._loop_states = {old: state for old, state in known if not old.is_closed()}
            return self._loop_states.setdefault(loop, made)

    # --- the flow -----------------------------------------------------------------------------

    async def _attempt(
        self, progress: AsyncProgress, job: Job, body: AsyncBody[Any]
    ) -> AttemptOutcome | Result[Any] | None:
        """The usual way of an attempt, without its flow: claimed, returned, finished. If anything
        else happens, the flow gets the results so far and goes on. A result is recorded already, an
        outcome is not."""
        claim, state, send_now = job.claim, progress.loop_state, self._send_now
        assert state is not None
        shared = state.shared
        sent = progress.sent
        try:
            if sent is None and shared.leads(claim):
                # Nothing waits here if it need not: awaiting costs as much as the store.
                sent = send_now(claim) if send_now else await state.send(claim, progress.abandon)
                shared.duplicates.replied(claim, sent[0])
        except BaseException:
            shared.duplicates.leave(claim)
            raise
        if sent is None:
            return await self._drive(progress, job, body, [])
        reply, sent_at = sent
        progress.reply = reply
        if type(reply) is not Claimed or job.arguments:
            result = CommandResult(reply, sent_at, self._clock.now())
            return await self._drive(progress, job, body, [result])
        grant = granted(claim, reply, sent_at)
        ended = await self._run_body(progress, grant, job, body)
        if ended is None:
            return None
        return await self._finish(progress, job, body, grant, ended)

    async def _finish(
        self,
        progress: AsyncProgress,
        job: Job,
        body: AsyncBody[Any],
        grant: Grant,
        ended: Returned | Raised | Overtaken | StartedTooLate,
    ) -> AttemptOutcome | Result[Any] | None:
        """What follows the body on the usual way. If anything else happens, the flow goes on."""
        results: list[object] = [ended]
        if type(ended) is Returned:
            finish = finish_of(grant, ended)
            if self._send_now:
                answer, sent_at = self._send_now(finish)
            else:
                assert progress.loop_state is not None
                send = progress.loop_state.send
                answer, sent_at = await send(finish, progress.abandon, ended.deadline)
            if type(answer) is Done:
                progress.stored = finish, sent_at
                progress.ended = True
                measured = progress.measured
                if ended.exact and (measured is not None or not self._events.subscribers):
                    return self._outcomes.finish(job, grant, ended, measured)
                return finished(grant, job.policy.times, ended)
            results.append(CommandResult(answer, sent_at, self._clock.now()))
        claimed_at = grant.deadline - grant.claim.lease
        assert progress.reply is not None
        results.insert(0, CommandResult(progress.reply, claimed_at, claimed_at))
        return await self._drive(progress, job, body, results)

    async def _go_on(
        self, progress: AsyncProgress, job: Job, body: AsyncBody[Any]
    ) -> AttemptOutcome | Result[Any] | None:
        """Go on after a body that has finished early."""
        if progress.flow is not None:
            return await self._drive(progress, job, body, [])
        assert progress.attempt is not None
        ended = self._result_of_body(progress, job)
        return await self._finish(progress, job, body, progress.attempt._grant, ended)

    async def _drive(
        self, progress: AsyncProgress, job: Job, body: AsyncBody[Any], results: list[object]
    ) -> AttemptOutcome | None:
        """Perform the effects of the attempt flow. Its first ones were performed already; `results`
        are theirs. Returns the outcome; None if the caller left before anything was claimed, or if
        the body has finished early: then another call of this goes on after the body."""
        flow = progress.flow
        result: Any = None
        deadline: int | None = None
        if flow is None:
            progress.flow = flow = flow_of(job)
        else:
            result = self._result_of_body(progress, job)
            deadline = getattr(result, "deadline", None)
        shared = progress.loop_state.shared if progress.loop_state is not None else None
        while True:
            try:
                effect = flow.send(result)
            except StopIteration as stop:
                progress.ended = True
                outcome: AttemptOutcome = stop.value
                return outcome
            if results:
                result = results.pop(0)
                deadline = getattr(result, "deadline", deadline)
            elif type(effect) is Claim and shared is not None:
                result = await shared.apply(progress, effect)
            elif type(effect) is Grant:
                result = await self._run_body(progress, effect, job, body)
                if progress.is_early:
                    return None
                deadline = getattr(result, "deadline", None)
            elif type(effect) is Finish:
                result = await self.apply(effect, progress.abandon, deadline)
                if type(result.reply) is Done:
                    progress.stored = effect, result.sent_at
            elif type(effect) is Sleep:
                if shared is not None and effect.watch is not None:
                    result = await shared.sleep(progress, effect)
                else:
                    result = await self._sleep(effect, progress)
                # While it waits for another attempt nothing is claimed. In any other pause the
                # claim may have been made: the flow gives it back, its body not run.
                if progress.is_abandoned and effect.watch is not None and not progress.begun:
                    progress.ended = True
                    return None
            elif type(effect) is Recover:
                result = await self._recover(effect, job)
            elif type(effect) is RepeatClaim:
                progress.claim, progress.reply = effect.claim, None
                result = await self.apply(effect.claim, progress.abandon)
                progress.reply = result.reply
            else:
                command = cast(Command, effect)
                result = await self.apply(command, progress.abandon, deadline)

    async def _close_interrupted(self, progress: AsyncProgress, job: Job) -> None:
        """Close the key of an interrupted run. If this is interrupted itself, it is done again."""
        if progress.ended:
            return
        attempt = progress.attempt
        if attempt is not None:
            self._running.remove(attempt)
            end_body(progress, attempt)
        if attempt is None or not progress.begun:
            # Nothing has happened, so a claim that may have been made is given back.
            for owner in progress.owners():
                release = Release(job.claim.id, owner, None)
                reply = (await self.apply(release, progress.abandon)).reply
                if isinstance(reply, StoreUnavailable):
                    self.loop_state().deferred_writer.add(release)
        else:
            ended = body_result(progress, attempt, job)

            async def perform(effect: Effect) -> object:
                if type(effect) is Sleep:
                    return await self._sleep(effect, progress)
                return await self.apply(cast(Command, effect), progress.abandon, ended.deadline)

            flow = close(attempt._grant, job.policy.times, ended)
            self._record(progress, await drive_async(flow, perform))
        progress.ended = True

    def _record(self, progress: AsyncProgress, outcome: AttemptOutcome | None) -> None:
        """Record an outcome, also if nobody waits for it any more."""
        if outcome is None:
            return
        if outcome.deferred is not None and self._transaction is None:
            self.loop_state().deferred_writer.add(outcome.deferred)
        self._outcomes.record(progress.job, outcome, progress.measured)

    # --- effects ------------------------------------------------------------------------------

    async def apply(
        self, command: Command, interrupted: Callable[[], None], deadline: int | None = None
    ) -> CommandResult:
        """Apply one command to the store; `deadline` is that of the command's owner."""
        send = self._at_once if self._transaction is not None else self.loop_state().send
        reply, sent_at = await send(command, interrupted, deadline)
        return CommandResult(reply, sent_at, self._clock.now())

    async def _sleep(self, effect: Sleep, progress: AsyncProgress) -> int:
        await pause(self._clock, self._clock.jitter(effect.us), progress)
        return self._clock.now()

    async def _recover(self, effect: Recover, job: Job) -> Recovered | None:
        assert job.policy.recover is not None
        recovery = job.policy.recover(self._outcomes.unknown_key(job, effect.record))
        if inspect.isawaitable(recovery):
            recovery = await recovery
        return self._outcomes.recovered(job, recovery)

    async def _run_body(
        self, progress: AsyncProgress, grant: Grant, job: Job, body: AsyncBody[Any]
    ) -> Returned | Raised | Overtaken | StartedTooLate | None:
        """Run the body under a grant. Returns None if it has finished early."""
        if progress.is_abandoned:
            error = NotStarted("the caller was cancelled before the operation began")
            return Raised(error, grant.deadline)
        refusal = self.jobs.refusal(job)
        if refusal is not None:
            return Raised(refusal, grant.deadline)
        attempt = AsyncAttempt(self, job, grant)
        if progress.attempt is None and (self._events.subscribers or grant.taken_over):
            self._emit_claimed(progress, grant)
        progress.attempt = attempt
        if self._transaction is not None:
            return await self._run_in_transaction(self._transaction, progress, attempt, job, body)
        if starts_too_late(grant, self._clock.now()):
            progress.spare = new_owner()
            return StartedTooLate(progress.spare)
        task = progress.attempt_task
        assert task is not None
        attempt._on_lost = task.cancel
        attempt._progress = progress
        state = progress.loop_state
        assert state is not None
        state.heartbeat.watch(attempt)
        enter_body(attempt)
        self._running.add(attempt)
        if progress.measured is not None:
            self._events.body_begins(progress.measured)
        progress.begun = True
        try:
            value: Any = body(attempt)
            if type(value) is CoroutineType:
                await awaited(value, progress)
            else:
                await take_value(progress, job, value)
        except BaseException as error:
            if progress.has_outcome():
                raise  # a signal's handler, after the body: its outcome is stored first
            progress.error = error
        return None if progress.is_early else self._result_of_body(progress, job)

    def _result_of_body(self, progress: AsyncProgress, job: Job) -> Returned | Raised | Overtaken:
        """The body has ended, or has finished early: what the flow is to know of it."""
        attempt = progress.attempt
        assert attempt is not None
        self._running.remove(attempt)
        end_body(progress, attempt)
        result = body_result(progress, attempt, job)
        cancelled = type(result) is Raised and isinstance(result.error, asyncio.CancelledError)
        return Overtaken() if cancelled and attempt._lost else result  # the cancellation was ours

    # --- in the caller's transaction ----------------------------------------------------------

    async def _run_in_transaction(
        self,
        transaction: AsyncCallerTransaction,
        progress: AsyncProgress,
        attempt: AsyncAttempt,
        job: Job,
        body: AsyncBody[Any],
    ) -> Returned | Raised:
        """There is no lease to keep, and the rows of a body that raises are rolled back."""
        attempt._enter_transaction(nesting_depth(self._connection))
        await transaction.set_savepoint()
        token = enter_body(attempt)
        if progress.measured is not None:
            self._events.body_begins(progress.measured)
        try:
            await take_value(progress, job, body(attempt))
            check_begun(progress, attempt, job)
        except BaseException as error:
            await transaction.rollback_to_savepoint()
            return Raised(error, attempt._repeat_until)
        finally:
            leave_body(token)
            attempt._close()
            if progress.measured is not None:
                progress.measured.end(self._clock.now())
        await transaction.release_savepoint()
        return pack(job.codec, job.policy, progress.value, attempt._repeat_until)

    async def rollback(self, attempt: AttemptBase) -> None:
        attempt._check_rollback(nesting_depth(self._connection))
        assert self._transaction is not None
        await self._transaction.rollback_to_savepoint()
        await self._transaction.set_savepoint()
