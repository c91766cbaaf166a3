"""A thread that sweeps the store while its engine is elected to.

When and how much is in sweeper_base.py, the thread in periodic.py.
"""

from __future__ import annotations

from collections.abc import Callable

from oncekey.core.effects import Sleep
from oncekey.core.store import Store
from oncekey.engine.blocking.periodic import PeriodicTask, drive
from oncekey.engine.clock import Clock, new_owner
from oncekey.engine.sweeper_base import Elect, SweepBatch, SweepPlan, sweep_flow


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
        drive(sweep_flow(self._plan, self._token, self._clock), self._perform)

    def _perform(self, effect: object) -> int:
        if isinstance(effect, Elect):
            return self._store.elect(effect.token, effect.lease)
        if isinstance(effect, SweepBatch):
            return self._store.sweep(effect.limit)
        assert isinstance(effect, Sleep)
        return self._clock.wait(self._stop, effect.us)
