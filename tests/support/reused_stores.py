"""PostgreSQL stores that stay open from test to test, for suites of many short tests.

A new connection costs more than most tests, because the server forks, compiles and plans every
function again. So a store stays open; before each test its schema is emptied and its clock is
replaced. Async stores stay open on one event loop that the tests share. A test with another event
loop closes its store at the end.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
from psycopg_pool import ConnectionPool
from tests.support.postgres_stores import DATABASE, address, emptied, server

from oncekey.stores.postgres import AsyncPostgresStore, PostgresStore
from oncekey.testing.sync_facade import LoopThread

WallClock = Callable[[], int]

POOL_SIZE = 4


class ReplaceableClock:
    """A clock that reads the clock of the current test."""

    clock: WallClock

    def __call__(self) -> int:
        return self.clock()


class SharedLoop(LoopThread):
    """An event loop that many tests share."""

    def cancel_all(self) -> None:
        """Cancel the tasks that a test has left running."""
        self.run(self._cancel_all())


@functools.cache
def shared_loop() -> SharedLoop:
    return SharedLoop()


def loop_for(kind: str) -> Iterator[LoopThread]:
    """Yield the loop of a contract's `loop` fixture, for a row of this name."""
    if kind.startswith(("postgres", "redis")):
        yield shared_loop()
        shared_loop().cancel_all()
    else:
        loop = LoopThread()
        yield loop
        loop.close()


class ReusedStore(PostgresStore):
    """A sync store whose `close` leaves the connections open."""

    def close(self) -> None:
        """End the test but not the connections."""

    def really_close(self) -> None:
        super().close()


class ReusedAsyncStore(AsyncPostgresStore):
    """An async store whose `close` leaves the connections open on the shared loop."""

    async def close(self) -> None:
        """End the test, and the connections only if their loop ends too."""
        if asyncio.get_running_loop() is not shared_loop().loop:
            for key in [key for key, (store, _) in _open_stores.items() if store is self]:
                del _open_stores[key]
            await super().close()

    def really_close(self) -> None:
        shared_loop().run(super().close())


# A server shares two cores with the tests and their other servers.
PATIENCE = {"statement_timeout": "60s", "lock_timeout": "60s", "call_timeout": "90s"}
_open_stores: dict[str, tuple[Any, ReplaceableClock]] = {}


def reused_store(
    clock: WallClock, *, major: int | None = None, caller_pool: bool = False, **options: Any
) -> ReusedStore:
    """Return an empty sync store; with `caller_pool` on a connection pool of the caller."""

    def make(full: dict[str, Any]) -> ReusedStore:
        where: Any = _caller_pool() if caller_pool else address(options, major)
        return ReusedStore(where, **full)

    store: ReusedStore = _reuse(f"sync {caller_pool}", make, clock, major, options)
    return store


def reused_async_store(
    clock: WallClock, *, major: int | None = None, caller_pool: bool = False, **options: Any
) -> ReusedAsyncStore:
    """Return an empty async store; with `caller_pool` on a connection pool of the caller."""

    def make(full: dict[str, Any]) -> ReusedAsyncStore:
        where = _async_caller_pool() if caller_pool else address(options, major)
        return ReusedAsyncStore(where, **full)

    store: ReusedAsyncStore = _reuse(f"async {caller_pool}", make, clock, major, options)
    return store


def _reuse(
    kind: str,
    make: Callable[[dict[str, Any]], Any],
    clock: WallClock,
    major: int | None,
    options: dict[str, Any],
) -> Any:
    full = emptied(options, major)
    key = f"{kind} {major} {sorted(options.items())}"
    if key not in _open_stores:
        replaceable = ReplaceableClock()
        _open_stores[key] = make({**PATIENCE, **full, "clock": replaceable}), replaceable
    store, replaceable = _open_stores[key]
    replaceable.clock = clock
    return store


@functools.cache
def _caller_pool() -> ConnectionPool[Any]:
    return ConnectionPool(server().url(DATABASE), min_size=1, max_size=POOL_SIZE, open=True)


@functools.cache
def _async_caller_pool() -> Any:
    async def make() -> Any:
        return await asyncpg.create_pool(server().url(DATABASE), min_size=1, max_size=POOL_SIZE)

    return shared_loop().run(make())


def close_all() -> None:
    """Close every store and pool, at the end of the run."""
    for store, _ in _open_stores.values():
        store.really_close()
    _open_stores.clear()
    if _caller_pool.cache_info().currsize:
        _caller_pool().close()
    if _async_caller_pool.cache_info().currsize:
        shared_loop().run(_async_caller_pool().close())
    if shared_loop.cache_info().currsize:
        shared_loop().close()
