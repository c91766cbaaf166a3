"""The clock of stores that live in this host: SQLite, memory.

One reading per decision, injected so that tests can turn it. Knows no store.
"""

from __future__ import annotations

import time
from collections.abc import Callable

StoreClock = Callable[[], int]


def wall_clock() -> int:
    """The host's clock in microseconds: the store's clock where the store lives in this host."""
    return time.time_ns() // 1_000
