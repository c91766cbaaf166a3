"""Drives the flow on an event loop.

Each attempt is a task of its own: a caller that is cancelled leaves at once, the attempt goes on
to its end and its outcome is stored (I14). Cancelled before the body began, it gives the key back.

Owns the asyncio answers to each effect. The rules are in core/attempt_flow.py.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
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
    Control,
    call_body,
    let_go,
    refuse_unstarted,
    result_of_body,
)
from oncekey.engine.aio.coalescer import AsyncCoalescer
from oncekey.engine.aio.deferred_writer import AsyncDeferredWriter
from oncekey.engine.aio.heartbeat import AsyncHeartbeat, sleep
from oncekey.engine.aio.loop_state import LoopState, drain, drain_others
from oncekey.engine.aio.shared_claims import AsyncSharedClaims
from oncekey.engine.attempt_base import AttemptBase
from oncekey.engine.clock import new_owner
from oncekey.engine.context import enter as enter_body
from oncekey.engine.context import leave as leave_body
from oncekey.engine.duplicates import Duplicates
from oncekey.engine.jobs import Job, Kernel
from oncekey.engine.results import Result
from oncekey.engine.runner_base import MAKE_UP_TRIES, NOTHING
from oncekey.engine.turns import depth, turn

T = TypeVar("T")
Ending = tuple[AttemptOutcome, Stored | None]


class AsyncRunner:
    """Runs jobs on a store, through each loop's coalescer or, in a transaction, directly."""

    def __init__(
        self,
        kernel: Kernel,
        apply: Callable[[Sequence[Command]], Awaitable[list[Reply]]],
        *,
        coalesce: bool = True,
        max_in_flight: int = 1,
        enlisted: AsyncCallerTransaction | None = None,
        connection: Any = None,
    ) -> None:
        self.kernel = kernel
        self._apply = apply
        self._coalesce = coalesce
        self._max_in_flight = max_in_flight
        self._enlisted = enlisted
        self._connection = connection
        self._clock = kernel.clock
        self.engine: Callable[[], object] = lambda: None
        self.reset()

    def reset(self) -> None:
        """No loops, no tasks: at the start, and in a forked child."""
        self._lock = threading.Lock()
        self._homes: dict[asyncio.AbstractEventLoop, LoopState] = {}
        if self._enlisted is None:
            self.kernel.reset()

    def home(self) -> LoopState:
        loop = asyncio.get_running_loop()
        home = self._homes.get(loop)
        return self._make_home(loop) if home is None else home

    def _make_home(self, loop: asyncio.AbstractEventLoop) -> LoopState:
        made = LoopState(
            AsyncCoalescer(self._apply, max_in_flight=self._max_in_flight, now=self._clock.now),
            Duplicates(),
            AsyncHeartbeat(self._clock, self._renew),
            AsyncDeferredWriter(self._renew, self._clock),
            set(),
        )
        with self._lock:
            # Loops come and go, one after the other, where every task has an asyncio.run.
            self._homes = {old: home for old, home in self._homes.items() if not old.is_closed()}
            return self._homes.setdefault(loop, made)

    async def run(self, job: Job, body: AsyncBody[T]) -> Result[T]:
        control = Control(self.home(), self.kernel.task(job))
        if self._enlisted is not None:
            # The caller's connection belongs to the caller's task; so does the attempt.
            with turn(self._connection, asyncio.current_task()):
                ending = self._settled(job, await self._drive(control, job, body))
        else:
            # A task of its own, which outlives a cancelled caller: only this future is cancelled
            # with the caller, never the task.
            loop = asyncio.get_running_loop()
            done: asyncio.Future[Ending | None] = loop.create_future()
            try:
                task = _start(loop, self._live(job, body, control, done))
                if not task.done():
                    control.home.tasks.add(task)
                ending = await done
            except BaseException:
                control.abandoned = True
                raise
        if ending is None:
            raise asyncio.CancelledError  # it was waiting for its turn when all was shut down
        outcome, stored = ending
        return self.kernel.conclude(job, outcome, stored)

    async def _live(
        self,
        job: Job,
        body: AsyncBody[Any],
        control: Control,
        done: asyncio.Future[Ending | None],
    ) -> None:
        """The attempt's task, from claim to outcome; tells its caller, if that still waits."""
        engine: object = None
        try:
            control.own = asyncio.current_task()
            engine = self.engine()  # held: else a caller that leaves could drop it while this runs
            ending = self._settled(job, await self._drive(control, job, body))
            if not done.done():
                done.set_result(ending)
        except GeneratorExit:
            raise  # its loop is gone: nothing can be awaited any more
        except BaseException as error:
            await self._put_in_order(control, job)
            if done.done():
                raise  # the caller has left: the loop's exception handler is told
            done.set_exception(error)
        finally:
            if control.own is not None:
                control.home.tasks.discard(control.own)
            del engine

    def _settled(self, job: Job, outcome: AttemptOutcome | None) -> Ending | None:
        """Tell and remember how it ended, also when nobody waits for it any more."""
        if outcome is None:
            return None
        if outcome.deferred is not None and self._enlisted is None:
            self.home().offering.add(outcome.deferred)
        return outcome, self.kernel.settle(job, outcome)

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

    async def drain(self, seconds: float) -> None:
        """Let the attempts of this loop end; after `seconds` cancel what is left, and let that
        close its keys."""
        await drain(self.home(), seconds)

    async def drain_all(self, seconds: float) -> None:
        """The same for every loop, each by itself."""
        with self._lock:
            homes = dict(self._homes)
        await asyncio.gather(self.drain(seconds), drain_others(homes, seconds))

    async def _drive(
        self, control: Control, job: Job, body: AsyncBody[Any]
    ) -> AttemptOutcome | None:
        """The outcome; None where the caller left before anything was claimed."""
        flow = attempt_flow(control.task)
        result: object = None
        deadline: int | None = None
        shared: AsyncSharedClaims | None = None
        if self._enlisted is None:
            places = (control.home.duplicates, self.kernel.holders)
            shared = AsyncSharedClaims(*places, self._clock, self.apply, control.abandon)
        try:
            while True:
                try:
                    effect = flow.send(result)
                except StopIteration as stop:
                    control.ended = True
                    outcome: AttemptOutcome = stop.value
                    return outcome
                if type(effect) is ApplyCommand:
                    if shared is None:
                        result = await self.apply(effect.command, control.abandon, deadline)
                    else:
                        result = await shared.apply(effect, deadline)
                elif type(effect) is RunBody:
                    result = await self._run_body(control, effect.grant, job, body)
                    deadline = getattr(result, "deadline", None)
                elif type(effect) is Sleep:
                    if shared is not None and effect.watch is not None:
                        result = await shared.sleep(effect)
                    else:
                        result = await self._sleep(effect, control)
                    # Waiting for another's attempt nothing is claimed. Any other pause is within a
                    # claim that may have been taken: the flow gives it back, its body not run.
                    if control.abandoned and effect.watch is not None and not control.begun:
                        control.ended = True
                        return None
                else:
                    assert type(effect) is Recover
                    result = await self._recover(effect, job)
        finally:
            if shared is not None:
                shared.end([home.duplicates for home in tuple(self._homes.values())])

    async def _put_in_order(self, control: Control, job: Job) -> None:
        """Interrupted anywhere (a signal's handler, the user's recover): first the key."""
        for _ in range(MAKE_UP_TRIES):
            with suppress(BaseException):  # told again, or the store failed
                await self._make_up(control, job)
                return

    async def _make_up(self, control: Control, job: Job) -> None:
        """Leave the key as it has to be left. May itself be interrupted, and is then done again."""
        if control.ended:
            return
        task, attempt = control.task, control.attempt
        if attempt is not None:
            self.kernel.holders.remove(attempt)
            let_go(control, attempt)
        if attempt is None or not control.begun:
            # Nothing has happened, so a claim that may have been taken is given back.
            for owner in control.owners():
                release = Release(task.id, owner, None)
                reply = (await self.apply(release, control.abandon)).reply
                if isinstance(reply, StoreUnavailable):
                    self.home().offering.add(release)
        else:
            ended = result_of_body(self.kernel, control, attempt, job)
            flow = close(task, attempt._grant, ended)
            result: object = None
            try:
                while True:
                    effect = flow.send(result)
                    if type(effect) is ApplyCommand:
                        result = await self.apply(effect.command, control.abandon, ended.deadline)
                    else:
                        assert type(effect) is Sleep
                        result = await self._sleep(effect, control)
            except StopIteration as stop:
                self._settled(job, stop.value)
        control.ended = True

    async def apply(
        self, command: Command, interrupted: Callable[[], None], deadline: int | None = None
    ) -> CommandResult:
        """What the store said, and when it was asked; `deadline` is the command's owner's."""
        if self._coalesce:
            return await self.home().coalescer.apply(command, interrupted, deadline)
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

    async def _run_body(
        self, control: Control, grant: Grant, job: Job, body: AsyncBody[Any]
    ) -> Returned | Raised | Overtaken | StartedTooLate:
        if control.abandoned:
            error = NotStarted("the caller was cancelled before the operation began")
            return Raised(error, grant.deadline)
        refusal = self.kernel.refusal(job)
        if refusal is not None:
            return Raised(refusal, grant.deadline)
        attempt = AsyncAttempt(self, job, grant)
        if control.attempt is None:
            self.kernel.tell_claimed(job, grant)
        control.attempt = attempt
        if self._enlisted is None and starts_too_late(grant, self._clock.now()):
            control.spare = new_owner()
            return StartedTooLate(control.spare)
        if self._enlisted is not None:
            return await self._run_enlisted(self._enlisted, control, attempt, job, body)
        task = control.own
        assert task is not None
        attempt._on_lost = task.cancel
        control.home.heart.watch(attempt)
        enter_body(attempt)
        self.kernel.holders.add(job.fingerprint, attempt)
        control.begun = True
        try:
            await call_body(control, job, attempt, body)
        except BaseException as error:
            if control.value is not NOTHING:
                raise  # a signal's handler, after the body: its value is stored first
            control.error = error
        self.kernel.holders.remove(attempt)
        let_go(control, attempt)
        result = result_of_body(self.kernel, control, attempt, job)
        cancelled = isinstance(result, Raised) and isinstance(result.error, asyncio.CancelledError)
        return Overtaken() if cancelled and attempt._lost else result  # the cancellation was ours

    async def _run_enlisted(
        self,
        enlisted: AsyncCallerTransaction,
        control: Control,
        attempt: AsyncAttempt,
        job: Job,
        body: AsyncBody[Any],
    ) -> Returned | Raised:
        """In the caller's transaction: no lease to keep, and a raising body's rows are undone."""
        attempt._enter_transaction(depth(self._connection))
        await enlisted.set_savepoint()
        here = enter_body(attempt)
        try:
            await call_body(control, job, attempt, body)
            refuse_unstarted(self.kernel, control, attempt, job)
        except BaseException as error:
            await enlisted.rollback_to_savepoint()
            return Raised(error, attempt._repeat_until)
        finally:
            leave_body(here)
            attempt._close()
        await enlisted.release_savepoint()
        return self.kernel.pack(job.codec, job.policy, control.value, attempt._repeat_until)

    async def rollback(self, attempt: AttemptBase) -> None:
        attempt._check_undo(depth(self._connection))
        assert self._enlisted is not None
        await self._enlisted.rollback_to_savepoint()
        await self._enlisted.set_savepoint()

    async def _sleep(self, effect: Sleep, control: Control) -> int:
        try:
            await sleep(self._clock, self._clock.jitter(effect.us))
        except asyncio.CancelledError:
            control.abandon()
        return self._clock.now()

    async def _recover(self, effect: Recover, job: Job) -> Recovered | None:
        assert job.policy.recover is not None
        result = job.policy.recover(self.kernel.unknown_key(job, effect.record))
        if inspect.isawaitable(result):
            result = await result
        return self.kernel.recovered(job, result)


def _start(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task; where Python can, it runs at once up to its first real wait."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    return loop.create_task(work)
