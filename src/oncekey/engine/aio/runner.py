"""Runs jobs on an event loop.

Each attempt is a task of its own: a caller that is cancelled leaves at once, while the attempt goes
on to its end and its outcome is stored (I14). An attempt that is cancelled before its body began
gives the key back.

Drives the attempt flow of core/attempt_flow.py and performs its effects: applies commands to the
store, runs the body, sleeps, calls the user's `recover`. The rules are in the flow.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from oncekey.core.attempt_flow import attempt as attempt_flow
from oncekey.core.attempt_flow import close
from oncekey.core.codec import Stored
from oncekey.core.commands import Command, Look, Release, Reply, Seen
from oncekey.core.effects import (
    ApplyCommand,
    AttemptOutcome,
    CommandResult,
    Grant,
    Overtaken,
    Raised,
    Recover,
    Recovered,
    Returned,
    RunBody,
    Sleep,
    StartedTooLate,
)
from oncekey.core.errors import NotStarted, StoreUnavailable
from oncekey.core.late_owner import starts_too_late
from oncekey.core.record import Record, State
from oncekey.core.recovery import recover as recover_flow
from oncekey.core.store import AsyncCallerTransaction
from oncekey.engine.aio.attempt import AsyncAttempt, leave
from oncekey.engine.aio.body import (
    AsyncBody,
    AsyncProgress,
    body_result,
    call_body,
    check_begun,
    end_body,
)
from oncekey.engine.aio.heartbeat import sleep
from oncekey.engine.aio.loop_state import (
    LoopState,
    drain,
    drain_others,
    make_loop_state,
    start_task,
)
from oncekey.engine.aio.shared_claims import AsyncSharedClaims
from oncekey.engine.attempt_base import AttemptBase
from oncekey.engine.attempt_outcomes import Outcomes, pack
from oncekey.engine.clock import new_owner
from oncekey.engine.context import enter as enter_body
from oncekey.engine.context import leave as leave_body
from oncekey.engine.jobs import Job, JobFactory
from oncekey.engine.results import Result, conclude
from oncekey.engine.runner_base import (
    CLOSE_TRIES,
    NOTHING,
    RunnerBase,
    hold_connection,
    nesting_depth,
)
from oncekey.engine.shared_claims_base import RunningAttempts

T = TypeVar("T")
Recorded = tuple[AttemptOutcome, Stored | None]


class AsyncRunner(RunnerBase):
    """Runs jobs on a store: through each loop's coalescer, or directly in a transaction."""

    def __init__(
        self,
        jobs: JobFactory,
        outcomes: Outcomes,
        apply: Callable[[Sequence[Command]], Awaitable[list[Reply]]],
        *,
        coalesce: bool = True,
        max_in_flight: int = 1,
        transaction: AsyncCallerTransaction | None = None,
        connection: Any = None,
    ) -> None:
        super().__init__(
            jobs, outcomes, coalesce=coalesce, max_in_flight=max_in_flight, connection=connection
        )
        self._apply = apply
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
        loop = asyncio.get_running_loop()
        state = self._loop_states.get(loop)
        return self._make_loop_state(loop) if state is None else state

    def _make_loop_state(self, loop: asyncio.AbstractEventLoop) -> LoopState:
        made = make_loop_state(self._apply, self._renew, self._clock, self._max_in_flight)
        with self._lock:
            # Loops come and go, one after the other, where every task has an asyncio.run.
            known = self._loop_states.items()
            self._loop_states = {old: state for old, state in known if not old.is_closed()}
            return self._loop_states.setdefault(loop, made)

    async def drain_all(self, seconds: float) -> None:
        """Drain every loop, each by itself."""
        with self._lock:
            states = dict(self._loop_states)
        await asyncio.gather(drain(self.loop_state(), seconds), drain_others(states, seconds))

    # --- jobs ---------------------------------------------------------------------------------

    async def run(self, job: Job, body: AsyncBody[T]) -> Result[T]:
        """Run a job to its end: its result, or the error to raise."""
        progress = AsyncProgress(self.loop_state(), job.task)
        if self._transaction is not None:
            # The caller's connection belongs to the caller's task; so does the attempt.
            with hold_connection(self._connection, asyncio.current_task()):
                recorded = self._record(job, await self._drive(progress, job, body))
        else:
            # A task of its own, which outlives a cancelled caller: only this future is cancelled
            # with the caller, never the task.
            loop = asyncio.get_running_loop()
            done: asyncio.Future[Recorded | None] = loop.create_future()
            try:
                task = start_task(loop, self._run_in_task(job, body, progress, done))
                if not task.done():
                    progress.loop_state.tasks.add(task)
                recorded = await done
            except BaseException:
                progress.is_abandoned = True
                raise
        if recorded is None:
            raise asyncio.CancelledError  # it was waiting for another attempt at the shutdown
        return conclude(job, *recorded)

    async def _run_in_task(
        self,
        job: Job,
        body: AsyncBody[Any],
        progress: AsyncProgress,
        done: asyncio.Future[Recorded | None],
    ) -> None:
        """The attempt's task, from claim to outcome; sets `done` if its caller still waits."""
        engine: object = None
        try:
            progress.attempt_task = asyncio.current_task()
            engine = self.engine()  # held: else a caller that leaves could drop it while this runs
            recorded = self._record(job, await self._drive(progress, job, body))
            if not done.done():
                done.set_result(recorded)
        except GeneratorExit:
            raise  # its loop is gone: nothing can be awaited any more
        except BaseException as error:
            # Interrupted (a signal's handler), or the user's `recover` raised: first the key.
            for _ in range(CLOSE_TRIES):
                with suppress(BaseException):  # interrupted again, or the store failed
                    await self._close_interrupted(progress, job)
                    break
            if done.done():
                raise  # the caller has left: this goes to the loop's exception handler
            done.set_exception(error)
        finally:
            if progress.attempt_task is not None:
                progress.loop_state.tasks.discard(progress.attempt_task)
            del engine

    def _record(self, job: Job, outcome: AttemptOutcome | None) -> Recorded | None:
        """Record an outcome, also if nobody waits for it any more."""
        if outcome is None:
            return None
        if outcome.deferred is not None and self._transaction is None:
            self.loop_state().deferred_writer.add(outcome.deferred)
        return outcome, self._outcomes.record(job, outcome)

    async def look(self, id: bytes) -> Seen:
        reply = (await self.apply(Look(id), leave)).reply
        if isinstance(reply, StoreUnavailable):
            raise reply
        assert isinstance(reply, Seen)
        return reply

    async def recover(self, job: Job, record: Record) -> State | None:
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
                result = await self.apply(effect.command, leave)
            elif type(effect) is Sleep:
                await sleep(self._clock, self._clock.jitter(effect.us))
                result = self._clock.now()
            else:
                assert type(effect) is Recover
                result = await self._recover(effect, job)

    async def _drive(
        self, progress: AsyncProgress, job: Job, body: AsyncBody[Any]
    ) -> AttemptOutcome | None:
        """The outcome; None if the caller left before anything was claimed."""
        flow = attempt_flow(progress.task)
        result: object = None
        deadline: int | None = None
        shared: AsyncSharedClaims | None = None
        if self._transaction is None:
            where = (progress.loop_state.duplicates, self._running, self._clock)
            shared = AsyncSharedClaims(*where, self.apply, progress.abandon)
        try:
            while True:
                try:
                    effect = flow.send(result)
                except StopIteration as stop:
                    progress.ended = True
                    outcome: AttemptOutcome = stop.value
                    return outcome
                if type(effect) is ApplyCommand:
                    if shared is None:
                        result = await self.apply(effect.command, progress.abandon, deadline)
                    else:
                        result = await shared.apply(effect, deadline)
                elif type(effect) is RunBody:
                    result = await self._run_body(progress, effect.grant, job, body)
                    deadline = getattr(result, "deadline", None)
                elif type(effect) is Sleep:
                    if shared is not None and effect.watch is not None:
                        result = await shared.sleep(effect)
                    else:
                        result = await self._sleep(effect, progress)
                    # While it waits for another attempt nothing is claimed. In any other pause the
                    # claim may have been made: the flow gives it back, its body not run.
                    if progress.is_abandoned and effect.watch is not None and not progress.begun:
                        progress.ended = True
                        return None
                else:
                    assert type(effect) is Recover
                    result = await self._recover(effect, job)
        finally:
            if shared is not None:
                states = tuple(self._loop_states.values())
                shared.end([state.duplicates for state in states])

    async def _close_interrupted(self, progress: AsyncProgress, job: Job) -> None:
        """Close the key of an interrupted run. If this is interrupted itself, it is done again."""
        if progress.ended:
            return
        task, attempt = progress.task, progress.attempt
        if attempt is not None:
            self._running.remove(attempt)
            end_body(progress, attempt)
        if attempt is None or not progress.begun:
            # Nothing has happened, so a claim that may have been made is given back.
            for owner in progress.owners():
                release = Release(task.id, owner, None)
                reply = (await self.apply(release, progress.abandon)).reply
                if isinstance(reply, StoreUnavailable):
                    self.loop_state().deferred_writer.add(release)
        else:
            ended = body_result(progress, attempt, job)
            flow = close(task, attempt._grant, ended)
            result: object = None
            try:
                while True:
                    effect = flow.send(result)
                    if type(effect) is ApplyCommand:
                        result = await self.apply(effect.command, progress.abandon, ended.deadline)
                    else:
                        assert type(effect) is Sleep
                        result = await self._sleep(effect, progress)
            except StopIteration as stop:
                self._record(job, stop.value)
        progress.ended = True

    # --- effects ------------------------------------------------------------------------------

    async def apply(
        self, command: Command, interrupted: Callable[[], None], deadline: int | None = None
    ) -> CommandResult:
        """Apply one command to the store; `deadline` is that of the command's owner."""
        if self._coalesce:
            return await self.loop_state().coalescer.apply(command, interrupted, deadline)
        now = self._clock.now
        sent_at = now()
        reply: Reply | StoreUnavailable
        try:
            (reply,) = await self._apply((command,))
        except StoreUnavailable as error:
            reply = error
        return CommandResult(reply, sent_at, now())

    async def _renew(self, command: Command) -> CommandResult:
        return await self.apply(command, leave)

    async def _sleep(self, effect: Sleep, progress: AsyncProgress) -> int:
        try:
            await sleep(self._clock, self._clock.jitter(effect.us))
        except asyncio.CancelledError:
            progress.abandon()
        return self._clock.now()

    async def _recover(self, effect: Recover, job: Job) -> Recovered | None:
        assert job.policy.recover is not None
        recovery = job.policy.recover(self._outcomes.unknown_key(job, effect.record))
        if inspect.isawaitable(recovery):
            recovery = await recovery
        return self._outcomes.recovered(job, recovery)

    async def _run_body(
        self, progress: AsyncProgress, grant: Grant, job: Job, body: AsyncBody[Any]
    ) -> Returned | Raised | Overtaken | StartedTooLate:
        if progress.is_abandoned:
            error = NotStarted("the caller was cancelled before the operation began")
            return Raised(error, grant.deadline)
        refusal = self.jobs.refusal(job)
        if refusal is not None:
            return Raised(refusal, grant.deadline)
        attempt = AsyncAttempt(self, job, grant)
        if progress.attempt is None and self._events.subscribers:
            self._emit_claimed(job, grant)
        progress.attempt = attempt
        if self._transaction is not None:
            return await self._run_in_transaction(self._transaction, progress, attempt, job, body)
        if starts_too_late(grant, self._clock.now()):
            progress.spare = new_owner()
            return StartedTooLate(progress.spare)
        task = progress.attempt_task
        assert task is not None
        attempt._on_lost = task.cancel
        progress.loop_state.heartbeat.watch(attempt)
        enter_body(attempt)
        self._running.add(job.task.fingerprint, attempt)
        progress.begun = True
        try:
            await call_body(progress, job, attempt, body)
        except BaseException as error:
            if progress.value is not NOTHING:
                raise  # a signal's handler, after the body: its value is stored first
            progress.error = error
        self._running.remove(attempt)
        end_body(progress, attempt)
        result = body_result(progress, attempt, job)
        cancelled = isinstance(result, Raised) and isinstance(result.error, asyncio.CancelledError)
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
        try:
            await call_body(progress, job, attempt, body)
            check_begun(progress, attempt, job)
        except BaseException as error:
            await transaction.rollback_to_savepoint()
            return Raised(error, attempt._repeat_until)
        finally:
            leave_body(token)
            attempt._close()
        await transaction.release_savepoint()
        return pack(job.codec, job.policy, progress.value, attempt._repeat_until)

    async def rollback(self, attempt: AttemptBase) -> None:
        attempt._check_rollback(nesting_depth(self._connection))
        assert self._transaction is not None
        await self._transaction.rollback_to_savepoint()
        await self._transaction.set_savepoint()
