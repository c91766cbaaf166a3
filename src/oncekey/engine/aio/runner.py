"""Runs jobs on an event loop.

The first claim is sent from the caller's own task, for a replay or a rejection ends with it. From
there on an attempt is a task of its own: a caller that is cancelled leaves at once, while the
attempt goes on to its end and its outcome is stored (I14). A claim whose caller is cancelled goes
on in such a task too (hand_over.py). An attempt that is cancelled before its body began gives the
key back.

The effects of the flow are performed in attempt_driver.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar, cast

from oncekey.core.attempt_flow import Flow
from oncekey.core.commands import Claim, Look, Resolve, Seen
from oncekey.core.effects import (
    AttemptOutcome,
    CommandResult,
    Effect,
    Recover,
    Sleep,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import Record, State
from oncekey.core.recovery import recover as recover_flow
from oncekey.engine.aio.attempt import leave
from oncekey.engine.aio.attempt_driver import AsyncDriver
from oncekey.engine.aio.body import (
    AsyncBody,
    AsyncProgress,
)
from oncekey.engine.aio.hand_over import Work, in_callers_task, resumed
from oncekey.engine.aio.heartbeat import sleep
from oncekey.engine.aio.loop_state import (
    LoopState,
    drain,
    drain_others,
    start_task,
)
from oncekey.engine.jobs import Job
from oncekey.engine.results import Result, conclude
from oncekey.engine.runner_base import (
    CLOSE_TRIES,
    flow_of,
    hold_connection,
)

T = TypeVar("T")
Done = asyncio.Future[AttemptOutcome | None]


class AsyncRunner(AsyncDriver):
    """Runs jobs, each in its caller's task and then in one of its own."""

    async def drain_all(self, seconds: float) -> None:
        """Drain every loop, each by itself."""
        with self._lock:
            states = dict(self._loop_states)
        await asyncio.gather(drain(self.loop_state(), seconds), drain_others(states, seconds))

    # --- jobs ---------------------------------------------------------------------------------

    async def run(self, job: Job, body: AsyncBody[T]) -> Result[T]:
        """Run a job to its end: its result, or the error to raise."""
        if self._transaction is not None:
            return await self._run_in_callers_transaction(job, body)
        state = self.loop_state()
        progress = AsyncProgress(state, job)
        flow = flow_of(job)
        try:
            effect = await self._first_claim(state, progress, flow, job, body)
            outcome = progress.outcome
            if effect is not None:
                # A task of its own, which outlives a cancelled caller: only this future is
                # cancelled with the caller, never the task.
                loop = asyncio.get_running_loop()
                done: Done = loop.create_future()
                work = self._drive(progress, job, body, flow, effect)
                attempt = self._run_in_task(job, progress, work, done)
                progress.attempt_task = task = start_task(loop, attempt)
                if not task.done():
                    state.tasks.add(task)
                outcome = await done
        except BaseException as error:
            progress.is_abandoned = True
            state.claims.replied(progress)
            if progress.attempt_task is not None:
                if not progress.attempt_task.done():
                    state.tasks.add(progress.attempt_task)
            elif not isinstance(error, GeneratorExit):
                # A signal's handler raised before there was a task to close the key.
                await self._close_tried(progress, job)
                self._end(progress)
            raise
        if outcome is None:
            raise asyncio.CancelledError  # it was waiting for another attempt at the shutdown
        return conclude(job, outcome)

    async def _first_claim(
        self,
        state: LoopState,
        progress: AsyncProgress,
        flow: Flow,
        job: Job,
        body: AsyncBody[Any],
    ) -> Effect | None:
        """Claim the key in the caller's task, and give the flow the reply. Returns its next
        effect; None if that was the end, and the outcome is in `progress`."""
        work = state.shared.apply(progress, cast(Claim, flow.send(None)))

        def hand_over() -> None:
            progress.is_abandoned = True
            rest = self._finish_claim(progress, job, body, flow, resumed(work))
            progress.attempt_task = asyncio.create_task(
                self._run_in_task(job, progress, rest, None)
            )

        state.claims.runs.add(progress)
        try:
            result = await in_callers_task(work, hand_over)
        finally:
            state.claims.replied(progress)
        try:
            return flow.send(result)
        except StopIteration as stop:
            progress.ended = True
            progress.outcome = stop.value
        self._end(progress)
        self._record(job, progress.outcome)
        return None

    async def _finish_claim(
        self,
        progress: AsyncProgress,
        job: Job,
        body: AsyncBody[Any],
        flow: Flow,
        claimed: Awaitable[CommandResult],
    ) -> AttemptOutcome | None:
        """What is left of an attempt whose caller left while the first claim was under way."""
        result = await claimed
        return await self._drive(progress, job, body, flow, None, result)

    async def _run_in_task(
        self,
        job: Job,
        progress: AsyncProgress,
        work: Work[AttemptOutcome | None],
        done: Done | None,
    ) -> None:
        """The attempt's task, up to its outcome; sets `done` if its caller still waits."""
        engine: object = None
        try:
            progress.attempt_task = asyncio.current_task()
            engine = self.engine()  # held: else a caller that leaves could drop it while this runs
            outcome = await work
            self._record(job, outcome)
            if done is not None and not done.done():
                done.set_result(outcome)
        except GeneratorExit:
            raise  # its loop is gone: nothing can be awaited any more
        except BaseException as error:
            # Interrupted (a signal's handler), or the user's `recover` raised: first the key.
            await self._close_tried(progress, job)
            if done is None or done.done():
                raise  # the caller has left: this goes to the loop's exception handler
            done.set_exception(error)
        finally:
            state = self._end(progress)
            state.tasks.discard(progress.attempt_task)
            del engine

    async def _close_tried(self, progress: AsyncProgress, job: Job) -> None:
        for _ in range(CLOSE_TRIES):
            with suppress(BaseException):  # interrupted again, or the store failed
                await self._close_interrupted(progress, job)
                break

    def _end(self, progress: AsyncProgress) -> LoopState:
        """The attempt is over: those who wait for it, on any loop, are woken. Returns the state of
        its own loop."""
        state = progress.loop_state
        assert state is not None
        for other in tuple(self._loop_states.values()):
            other.shared.end(progress)
        return state

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
            if type(effect) is Resolve:
                result = await self.apply(effect, leave)
            elif type(effect) is Sleep:
                await sleep(self._clock, self._clock.jitter(effect.us))
                result = self._clock.now()
            else:
                assert type(effect) is Recover
                result = await self._recover(effect, job)

    async def _run_in_callers_transaction(self, job: Job, body: AsyncBody[T]) -> Result[T]:
        """The caller's connection belongs to the caller's task; so does the attempt."""
        progress = AsyncProgress(None, job)
        with hold_connection(self._connection, asyncio.current_task()):
            outcome = await self._drive(progress, job, body, flow_of(job), None)
        self._record(job, outcome)
        assert outcome is not None
        return conclude(job, outcome)
