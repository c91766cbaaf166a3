"""Where the records of a crossing are: its store, for threads or for asyncio, on servers that the
run shares; its URL for the command line; and how many records it has, counted without oncekey.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import redis
from aetcd import rpc
from tests.support.etcd_stores import etcd, reused_async_etcd_store, reused_etcd_store
from tests.support.postgres_stores import DATABASE, RING, emptied, server
from tests.support.reused_redis_stores import (
    SERVERS,
    reused_async_redis_store,
    reused_redis_store,
)
from tests.support.reused_stores import reused_async_store, reused_store, shared_loop
from tests.support.servers.redis_server import RedisServer

from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.stores.postgres import AsyncPostgresStore, PostgresStore
from oncekey.stores.postgres.queries import Layout
from oncekey.stores.redis import AsyncRedisStore, RedisStore
from oncekey.stores.redis.keyspace import Keyspace
from oncekey.stores.replica_sightings import Replica, pack_replica
from oncekey.stores.sqlite import AsyncSQLiteStore, SQLiteStore
from oncekey.testing import FakeClock
from oncekey.testing.sync_facade import is_async

REPLICA = "10.0.0.7:6379"


class Place:
    """The records of one store. `url` is empty if only this process can see them."""

    def __init__(self, store: Any, url: str, records: Callable[[], int]) -> None:
        self.store = store
        self.url = url
        self.records = records
        self.is_async = is_async(store)

    def lower(self) -> Any:
        """Switch the server's durability off for as long as the block lasts."""
        raise NotImplementedError

    def see_replica(self) -> None:
        """Leave what a process leaves that sees an asynchronous replica."""
        raise NotImplementedError

    def forget_replica(self) -> None:
        made = self.store.forget_replica(REPLICA, by="ana", why="its host was given back")
        if self.is_async:
            shared_loop().run(made)

    def look_again(self) -> None:
        """The next claim reads the server's settings, however short ago that was done."""
        self.store._program.watch.expire()


class PostgresPlace(Place):
    schema: str

    @contextmanager
    def lower(self) -> Iterator[None]:
        server().configure({"fsync": "off"})
        try:
            yield
        finally:
            server().configure({"fsync": "on"})

    def see_replica(self) -> None:
        now = time.time_ns() // 1_000
        table = f"{Layout(self.schema).quoted}.meta (name, value, since, until)"
        sql = f"INSERT INTO {table} VALUES (%s, %s, %s, %s)"  # noqa: S608
        with psycopg.connect(server().url(DATABASE), autocommit=True) as connection:
            value = pack_replica(Replica(REPLICA))
            connection.execute(sql.encode(), (f"replica {REPLICA}", value, now, now))


class RedisPlace(Place):
    server: RedisServer

    @contextmanager
    def lower(self) -> Iterator[None]:
        self.server.execute("CONFIG", "SET", "appendfsync", "everysec")
        try:
            yield
        finally:
            self.server.execute("CONFIG", "SET", "appendfsync", "always")

    def see_replica(self) -> None:
        now = time.time_ns() // 1_000
        value = b"%d %d %s" % (now, now, pack_replica(Replica(REPLICA)))
        key = Keyspace("oncekey").replicas.decode()
        self.server.execute("HSET", key, f"replica {REPLICA}", value.decode())

    def look_again(self) -> None:
        self.store._settings.watch.expire()


@contextmanager
def opened(
    store: str, mode: str, retention: str, clock: FakeClock, folder: Path, *, changes: bool = False
) -> Iterator[Place]:
    """An empty place of this kind. One whose guarantee `changes` has connections of its own."""
    in_tasks = mode == "async"
    made = _PLACES[store](in_tasks, retention, clock, folder, changes)
    try:
        yield made
    finally:
        if in_tasks:
            shared_loop().run(made.store.close())
        else:
            made.store.close()


def _memory(in_tasks: bool, retention: str, clock: FakeClock, folder: Path, own: bool) -> Place:
    store: Any = AsyncMemoryStore(clock=clock.wall) if in_tasks else MemoryStore(clock=clock.wall)
    inner = store.memory if in_tasks else store
    return Place(store, "", lambda: len(inner._records))


def _sqlite(in_tasks: bool, retention: str, clock: FakeClock, folder: Path, own: bool) -> Place:
    path = folder / f"{uuid4().hex}.db"
    store = (AsyncSQLiteStore if in_tasks else SQLiteStore)(path, clock=clock.wall)

    def records() -> int:
        with closing(sqlite3.connect(path)) as connection:
            (count,) = connection.execute("SELECT count(*) FROM oncekey_records").fetchone()
        return int(count)

    return Place(store, f"sqlite:///{path}", records)


def _postgres(in_tasks: bool, retention: str, clock: FakeClock, folder: Path, own: bool) -> Place:
    shape: dict[str, Any] = RING if retention == "ring" else {}
    if own:
        # Patient: a busy machine may take seconds to connect, and no crossing is about that.
        full = {**emptied(shape), "clock": clock.wall, "statement_timeout": "60s"}
        where = f"{server().url(DATABASE)}?connect_timeout=60"
        store: Any = (AsyncPostgresStore if in_tasks else PostgresStore)(where, **full)
    else:
        store = (reused_async_store if in_tasks else reused_store)(clock.wall, **shape)
    schema = store._options.schema
    options = "".join(f"&{name}={value}" for name, value in shape.items())
    table = f"{Layout(schema).quoted}.records"

    def records() -> int:
        with psycopg.connect(server().url(DATABASE)) as connection:
            row = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()  # noqa: S608
        assert row is not None
        return int(row[0])

    place = PostgresPlace(store, f"{server().url(DATABASE)}?schema={schema}{options}", records)
    place.schema = schema
    return place


def _on_redis(servers: str) -> Callable[..., Place]:
    def made(in_tasks: bool, retention: str, clock: FakeClock, folder: Path, own: bool) -> Place:
        if own:
            reused_redis_store(clock.wall, servers)  # empties it
            kind = AsyncRedisStore if in_tasks else RedisStore
            store: Any = kind(SERVERS[servers]()[1], clock=clock.wall)
        else:
            store = (reused_async_redis_store if in_tasks else reused_redis_store)(
                clock.wall, servers
            )
        holders, url = SERVERS[servers]()

        def records() -> int:
            found = 0
            for holder in holders:
                with closing(redis.Redis("127.0.0.1", holder.port)) as client:
                    found += sum(1 for _ in client.scan_iter(match=b"oncekey:*:r:*", count=1_000))
            return found

        place = RedisPlace(store, url, records)
        place.server = holders[0]
        return place

    return made


def _etcd(in_tasks: bool, retention: str, clock: FakeClock, folder: Path, own: bool) -> Place:
    store: Any = (reused_async_etcd_store if in_tasks else reused_etcd_store)(clock.wall)
    prefix = store.options.prefix

    def records() -> int:
        async def count(cluster: Any) -> int:
            start = cluster.keys.records
            request = rpc.RangeRequest(
                key=start, range_end=start[:-1] + bytes([start[-1] + 1]), count_only=True
            )
            reply = await cluster.members.call("Range", request, cluster.members.deadline())
            return int(reply.count)

        return int(store._loop.run(store._on_loop(count)))

    return Place(store, f"etcd://{etcd().addresses}/{prefix}", records)


_PLACES: dict[str, Callable[..., Place]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgres": _postgres,
    "redis": _on_redis("redis"),
    "valkey": _on_redis("valkey"),
    "cluster": _on_redis("cluster"),
    "etcd": _etcd,
}
