"""A thread that sweeps the store while its engine is elected to.

When and how much is in engine/sweeper_base.py, the thread in periodic.py.
"""

from __future__ import annotations

from collections.abc import Callable

from oncekey.core.store import Store
from oncekey.engine.blocking.periodic import PeriodicTask
from oncekey.engine.clock import Clock, new_owner
from oncekey.engine.sweeper_base import SweepPlan, rest_after


class Sweeper(PeriodicTask):
    def __init__(
        self, store: Store, plan: SweepPlan, clock: Clock, ready: Callable[[], None]
    ) -> None:
        super().__init__("sweeper", plan.every, self._sweep, clock, ready)
        self._store = store
        self._plan = plan

    def reset(self) -> None:
        """A forked child is another candidate."""
        super().reset()
        self._token = new_owner()

    def _sweep(self) -> None:
        """Until nothing is left or the next period is due, if we are the elected one."""
        due = self._clock.now() + self._plan.every
        if not self._store.elect(self._token, self._plan.lease):
            return
        began = self._clock.now()
        while self._store.sweep(self._plan.limit):
            ended = self._clock.now()
            if self._stop.is_set() or ended >= due:
                return
            if self._clock.wait(self._stop, rest_after(ended - began)):
                return
            began = self._clock.now()
