"""The clock of stores that live in this host: SQLite, memory; and how long an election holds.

One reading per decision, injected so that tests can turn it. Knows no store.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from oncekey.core.errors import ConfigurationError

StoreClock = Callable[[], int]


def wall_clock() -> int:
    """The host's clock in microseconds: the store's clock where the store lives in this host."""
    return time.time_ns() // 1_000


def is_elected(since: int, until: int, now: int) -> bool:
    """Whether an election holds: for its lease, and where the clock was set back for as long before
    it began, so that one who died is not elected until the clock has caught up."""
    return 2 * since - until < now < until


def refuse_another_secret(remembered: bytes, given: bytes) -> None:
    """Raise where the check values differ: under two secrets no key would meet its record."""
    if remembered != given:
        raise ConfigurationError(
            "this store was first opened with another secret; with two secrets no key "
            "would meet its earlier record. Use the first secret, or an empty store"
        )
