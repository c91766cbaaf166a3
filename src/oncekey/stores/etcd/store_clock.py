"""The two clocks of an etcd store, read together.

`now` is the host's wall clock: it dates records and says how long they are kept. `elapsed` only
counts the time that passes: by it a claim's own deadline is measured, so that a wall clock that is
set moves no lease. It goes on while the host sleeps, where the system can tell, because etcd's
leases do. A test replaces both by one clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from oncekey.stores.store_rules import wall_clock

_ELAPSED: Final = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def elapsed_us() -> int:
    """The time that passes, in microseconds; only differences mean anything."""
    if _ELAPSED is None:
        return time.monotonic_ns() // 1_000
    return time.clock_gettime_ns(_ELAPSED) // 1_000


class Reading(NamedTuple):
    """Both clocks at one moment, in microseconds."""

    now: int
    elapsed: int


class StoreClock:
    """Reads the clocks."""

    def __init__(self, replacement: Callable[[], int] | None = None) -> None:
        self._replacement = replacement

    def read(self) -> Reading:
        if self._replacement is not None:
            moment = self._replacement()
            return Reading(moment, moment)
        return Reading(wall_clock(), elapsed_us())
