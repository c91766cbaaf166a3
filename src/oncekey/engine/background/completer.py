"""Finishes abandoned operations: the threads of a `Once`, and the tasks of an `AsyncOnce`.

What is to be done, and in which order, is in completion_flow.py; here it is done.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from oncekey.core.commands import Look, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.core.flow_driver import drive, drive_async
from oncekey.core.store import AsyncStore, Store
from oncekey.engine.attempts.async_runner import AsyncRunner
from oncekey.engine.attempts.runner import Runner
from oncekey.engine.background.completion_flow import (
    WORKERS,
    Action,
    CompleteAll,
    Completed,
    CompleterBase,
    Completion,
    Effect,
    Failed,
    ListUnfinished,
    OnCompletion,
    ReadRecord,
    ReadRecords,
    RecoverKey,
    RunAgain,
    notify,
)
from oncekey.engine.keys.administration import list_unfinished, run_plan, run_plan_async
from oncekey.engine.registry import Registry

STOP_SECONDS: Final = 30.0


class Completer(CompleterBase):
    """One batch at a time; several engines may complete one store, claims keep them apart."""

    def __init__(self, store: Store, runner: Runner, registry: Registry) -> None:
        super().__init__(registry, runner.jobs)
        self._store = store
        self._runner = runner
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def stop(self) -> None:
        """Begin nothing more, and wait for what was begun: its outcome has to be stored."""
        self._stop.set()
        if self._lock.acquire(timeout=STOP_SECONDS):
            self._lock.release()

    def complete(self, limit: int, on_completion: OnCompletion = lambda done: None) -> Completed:
        """Complete a batch, unless one is under way."""
        if not self._lock.acquire(blocking=False):
            return Completed(watching=len(self.watchlist))
        try:
            perform = partial(self._perform, on_completion)
            return drive(self.batch(limit, on_completion), perform)
        finally:
            self._lock.release()

    def _perform(self, on_completion: OnCompletion, effect: Effect) -> object:
        if isinstance(effect, ListUnfinished):
            plan = list_unfinished(effect.after, effect.limit)
            return run_plan(self._store, plan)
        if isinstance(effect, ReadRecords):
            return self._read(effect.ids)
        if isinstance(effect, ReadRecord):
            return self._read_one(effect.id)
        if isinstance(effect, CompleteAll):
            workers = min(WORKERS, len(effect.actions))
            with ThreadPoolExecutor(workers, "oncekey-completer") as pool:
                done = pool.map(partial(self._complete_one, on_completion), effect.actions)
                return list(filter(None, done))
        try:
            if isinstance(effect, RecoverKey):
                return self._runner.recover(effect.action.job, effect.action.record)
            assert isinstance(effect, RunAgain)
            return self._runner.run(effect.action.job, effect.action.body)
        except BaseException as error:  # the user's code runs here; the other actions must go on
            return Failed(error)

    def _complete_one(self, on_completion: OnCompletion, action: Action) -> Completion | None:
        if self._stop.is_set():
            return None
        perform = partial(self._perform, on_completion)
        done = drive(self.complete_one(action), perform)
        notify(on_completion, done)
        return done

    def _read(self, ids: Sequence[bytes]) -> list[Seen | None]:
        """Read all at once; one by one if that fails, so that one record holds up no other."""
        try:
            replies = self._store.apply([Look(id) for id in ids])
        except StoreUnavailable:
            raise
        except Exception:
            return [self._read_one(id) for id in ids]
        return [seen for seen in replies if isinstance(seen, Seen)]

    def _read_one(self, id: bytes) -> Seen | None:
        try:
            (seen,) = self._store.apply([Look(id)])
        except Exception:  # the store is down, or this record is of another release
            return None
        assert isinstance(seen, Seen)
        return seen


class AsyncCompleter(CompleterBase):
    """One batch at a time, on whichever loop; several engines may complete one store, claims keep
    them apart."""

    def __init__(self, store: AsyncStore, runner: AsyncRunner, registry: Registry) -> None:
        super().__init__(registry, runner.jobs)
        self._store = store
        self._runner = runner
        self.reset()

    def reset(self) -> None:
        self._is_busy = False
        self._stopped = False

    def stop(self) -> None:
        """Begin nothing more; what was begun is drained with all that runs."""
        self._stopped = True

    async def complete(
        self, limit: int, on_completion: OnCompletion = lambda done: None
    ) -> Completed:
        """Complete a batch, unless one is under way."""
        if self._is_busy:
            return Completed(watching=len(self.watchlist))
        self._is_busy = True
        try:
            perform = partial(self._perform, on_completion)
            return await drive_async(self.batch(limit, on_completion), perform)
        finally:
            self._is_busy = False

    async def _perform(self, on_completion: OnCompletion, effect: Effect) -> object:
        if isinstance(effect, ListUnfinished):
            plan = list_unfinished(effect.after, effect.limit)
            return await run_plan_async(self._store, plan)
        if isinstance(effect, ReadRecords):
            return await self._read(effect.ids)
        if isinstance(effect, ReadRecord):
            return await self._read_one(effect.id)
        if isinstance(effect, CompleteAll):
            slots = asyncio.Semaphore(WORKERS)
            ones = (self._complete_one(slots, on_completion, one) for one in effect.actions)
            return list(filter(None, await asyncio.gather(*ones)))
        try:
            if isinstance(effect, RecoverKey):
                return await self._runner.recover(effect.action.job, effect.action.record)
            assert isinstance(effect, RunAgain)
            return await self._runner.run(effect.action.job, effect.action.body)
        except BaseException as error:  # the user's code runs here; the other actions must go on
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # it is this task that is cancelled
            return Failed(error)

    async def _complete_one(
        self, slots: asyncio.Semaphore, on_completion: OnCompletion, action: Action
    ) -> Completion | None:
        async with slots:
            if self._stopped:
                return None
            perform = partial(self._perform, on_completion)
            done = await drive_async(self.complete_one(action), perform)
        notify(on_completion, done)
        return done

    async def _read(self, ids: Sequence[bytes]) -> list[Seen | None]:
        """Read all at once; one by one if that fails, so that one record holds up no other."""
        try:
            replies = await self._store.apply([Look(id) for id in ids])
        except StoreUnavailable:
            raise
        except Exception:
            return [await self._read_one(id) for id in ids]
        return [seen for seen in replies if isinstance(seen, Seen)]

    async def _read_one(self, id: bytes) -> Seen | None:
        try:
            (seen,) = await self._store.apply([Look(id)])
        except Exception:  # the store is down, or this record is of another release
            return None
        assert isinstance(seen, Seen)
        return seen
