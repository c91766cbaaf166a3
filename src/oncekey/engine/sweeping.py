"""The background sweeper: what both colours share of it.

Every engine that was told to sweep asks its store, once a period, to be the elected one; who is
removes garbage, the others wait. Elected for two periods: one that dies is succeeded soon, one that
is a little late is not. Owns the options and the warning. Runs nothing; the colours do.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from oncekey.core.duration import Duration, human, microseconds
from oncekey.core.errors import ConfigurationError, OncekeyError

EVERY_MIN_US = 100_000
EVERY_MAX_US = 24 * 3_600_000_000
_PERIODS_ELECTED = 2

_log = logging.getLogger("oncekey")


class SweepPlan(NamedTuple):
    """How often to sweep, and how many records at a time."""

    every: int
    limit: int

    @property
    def lease(self) -> int:
        return self.every * _PERIODS_ELECTED


def sweep_plan(every: Duration | None, limit: Any) -> SweepPlan | None:
    """The options `sweep_every` and `sweep_limit`, checked; None where nobody asked for it."""
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ConfigurationError(f"sweep_limit={limit!r} must be a number of records, 1 or more")
    if every is None:
        return None
    us = microseconds(every, name="sweep_every")
    if not EVERY_MIN_US <= us <= EVERY_MAX_US:
        low, high = human(EVERY_MIN_US), human(EVERY_MAX_US)
        raise ConfigurationError(f"sweep_every={every!r} must be {low} to {high}, None for never")
    return SweepPlan(us, limit)


def rest_after(us: int) -> int:
    """How long to leave the store to its callers after a bite that took this long: as long again.
    A sweep of millions then takes half of what one connection can do, whatever the store is."""
    return us


def warn(error: Exception) -> None:
    """Sweeping goes on in the next period. Of a stranger's error only the kind is told: its text
    might hold what it was about."""
    told = str(error) if isinstance(error, OncekeyError) else "see the store's own log"
    _log.warning("the sweeper failed, %s: %s; it tries again", type(error).__name__, told)
