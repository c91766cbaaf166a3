"""The background sweeper: its options, its flow, and the thread or task that drives it.

Every engine with `sweep_every=` asks its store, once a period, to be elected; the elected one
removes garbage, the others wait. An election holds for two periods: an engine that dies is replaced
soon, one that is a little late keeps its place. `sweep_flow` yields effects, so that both sweepers
follow the same rules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple

from oncekey.core.duration import Duration
from oncekey.core.effects import Sleep
from oncekey.core.flow_driver import drive, drive_async
from oncekey.core.store import AsyncStore, Store
from oncekey.engine.background.periodic_task import (
    AsyncPeriodicTask,
    PeriodicTask,
    check_limit,
    check_period,
)
from oncekey.engine.clock import Clock, new_owner, sleep

_PERIODS_ELECTED = 2


class SweepPlan(NamedTuple):
    """How often to sweep, and how many records in one batch."""

    every: int
    limit: int


def sweep_plan(every: Duration | None, limit: Any) -> SweepPlan | None:
    """The options `sweep_every` and `sweep_limit`, checked; None if nothing is to be swept."""
    check_limit("sweep_limit", limit, "records")
    us = check_period("sweep_every", every)
    return None if us is None else SweepPlan(us, limit)


class Elect(NamedTuple):
    """Ask the store to elect this engine for `lease` microseconds; the result is a bool."""

    token: bytes
    lease: int


class SweepBatch(NamedTuple):
    """Remove at most `limit` records; the result is how many were removed."""

    limit: int


def sweep_flow(
    plan: SweepPlan, token: bytes, clock: Clock
) -> Generator[Elect | SweepBatch | Sleep, Any, None]:
    """Sweep until nothing is left or the next period is due, if this engine is elected. The result
    of a sleep is True if the engine was stopped meanwhile."""
    next_period = clock.now() + plan.every
    if not (yield Elect(token, plan.every * _PERIODS_ELECTED)):
        return
    began = clock.now()
    while (yield SweepBatch(plan.limit)):
        ended = clock.now()
        if ended >= next_period or (yield Sleep(pause_after(ended - began))):
            return
        began = clock.now()


def pause_after(us: int) -> int:
    """The sweeper sleeps after each batch for as long as the batch took. A sweep of millions of
    records then takes half of what one connection can do, whatever the store is."""
    return us


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
        await drive_async(sweep_flow(self._plan, self._token, self._clock), self._perform)

    async def _perform(self, effect: object) -> int:
        if isinstance(effect, Elect):
            return await self._store.elect(effect.token, effect.lease)
        if isinstance(effect, SweepBatch):
            return await self._store.sweep(effect.limit)
        assert isinstance(effect, Sleep)
        if effect.us:
            await sleep(self._clock, effect.us)
        return False
