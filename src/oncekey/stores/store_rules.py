"""Rules that several stores share: the host's clock, how long an election holds, one secret.

A store that lives on this host (SQLite, memory) reads the host's clock once per decision; the clock
is injected, so that tests can move it. This module knows no store.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from oncekey.core.errors import ConfigurationError

StoreClock = Callable[[], int]


def wall_clock() -> int:
    """The host's clock in microseconds."""
    return time.time_ns() // 1_000


def election_holds(since: int, until: int, now: int) -> bool:
    """True if an election is still valid at `now`.

    It is valid for its lease. If the clock was set back, it also stays valid for one lease before
    it began, and not longer: a process that died must not stay elected until the clock catches up.
    """
    return 2 * since - until < now < until


def check_same_secret(remembered: bytes, given: bytes) -> None:
    """Raise ConfigurationError if the check values differ: a store has one secret for its whole
    life (S8), because under a second secret no key would find its record."""
    if remembered != given:
        raise ConfigurationError(
            "this store was first opened with another secret; with two secrets no key "
            "would meet its earlier record. Use the first secret, or an empty store"
        )
