"""Throwaway stores for tests: in memory, in a file of the test's own folder, or at a URL.

A store in memory or in a file reads its time from the test's clock, so that a test can end leases.
A store at a URL has a clock of its own; its records stay, under keys that no other test uses.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from oncekey.core.errors import ConfigurationError
from oncekey.core.store import AsyncStore, Store
from oncekey.engine.store_urls import async_store, blocking_store
from oncekey.testing.fake_clock import FakeClock

MEMORY = "memory"
SQLITE = "sqlite"
_CLOSE_SECONDS = 30.0


def has_own_clock(name: str) -> bool:
    """True if the time of this store cannot be moved by a test."""
    if name in (MEMORY, SQLITE):
        return False
    if "://" not in name:
        raise ConfigurationError(
            f"{name!r} is no store for tests; give {MEMORY}, {SQLITE}, or a URL such as "
            "postgresql://localhost/test"
        )
    return True


def open_throwaway(name: str, folder: Path, clock: FakeClock | None) -> Store:
    """An empty sync store, or the one at a URL; `clock` is None for a store with its own."""
    if clock is None:
        return blocking_store(name)
    if name == MEMORY:
        from oncekey.stores.memory import MemoryStore

        return MemoryStore(clock=clock.wall)
    from oncekey.stores.sqlite import SQLiteStore

    return SQLiteStore(_file(folder), clock=clock.wall, **_SQLITE_OPTIONS)


def open_throwaway_async(name: str, folder: Path, clock: FakeClock | None) -> AsyncStore:
    """The same as an async store. In a file it has the records of the sync one of the same test; in
    memory it has its own."""
    if clock is None:
        return async_store(name)
    if name == MEMORY:
        from oncekey.stores.memory import AsyncMemoryStore

        return AsyncMemoryStore(clock=clock.wall)
    from oncekey.stores.sqlite import AsyncSQLiteStore

    return AsyncSQLiteStore(_file(folder), clock=clock.wall, **_SQLITE_OPTIONS)


# A test's file need not survive a power failure; and nothing of it is worth a warning in a log.
_SQLITE_OPTIONS: dict[str, Any] = {"synchronous": "off", "acknowledge": "wal-reset-bug"}


def _file(folder: Path) -> Path:
    return folder / "oncekey.db"


def close_async(close: Callable[[], Awaitable[None]]) -> None:
    """Calls and awaits a `close` on an event loop of its own: the test's is over, or busy."""

    async def closed() -> None:
        await close()

    thread = threading.Thread(target=asyncio.run, args=(closed(),), daemon=True)
    thread.start()
    thread.join(_CLOSE_SECONDS)
