"""The table of stores: by one row in it, a new store takes part in every suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.etcd_stores import reused_async_etcd_store, reused_etcd_store
from tests.support.postgres_stores import RING
from tests.support.reused_redis_stores import reused_async_redis_store, reused_redis_store
from tests.support.reused_stores import reused_async_store, reused_store

from oncekey.core.store import AsyncStore, Store
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.stores.move import AsyncDualStore, DualStore
from oncekey.stores.sqlite import AsyncSQLiteStore, SQLiteStore

WallClock = Callable[[], int]
Opener = Callable[[WallClock], Store | AsyncStore]
Row = Callable[[Path, WallClock], Store | AsyncStore]

# name -> open(directory, clock)
STORES: dict[str, Row] = {
    "memory-sync": lambda path, clock: MemoryStore(clock=clock),
    "memory-async": lambda path, clock: AsyncMemoryStore(clock=clock),
    "sqlite-sync": lambda path, clock: SQLiteStore(path / "keys.db", clock=clock),
    "sqlite-async": lambda path, clock: AsyncSQLiteStore(path / "keys.db", clock=clock),
    "postgres-psycopg": lambda path, clock: reused_store(clock),
    "postgres-asyncpg": lambda path, clock: reused_async_store(clock),
    "postgres-psycopg-ring": lambda path, clock: reused_store(clock, **RING),
    "postgres-asyncpg-ring": lambda path, clock: reused_async_store(clock, **RING),
    "redis-sync": lambda path, clock: reused_redis_store(clock),
    "redis-async": lambda path, clock: reused_async_redis_store(clock),
    "etcd-sync": lambda path, clock: reused_etcd_store(clock),
    "etcd-async": lambda path, clock: reused_async_etcd_store(clock),
}

# Two stores at a time, while keys move from the first to the second.
MOVING: dict[str, Row] = {
    "moving-memory-sync": lambda path, clock: DualStore(
        MemoryStore(clock=clock), MemoryStore(clock=clock)
    ),
    "moving-memory-async": lambda path, clock: AsyncDualStore(
        AsyncMemoryStore(clock=clock), AsyncMemoryStore(clock=clock)
    ),
    "postgres-moving-sync": lambda path, clock: DualStore(
        SQLiteStore(path / "keys.db", synchronous="off", clock=clock), reused_store(clock)
    ),
    "etcd-moving-sync": lambda path, clock: DualStore(
        reused_redis_store(clock), reused_etcd_store(clock)
    ),
    "postgres-moving-async": lambda path, clock: AsyncDualStore(
        AsyncSQLiteStore(path / "keys.db", clock=clock), reused_async_store(clock)
    ),
}

# The rows with a file in the folder that they are given; the others get none made.
IN_A_FOLDER = ("sqlite", "postgres-moving")
