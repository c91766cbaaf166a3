"""PostgreSQL stores that outlive a test, for suites of many short tests.

A new connection costs more than most tests: the server forks, then compiles and plans every
function anew. So a store stays open from test to test, with its schema emptied and its clock
replaced each time. The async ones stay open on one event loop that the tests share; a test with a
loop of its own really closes its store at the end.
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


class _ReplaceableClock:
    """A clock that is replaced in each test."""

    clock: WallClock

    def __call__(self) -> int:
        return self.clock()


class SharedLoop(LoopThread):
    """An event loop for many tests."""

    def cancel_all(self) -> None:
        """Cancel what a test left running."""
        self.run(self._cancel_all())


@functools.cache
def shared_loop() -> SharedLoop:
    return SharedLoop()


def loop_for(kind: str) -> Iterator[LoopThread]:
    """The `loop` fixture of a contract suite for a row of this name."""
    if kind.startswith("postgres"):
        yield shared_loop()
        shared_loop().cancel_all()
    else:
        loop = LoopThread()
        yield loop
        loop.close()


class ReusedStore(PostgresStore):
    def close(self) -> None:
        """The test is over, but the connections stay open."""

    def end(self) -> None:
        super().close()


class ReusedAsyncStore(AsyncPostgresStore):
    async def close(self) -> None:
        """The test is over. The connections are closed only if their event loop ends as well."""
        if asyncio.get_running_loop() is not shared_loop().loop:
            for key in [key for key, (store, _) in _kept.items() if store is self]:
                del _kept[key]
            await super().close()

    def end(self) -> None:
        shared_loop().run(super().close())


_kept: dict[str, tuple[Any, _ReplaceableClock]] = {}


def reused_store(
    clock: WallClock, *, major: int | None = None, given: bool = False, **options: Any
) -> ReusedStore:
    """An empty store. `given`: the store uses a pool of the caller's."""

    def make(full: dict[str, Any]) -> ReusedStore:
        where: Any = _given_pool() if given else address(options, major)
        return ReusedStore(where, **full)

    store: ReusedStore = _keep(f"blocking {given}", make, clock, major, options)
    return store


def reused_async_store(
    clock: WallClock, *, major: int | None = None, given: bool = False, **options: Any
) -> ReusedAsyncStore:
    """An empty async store. `given`: the store uses a pool of the caller's."""

    def make(full: dict[str, Any]) -> ReusedAsyncStore:
        where = _given_async_pool() if given else address(options, major)
        return ReusedAsyncStore(where, **full)

    store: ReusedAsyncStore = _keep(f"async {given}", make, clock, major, options)
    return store


def _keep(
    colour: str,
    make: Callable[[dict[str, Any]], Any],
    clock: WallClock,
    major: int | None,
    options: dict[str, Any],
) -> Any:
    full = emptied(options, major)
    key = f"{colour} {major} {sorted(options.items())}"
    if key not in _kept:
        replaceable = _ReplaceableClock()
        _kept[key] = make({**full, "clock": replaceable}), replaceable
    store, replaceable = _kept[key]
    replaceable.clock = clock
    return store


@functools.cache
def _given_pool() -> ConnectionPool[Any]:
    return ConnectionPool(server().url(DATABASE), min_size=1, max_size=POOL_SIZE, open=True)


@functools.cache
def _given_async_pool() -> Any:
    async def make() -> Any:
        return await asyncpg.create_pool(server().url(DATABASE), min_size=1, max_size=POOL_SIZE)

    return shared_loop().run(make())


def end_all() -> None:
    """Close everything at the end of the test run."""
    for store, _ in _kept.values():
        store.end()
    _kept.clear()
    if _given_pool.cache_info().currsize:
        _given_pool().close()
    if _given_async_pool.cache_info().currsize:
        shared_loop().run(_given_async_pool().close())
    if shared_loop.cache_info().currsize:
        shared_loop().close()
