"""Finishes what others left behind, in tasks.

Owns a round: list, look, act. What to do about a record is decided in core/completing.py.
"""

from __future__ import annotations

import asyncio

from oncekey.core.commands import Look
from oncekey.core.completing import Todo
from oncekey.core.contract import AsyncStore
from oncekey.engine.agenda import PAGE
from oncekey.engine.aio.runner import AsyncRunner
from oncekey.engine.clock import Clock
from oncekey.engine.completing import WORKERS, Action, Completed, Completing, Completion, Tell


class AsyncCompleter:
    """One round at a time; several engines may complete one store, claims keep them apart."""

    def __init__(
        self, store: AsyncStore, runner: AsyncRunner, shared: Completing, clock: Clock
    ) -> None:
        self._store = store
        self._runner = runner
        self._shared = shared
        self._clock = clock
        self._busy = False

    def reset(self) -> None:
        self._busy = False

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
        agenda = self._shared.agenda
        ids = agenda.due(self._clock.now(), limit)
        looked = await self._store.apply([Look(id) for id in ids]) if ids else []
        done, actions = self._shared.sort(ids, looked, tell)
        turn = asyncio.Semaphore(WORKERS)
        done += await asyncio.gather(*(self._act(turn, tell, action) for action in actions))
        return Completed(tuple(done), len(agenda))

    async def _list(self) -> None:
        shared, more = self._shared, True
        shared.agenda.begin(self._clock.now())
        while more and shared.agenda.has_room():
            found = await self._store.unfinished(shared.agenda.after, PAGE)
            more = shared.agenda.add(found, shared.registered, self._clock.now())

    async def _act(self, turn: asyncio.Semaphore, tell: Tell, action: Action) -> Completion:
        async with turn:
            done = await self._try(action)
        tell(done)
        return done

    async def _try(self, action: Action) -> Completion:
        runs = action.todo is Todo.RUN
        try:
            if not runs:
                state = await self._runner.recover(action.job, action.record)
                runs = self._shared.goes_on(action, state)
                if not runs:
                    return self._shared.asked(action, state)
            body = action.registered.body
            assert body is not None
            result = await self._runner.run(
                action.job, lambda attempt: body(attempt, action.request)
            )
            return self._shared.ran(action, result)
        except Exception as error:  # the user's body and recover run here; others must go on
            return self._shared.failed(action, error, ran=runs)
