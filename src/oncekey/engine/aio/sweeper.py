"""A task that sweeps the store while its engine is elected to.

When and how much is in engine/sweeper_base.py, the task in periodic.py.
"""

from __future__ import annotations

from collections.abc import Callable

from oncekey.core.store import AsyncStore
from oncekey.engine.aio.heartbeat import sleep
from oncekey.engine.aio.periodic import AsyncPeriodicTask
from oncekey.engine.clock import Clock, new_owner
from oncekey.engine.sweeper_base import SweepPlan, rest_after


class AsyncSweeper(AsyncPeriodicTask):
    def __init__(
        self, store: AsyncStore, plan: SweepPlan, clock: Clock, ended: Callable[[], None]
    ) -> None:
        super().__init__("sweeper", plan.every, self._sweep, clock, ended)
        self._store = store
        self._plan = plan

    def reset(self) -> None:
        """A forked child is another candidate."""
        super().reset()
        self._token = new_owner()

    async def _sweep(self) -> None:
        """Until nothing is left or the next period is due, if we are the elected one."""
        due = self._clock.now() + self._plan.every
        if not await self._store.elect(self._token, self._plan.lease):
            return
        began = self._clock.now()
        while await self._store.sweep(self._plan.limit):
            ended = self._clock.now()
            if ended >= due:
                return
            if rest := rest_after(ended - began):
                await sleep(self._clock, rest)
            began = self._clock.now()
