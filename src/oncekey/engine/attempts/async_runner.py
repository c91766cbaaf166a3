"""Runs jobs on an event loop.

Each attempt is a task of its own: a caller that is cancelled leaves at once, while the attempt goes
on to its end and its outcome is stored (I14). An attempt that is cancelled before its body began
gives the key back.

The effects of the flow are performed in attempt_driver.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from oncekey.core.commands import Look, Resolve, Seen
from oncekey.core.effects import (
    AttemptOutcome,
    Effect,
    Recover,
    Sleep,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.flow_driver import drive_async
from oncekey.core.record import Record, State
from oncekey.core.recovery import recover as recover_flow
from oncekey.engine.attempts.async_attempt import leave
from oncekey.engine.attempts.async_body import AsyncBody, AsyncProgress, Ended
from oncekey.engine.attempts.attempt_driver import AsyncDriver
from oncekey.engine.attempts.runner_base import (
    CLOSE_TRIES,
    HeldConnection,
)
from oncekey.engine.batches.batch import Sent
from oncekey.engine.clock import sleep
from oncekey.engine.event_loop import (
    drain,
    drain_others,
    start_task,
    wrong_event_loop,
)
from oncekey.engine.jobs import Job
from oncekey.engine.results import Result, conclude

T = TypeVar("T")


async def _no_body(attempt: object) -> None:
    """For an attempt that goes on after its body."""


class AsyncRunner(AsyncDriver):
    """Runs jobs, each in a task of its own or, in a caller's transaction, in the caller's."""

    async def drain_all(self, seconds: float) -> None:
        """Drain every loop, each by itself."""
        with self._lock:
            states = dict(self._loop_states)
        await asyncio.gather(drain(self.loop_state(), seconds), drain_others(states, seconds))

    # --- jobs ---------------------------------------------------------------------------------

    async def claim_many(self, jobs: Sequence[Job]) -> list[Sent]:
        """Claim the keys of several jobs in batches of their own. Each job must then be run, with
        the reply to its claim; so this must not be cancelled."""
        return await self.loop_state().coalescer.apply_many([job.claim for job in jobs])

    async def run(self, job: Job, body: AsyncBody[T], sent: Sent | None = None) -> Result[T]:
        """Run a job to its end: its result, or the error to raise. `sent` is the reply to its claim
        if `claim_many` has sent it."""
        if self._transaction is not None:
            return await self._run_in_callers_transaction(job, body)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise wrong_event_loop() from None
        state = self._loop_states.get(loop) or self._make_loop_state(loop)
        progress = AsyncProgress(state, job)
        progress.sent = sent
        # A task of its own, which outlives a cancelled caller: only this future is cancelled with
        # the caller, never the task.
        done: Ended = loop.create_future()
        progress.done = done
        try:
            task = start_task(loop, self._run_in_task(job, body, progress))
            if not task.done():
                progress.attempt_task = progress.attempt_task or task
                if not progress.is_early:
                    state.tasks.add(task)
            elif not done.done():
                task.result()  # raises what interrupted it before its first line
            ended = await done
        except BaseException:
            progress.is_abandoned = True
            begun = progress.attempt_task
            if begun is not None and not progress.is_early and not begun.done():
                state.tasks.add(begun)  # this was interrupted before it could do so
            raise
        if isinstance(ended, AttemptOutcome):
            return conclude(job, ended)
        if ended is None:
            raise asyncio.CancelledError  # it was waiting for another attempt at the shutdown
        return ended  # of the body's type, which the future does not know

    async def _run_in_task(
        self,
        job: Job,
        body: AsyncBody[Any],
        progress: AsyncProgress,
        task: asyncio.Task[Any] | None = None,
    ) -> None:
        """The attempt's task, from claim to outcome; sets `done` if its caller still waits. If the
        body finishes early, another call of this, which is given its task, goes on from there to
        the outcome, and here is left what the body still does."""
        engine: object = None
        is_early, is_anothers = task is not None, False
        done, state = progress.done, progress.loop_state
        assert done is not None
        assert state is not None
        try:
            if task is not None:
                progress.is_early = True  # not before: from here on this call closes the key
                # What the body still does is not the attempt's any more. Nor does a task become
                # the attempt's for good that has another one: a body of a run in the body.
                state.tasks.discard(cast(Any, progress.attempt_task))
                is_anothers = task in state.tasks
                state.tasks.add(task)
            # By its first step the caller has set it, unless the task was started at once.
            task = progress.attempt_task = task or progress.attempt_task or asyncio.current_task()
            if progress.is_abandoned and not is_early and task is not None:
                state.tasks.add(task)  # a caller that was interrupted may have been too early to
            engine = self.engine()  # held: else a caller that leaves could drop it while this runs
            go_on = self._go_on if is_early else self._attempt
            ended = await go_on(progress, job, body)
            if progress.is_early is is_early:
                if type(ended) is AttemptOutcome:
                    self._record(progress, ended)
                if not done.done():
                    done.set_result(ended)
        except GeneratorExit:
            raise  # its loop is gone: nothing can be awaited any more
        except BaseException as error:
            if progress.is_early is not is_early:
                if progress.ended or progress.attempt_task is not task:
                    raise  # of what the body did after its outcome, or while another task stores it
                is_early = True  # interrupted while the body waited for its outcome to be stored
            # Interrupted (a signal's handler), or the user's `recover` raised: first the key.
            await self._close_tried(progress, job)
            if done.done():
                raise  # the caller has left: this goes to the loop's exception handler
            done.set_exception(error)
        finally:
            if progress.is_early is is_early:
                self._end(progress)
            if task is not None and not is_anothers:
                state.tasks.discard(task)
            del engine

    async def finish_early(self, progress: AsyncProgress) -> None:
        """See the function of this name in attempt.py, which has put the outcome in `progress`."""
        task = asyncio.current_task()
        assert task is not None
        progress.was_cancelled = False
        await self._run_in_task(progress.job, _no_body, progress, task)
        if progress.was_cancelled:
            raise asyncio.CancelledError  # it came while the outcome was being stored

    async def _close_tried(self, progress: AsyncProgress, job: Job) -> None:
        for _ in range(CLOSE_TRIES):
            with suppress(BaseException):  # interrupted again, or the store failed
                await self._close_interrupted(progress, job)
                break

    def _end(self, progress: AsyncProgress) -> None:
        """The attempt is over: those who wait for it, on any loop, are woken."""
        for state in tuple(self._loop_states.values()):
            state.shared.end(progress)

    async def look(self, id: bytes) -> Seen:
        reply = (await self.apply(Look(id), leave)).reply
        if isinstance(reply, StoreUnavailable):
            raise reply
        assert isinstance(reply, Seen)
        return reply

    async def recover(self, job: Job, record: Record) -> State | None:
        """Decide an unknown key by its `recover`; the state it was given, None for none yet."""

        async def perform(effect: Effect) -> object:
            if type(effect) is Resolve:
                return await self.apply(effect, leave)
            if type(effect) is Sleep:
                await sleep(self._clock, self._clock.jitter(effect.us))
                return self._clock.now()
            assert type(effect) is Recover
            return await self._recover(effect, job)

        return await drive_async(recover_flow(record), perform)

    async def _run_in_callers_transaction(self, job: Job, body: AsyncBody[T]) -> Result[T]:
        """The caller's connection belongs to the caller's task; so does the attempt."""
        progress = AsyncProgress(None, job)
        with HeldConnection(self._connection, asyncio.current_task()):
            outcome = await self._drive(progress, job, body, [])
        self._record(progress, outcome)
        assert outcome is not None
        return conclude(job, outcome)
