"""The table of stores: a new store joins every suite by one row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("oncekey.testing.contract")

import kept_stores  # noqa: E402
from kept_stores import kept_async, kept_blocking  # noqa: E402
from oncekey.core.contract import AsyncStore, Store  # noqa: E402
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore  # noqa: E402
from oncekey.stores.sqlite import AsyncSQLiteStore, SQLiteStore  # noqa: E402
from postgres_stores import RING  # noqa: E402

WallClock = Callable[[], int]
Opener = Callable[[WallClock], Store | AsyncStore]
Row = Callable[[Path, WallClock], Any]

# name -> open(directory, clock)
STORES: dict[str, Row] = {
    "memory-blocking": lambda path, clock: MemoryStore(clock=clock),
    "memory-asyncio": lambda path, clock: AsyncMemoryStore(clock=clock),
    "sqlite-blocking": lambda path, clock: SQLiteStore(path / "keys.db", clock=clock),
    "sqlite-asyncio": lambda path, clock: AsyncSQLiteStore(path / "keys.db", clock=clock),
    "postgres-psycopg": lambda path, clock: kept_blocking(clock),
    "postgres-asyncpg": lambda path, clock: kept_async(clock),
    "postgres-psycopg-ring": lambda path, clock: kept_blocking(clock, **RING),
    "postgres-asyncpg-ring": lambda path, clock: kept_async(clock, **RING),
}


@pytest.fixture(params=STORES)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens an empty store of each kind in turn."""
    name: str = request.param
    return lambda clock: STORES[name](tmp_path, clock)


def pytest_sessionfinish() -> None:
    kept_stores.end_all()
