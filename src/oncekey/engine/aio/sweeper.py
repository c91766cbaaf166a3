"""A task that sweeps the store while its engine is elected to.

When and how much is in sweeper_base.py, the task in periodic.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from oncekey.core.effects import Sleep
from oncekey.core.store import AsyncStore
from oncekey.engine.aio.heartbeat import sleep
from oncekey.engine.aio.periodic import AsyncPeriodicTask, drive
from oncekey.engine.clock import Clock, new_owner
from oncekey.engine.sweeper_base import Elect, SweepBatch, SweepPlan, sweep_flow


class AsyncSweeper(AsyncPeriodicTask):
    def __init__(
        self,
        store: AsyncStore,
        plan: SweepPlan,
        clock: Clock,
        ready: Callable[[], Awaitable[None]],
        ended: Callable[[], None],
    ) -> None:
        super().__init__("sweeper", plan.every, self._sweep, clock, ready, ended)
        self._store = store
        self._plan = plan

    def reset(self) -> None:
        """A forked child is another candidate."""
        super().reset()
        self._token = new_owner()

    async def _sweep(self) -> None:
        await drive(sweep_flow(self._plan, self._token, self._clock), self._perform)

    async def _perform(self, effect: object) -> int:
        if isinstance(effect, Elect):
            return await self._store.elect(effect.token, effect.lease)
        if isinstance(effect, SweepBatch):
            return await self._store.sweep(effect.limit)
        assert isinstance(effect, Sleep)
        if effect.us:
            await sleep(self._clock, effect.us)
        return False
