"""Finishes what others left behind, in tasks.

Owns a round: list, look, act. What to do about a record is decided in core/abandoned.py.
"""

from __future__ import annotations

import asyncio

from oncekey.core.abandoned import ActionKind
from oncekey.core.commands import Look, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.core.store import AsyncStore
from oncekey.engine.aio.runner import AsyncRunner
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


class AsyncCompleter:
    """One round at a time; several engines may complete one store, claims keep them apart."""

    def __init__(
        self, store: AsyncStore, runner: AsyncRunner, shared: Completing, clock: Clock
    ) -> None:
        self._store = store
        self._runner = runner
        self._shared = shared
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        self._busy = False
        self._stopped = False

    def stop(self) -> None:
        """Take up nothing more; what was taken up is drained with all that runs."""
        self._stopped = True

    async def round(self, limit: int, tell: Tell = lambda done: None) -> Completed:
        """Do what is due, at most `limit` operations; `tell` hears of each as it is done. Beside
        a round that is under way, on whichever loop, there is nothing to do."""
        if self._busy:
            return Completed(watching=len(self._shared.agenda))
        self._busy = True
        try:
            return await self._round(limit, tell)
        finally:
            self._busy = False

    async def _round(self, limit: int, tell: Tell) -> Completed:
        await self._list()
        plan = Plan(limit, tell)
        for ids in self._shared.pages():
            self._shared.sort(ids, await self._look(ids), plan)
            if plan.is_full:
                break
        turn = asyncio.Semaphore(WORKERS)
        acts = (self._act(turn, tell, action) for action in plan.actions)
        plan.done += filter(None, await asyncio.gather(*acts))
        return plan.result(len(self._shared.agenda))

    async def _list(self) -> None:
        shared, more = self._shared, True
        shared.agenda.begin(self._clock.now())
        while more and shared.agenda.has_room():
            found = await self._store.unfinished(shared.agenda.after, PAGE)
            more = shared.agenda.add(found, shared.registered, self._clock.now())

    async def _act(self, turn: asyncio.Semaphore, tell: Tell, action: Action) -> Completion | None:
        async with turn:
            if self._stopped:
                return None
            done = await self._try(action)
        say(tell, done)
        return done

    async def _try(self, action: Action) -> Completion:
        runs = action.kind is ActionKind.RUN
        try:
            if not runs:
                state = await self._runner.recover(action.job, action.record)
                runs = self._shared.goes_on(action, state)
                if not runs:
                    return self._shared.asked(action, state)
            body = action.registered.body
            assert body is not None
            request = action.kept.request
            result = await self._runner.run(action.job, lambda attempt: body(attempt, request))
            return self._shared.ran(action, result)
        except BaseException as error:  # the user's body and recover run here; others must go on
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # it is we who are told to end
            seen = await self._seen(action.record.id) if runs else None
            return self._shared.failed(action, error, ran=runs, seen=seen)

    async def _seen(self, id: bytes) -> Seen | None:
        try:
            (seen,) = await self._store.apply([Look(id)])
        except Exception:  # the store is down, or this record is of another release
            return None
        assert isinstance(seen, Seen)
        return seen

    async def _look(self, ids: list[bytes]) -> list[Seen | None]:
        """All at once; one by one where that fails, so that one record holds up no other."""
        try:
            looked = await self._store.apply([Look(id) for id in ids]) if ids else []
        except StoreUnavailable:
            raise
        except Exception:
            return [await self._seen(id) for id in ids]
        return [seen for seen in looked if isinstance(seen, Seen)]
