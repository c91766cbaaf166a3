"""The background sweeper: what both colours share of it.

Every engine that was told to sweep asks its store, once a period, to be the elected one; who is
removes garbage, the others wait. Elected for two periods: one that dies is succeeded soon, one that
is a little late is not. Owns the options. Runs nothing; the colours do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from oncekey.core.duration import Duration
from oncekey.engine.periodic_base import at_least_one, period

_PERIODS_ELECTED = 2


class SweepPlan(NamedTuple):
    """How often to sweep, and how many records at a time."""

    every: int
    limit: int

    @property
    def lease(self) -> int:
        return self.every * _PERIODS_ELECTED


def sweep_plan(every: Duration | None, limit: Any) -> SweepPlan | None:
    """The options `sweep_every` and `sweep_limit`, checked; None where nobody asked for it."""
    at_least_one("sweep_limit", limit, "records")
    us = period("sweep_every", every)
    return None if us is None else SweepPlan(us, limit)


def rest_after(us: int) -> int:
    """How long to leave the store to its callers after a bite that took this long: as long again.
    A sweep of millions then takes half of what one connection can do, whatever the store is."""
    return us
