"""A clock for the stores of several processes, which stands still until a test moves it.

Its time is in a file. A lease on such a clock lasts as long as the test wants, however slow the
machine is, and it ends in a moment when the test says so.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from oncekey.engine.store_urls import async_store, blocking_store
from oncekey.stores.sqlite.sqlite_store import AsyncSQLiteStore, SQLiteStore

VARIABLE = "ONCEKEY_TEST_CLOCK"


class MovedClock:
    """Microseconds, as stores have them."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        if not self._path.exists():
            self._write(time.time_ns() // 1_000)

    def __call__(self) -> int:
        return int(self._path.read_text())

    def advance(self, seconds: float) -> None:
        self._write(self() + int(seconds * 1_000_000))

    def _write(self, now: int) -> None:
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        beside.write_text(str(now))
        beside.replace(self._path)  # nobody reads half of it


def clocked_store(url: str, *, is_async: bool = False) -> Any:
    """Return the store of this URL, on the clock that the environment names, if it names one."""
    clock = os.environ.get(VARIABLE)
    if clock is None:
        return async_store(url) if is_async else blocking_store(url)
    return _sqlite(url, MovedClock(clock), is_async)


def still_store(url: str, *, is_async: bool = False) -> Any:
    """Return a store whose clock stands still; all of one file share it. In memory it is usual."""
    if not url.startswith("sqlite:///"):
        return async_store(url) if is_async else blocking_store(url)
    return _sqlite(url, MovedClock(f"{url.removeprefix('sqlite:///')}.clock"), is_async)


def _sqlite(url: str, clock: MovedClock, is_async: bool) -> Any:
    kind = AsyncSQLiteStore if is_async else SQLiteStore
    return kind(url.removeprefix("sqlite:///"), clock=clock)
