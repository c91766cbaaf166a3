"""Performs the effects of a completer in threads; the flow is in completer_base.py."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from oncekey.core.commands import Look, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.core.store import Store
from oncekey.engine.administration import list_unfinished, run_plan
from oncekey.engine.blocking.periodic import drive
from oncekey.engine.blocking.runner import Runner
from oncekey.engine.completer_base import (
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
