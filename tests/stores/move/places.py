"""Places that hold the records of a store, each opened as often as a test likes, sync or async.

Every kind of store has an old and a new place, so that it moves to its own kind too. A place is
empty when it is made. All places of a run are on the servers that the run shares.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import etcd_stores, redis_stores
from tests.support.postgres_stores import RING, address, emptied
from tests.support.servers import processes

from oncekey.core.store import AsyncStore, Store
from oncekey.stores.etcd import AsyncEtcdStore, EtcdStore
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.stores.postgres import AsyncPostgresStore, PostgresStore
from oncekey.stores.redis import AsyncRedisStore, RedisStore
from oncekey.stores.sqlite import AsyncSQLiteStore, SQLiteStore

_numbers = itertools.count(1)


class Place(NamedTuple):
    """How the store of one place is opened."""

    open_sync: Callable[[], Store]
    open_async: Callable[[], AsyncStore]


def _memory(path: Path, side: str) -> Place:
    memory = MemoryStore()
    return Place(lambda: memory, lambda: AsyncMemoryStore(memory))


def _sqlite(path: Path, side: str) -> Place:
    file = path / f"{side}.db"
    return Place(
        lambda: SQLiteStore(file, synchronous="off"),
        lambda: AsyncSQLiteStore(file, synchronous="off"),
    )


def _postgres(path: Path, side: str, **shape: Any) -> Place:
    kind = "ring" if shape else "plain"
    options = emptied({"schema": f"move-{kind}-{side}", **shape})
    return Place(
        lambda: PostgresStore(address({}), **options),
        lambda: AsyncPostgresStore(address({}), **options),
    )


def _redis(path: Path, side: str) -> Place:
    options: dict[str, Any] = {"prefix": f"move-{side}-{next(_numbers)}:"}
    url = redis_stores.valkey().url()
    return Place(lambda: RedisStore(url, **options), lambda: AsyncRedisStore(url, **options))


def _cluster(path: Path, side: str) -> Place:
    options: dict[str, Any] = {"prefix": f"move-{side}-{next(_numbers)}:"}
    url = redis_stores.valkey_cluster().url()
    return Place(lambda: RedisStore(url, **options), lambda: AsyncRedisStore(url, **options))


def _etcd(path: Path, side: str) -> Place:
    options: dict[str, Any] = {"prefix": processes.fresh_name(f"move-{side}")}
    members = etcd_stores.etcd().addresses.split(",")
    return Place(lambda: EtcdStore(members, **options), lambda: AsyncEtcdStore(members, **options))


# name -> the place of one side, with a folder for files
PLACES: dict[str, Callable[[Path, str], Place]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgres": _postgres,
    "ring": lambda path, side: _postgres(path, side, **RING),
    "redis": _redis,
    "etcd": _etcd,
}
CLUSTER = _cluster
