"""Redis stores that stay open from test to test, for suites of many short tests.

Before each test the servers are emptied and the clock is replaced. Async stores stay open on the
event loop that the tests share (reused_stores.py). A test with another event loop closes its store.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import redis
from tests.support import redis_stores
from tests.support.reused_stores import ReplaceableClock, shared_loop
from tests.support.servers import processes
from tests.support.servers.redis_server import RedisServer

from oncekey.stores.redis import AsyncRedisStore, RedisStore

WallClock = Callable[[], int]

# Six servers of a Cluster share two cores with the tests and their other servers.
PATIENCE = {"reply_timeout": "20s", "call_timeout": "40s"}


@functools.cache
def _masters() -> list[RedisServer]:
    return redis_stores.valkey_cluster().masters()


# name -> the servers that hold records, and the address of the store
SERVERS: dict[str, Callable[[], tuple[Sequence[RedisServer], str]]] = {
    "valkey": lambda: ([redis_stores.valkey()], redis_stores.valkey().url()),
    "redis": lambda: ([redis_stores.redis()], redis_stores.redis().url()),
    "cluster": lambda: (_masters(), redis_stores.valkey_cluster().url()),
    "sentinel": lambda: ([redis_stores.sentinel().master()], redis_stores.sentinel().url()),
}


class ReusedRedisStore(RedisStore):
    """A sync store whose `close` leaves the connections open."""

    def close(self) -> None:
        """End the test but not the connections."""

    def really_close(self) -> None:
        super().close()


class ReusedAsyncRedisStore(AsyncRedisStore):
    """An async store whose `close` leaves the connections open on the shared loop."""

    async def close(self) -> None:
        """End the test, and the connections only if their loop ends too."""
        if asyncio.get_running_loop() is not shared_loop().loop:
            for key in [key for key, (store, _) in _open_stores.items() if store is self]:
                del _open_stores[key]
            await super().close()

    def really_close(self) -> None:
        shared_loop().run(super().close())


_open_stores: dict[str, tuple[Any, ReplaceableClock]] = {}


def reused_redis_store(clock: WallClock, servers: str = "valkey") -> ReusedRedisStore:
    """Return an empty sync store."""
    store: ReusedRedisStore = _reuse(ReusedRedisStore, clock, servers)
    return store


def reused_async_redis_store(clock: WallClock, servers: str = "valkey") -> ReusedAsyncRedisStore:
    """Return an empty async store."""
    store: ReusedAsyncRedisStore = _reuse(ReusedAsyncRedisStore, clock, servers)
    return store


def _reuse(kind: type, clock: WallClock, servers: str) -> Any:
    holders, address = SERVERS[servers]()
    for holder in holders:
        _cleaner(holder.port, os.getpid()).flushall()
    key = f"{kind.__name__} {servers}"
    if key not in _open_stores:
        replaceable = ReplaceableClock()
        _open_stores[key] = kind(address, clock=replaceable, **PATIENCE), replaceable
    store, replaceable = _open_stores[key]
    replaceable.clock = clock
    return store


@functools.cache
def _cleaner(port: int, process: int) -> redis.Redis:
    """The connection that empties a server; a forked process gets its own."""
    client = redis.Redis("127.0.0.1", port)
    processes.at_exit(client.close)
    return client


def close_all() -> None:
    """Close every store, at the end of the run."""
    for store, _ in _open_stores.values():
        store.really_close()
    _open_stores.clear()
