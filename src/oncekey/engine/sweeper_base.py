"""The background sweeper: its options and its rules, for both engines.

Every engine with `sweep_every=` asks its store, once a period, to be elected; the elected one
removes garbage, the others wait. An election holds for two periods: an engine that dies is replaced
soon, one that is a little late keeps its place. `sweep_flow` yields effects; the twins in blocking/
and aio/ perform them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from oncekey.core.duration import Duration
from oncekey.core.effects import Sleep
from oncekey.engine.clock import Clock
from oncekey.engine.periodic_base import check_limit, check_period

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
