"""Finishes what others left behind, in threads.

Owns a round: list, look, act. What to do about a record is decided in core/abandoned.py.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from oncekey.core.abandoned import ActionKind
from oncekey.core.commands import Look, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.core.store import Store
from oncekey.engine.blocking.runner import Runner
from oncekey.engine.clock import Clock
from oncekey.engine.completer_base import (
    WORKERS,
    Action,
    Completed,
    Completing,
    Completion,
    Plan,
    Tell,
    say,
)
from oncekey.engine.watchlist import PAGE

STOP_SECONDS = 30.0


class Completer:
    """One round at a time; several engines may complete one store, claims keep them apart."""

    def __init__(self, store: Store, runner: Runner, shared: Completing, clock: Clock) -> None:
        self._store = store
        self._runner = runner
        self._shared = shared
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def stop(self) -> None:
        """Take up nothing more, and wait for what was: its outcome has to be stored."""
        self._stop.set()
        if self._lock.acquire(timeout=STOP_SECONDS):
            self._lock.release()

    def round(self, limit: int, tell: Tell = lambda done: None) -> Completed:
        """Do what is due, at most `limit` operations; `tell` hears of each as it is done. Beside
        a round that is under way there is nothing to do."""
        if not self._lock.acquire(blocking=False):
            return Completed(watching=len(self._shared.agenda))
        try:
            self._list()
            plan = Plan(limit, tell)
            for ids in self._shared.pages():
                self._shared.sort(ids, self._look(ids), plan)
                if plan.is_full:
                    break
            if plan.actions:
                workers = min(WORKERS, len(plan.actions))
                with ThreadPoolExecutor(workers, "oncekey-completer") as pool:
                    acts = pool.map(partial(self._act, tell), plan.actions)
                    plan.done += filter(None, acts)
            return plan.result(len(self._shared.agenda))
        finally:
            self._lock.release()

    def _list(self) -> None:
        shared, more = self._shared, True
        shared.agenda.begin(self._clock.now())
        while more and shared.agenda.has_room():
            found = self._store.unfinished(shared.agenda.after, PAGE)
            more = shared.agenda.add(found, shared.registered, self._clock.now())

    def _act(self, tell: Tell, action: Action) -> Completion | None:
        if self._stop.is_set():
            return None
        done = self._try(action)
        say(tell, done)
        return done

    def _try(self, action: Action) -> Completion:
        runs = action.kind is ActionKind.RUN
        try:
            if not runs:
                state = self._runner.recover(action.job, action.record)
                runs = self._shared.goes_on(action, state)
                if not runs:
                    return self._shared.asked(action, state)
            body = action.registered.body
            assert body is not None
            request = action.kept.request
            result = self._runner.run(action.job, lambda attempt: body(attempt, request))
            return self._shared.ran(action, result)
        except BaseException as error:  # the user's body and recover run here; others must go on
            seen = self._seen(action.record.id) if runs else None
            return self._shared.failed(action, error, ran=runs, seen=seen)

    def _seen(self, id: bytes) -> Seen | None:
        try:
            (seen,) = self._store.apply([Look(id)])
        except Exception:  # the store is down, or this record is of another release
            return None
        assert isinstance(seen, Seen)
        return seen

    def _look(self, ids: list[bytes]) -> list[Seen | None]:
        """All at once; one by one where that fails, so that one record holds up no other."""
        try:
            looked = self._store.apply([Look(id) for id in ids]) if ids else []
        except StoreUnavailable:
            raise
        except Exception:
            return [self._seen(id) for id in ids]
        return [seen for seen in looked if isinstance(seen, Seen)]
