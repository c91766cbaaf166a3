"""A lazy store is reached on first use, and `require` is checked against its guarantee then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from oncekey.core.commands import Reply, Seen
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.guarantees import Guarantee, Level
from oncekey.core.policy import Policy
from oncekey.core.record import Record
from oncekey.core.search import Cursor, Measures, Page, Query
from oncekey.core.store import AsyncCallerTransaction, CallerTransaction, Unfinished
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.once import Once
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.testing.sync_facade import LoopThread, SyncOnce

HOPED = Guarantee(Level.TRANSACTIONAL, "a server, by its address")
POOR = Guarantee(Level.BEST_EFFORT, "the server does not wait for its disk")


class _Lazy:
    """A store that is reached by `bind`, which is counted, may fail, and sets the guarantee."""

    lazy = True
    immediate = False
    max_in_flight = 1

    def __init__(self, learned: Guarantee = HOPED) -> None:
        self.guarantee = HOPED
        self.learned = learned
        self.memory = MemoryStore()
        self.binds = 0
        self.used: list[str] = []
        self.failures: list[Exception] = []
        self.closed = False

    def reach(self, check: bytes) -> Seen:
        self.binds += 1
        if self.failures:
            raise self.failures.pop(0)
        self.guarantee = self.learned
        return self.memory.bind(check)

    def apply_now(self, commands: Any) -> list[Reply]:
        assert self.guarantee is self.learned, "used before it was reached"
        self.used += [type(command).__name__ for command in commands]
        return self.memory.apply(commands)


class LazyStore(_Lazy):
    def bind(self, check: bytes, /) -> Seen:
        return self.reach(check)

    def apply(self, commands: Any, /) -> list[Reply]:
        return self.apply_now(commands)

    def sweep(self, limit: int = 1, /) -> int:
        self.used.append("sweep")
        return self.memory.sweep(limit)

    def elect(self, token: bytes, lease: int, /) -> bool:
        return self.memory.elect(token, lease)

    def unfinished(self, after: int, limit: int, /) -> Unfinished:
        return self.memory.unfinished(after, limit)

    def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        return self.memory.search(query, limit, after)

    def history(self, id: bytes, /) -> list[Record]:
        return self.memory.history(id)

    def measure(self) -> Measures:
        return self.memory.measure()

    def join(self, connection: Any, /) -> CallerTransaction:
        return _EnlistedLazy(self)

    def close(self) -> None:
        self.closed = True


class _EnlistedLazy:
    def __init__(self, store: LazyStore) -> None:
        self.apply = store.apply

    def set_savepoint(self) -> None: ...
    def rollback_to_savepoint(self) -> None: ...
    def release_savepoint(self) -> None: ...


class AsyncLazyStore(_Lazy):
    async def bind(self, check: bytes, /) -> Seen:
        await asyncio.sleep(0)
        return self.reach(check)

    async def apply(self, commands: Any, /) -> list[Reply]:
        return self.apply_now(commands)

    async def sweep(self, limit: int = 1, /) -> int:
        self.used.append("sweep")
        return self.memory.sweep(limit)

    async def elect(self, token: bytes, lease: int, /) -> bool:
        return self.memory.elect(token, lease)

    async def unfinished(self, after: int, limit: int, /) -> Unfinished:
        return self.memory.unfinished(after, limit)

    async def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        return self.memory.search(query, limit, after)

    async def history(self, id: bytes, /) -> list[Record]:
        return self.memory.history(id)

    async def measure(self) -> Measures:
        return self.memory.measure()

    def join(self, connection: Any, /) -> AsyncCallerTransaction:
        return _AsyncEnlistedLazy(self)

    async def close(self) -> None:
        self.closed = True


class _AsyncEnlistedLazy:
    def __init__(self, store: AsyncLazyStore) -> None:
        self._store = store

    async def apply(self, commands: Any, /) -> list[Reply]:
        return await self._store.apply(commands)

    async def set_savepoint(self) -> None: ...
    async def rollback_to_savepoint(self) -> None: ...
    async def release_savepoint(self) -> None: ...


class EngineKind:
    """A lazy store and engines on it, sync or async, with blocking calls for the test."""

    def __init__(self, loop: LoopThread | None) -> None:
        self.loop = loop
        self.runs = 0

    def store(self, learned: Guarantee = HOPED) -> Any:
        return LazyStore(learned) if self.loop is None else AsyncLazyStore(learned)

    def once(self, store: Any, **options: Any) -> Any:
        if self.loop is None:
            return Once(store, **options)
        return SyncOnce(AsyncOnce(store, **options), self.loop)

    def body(self, attempt: Any) -> int:
        self.runs += 1
        return self.runs

    def in_transaction(self, once: Any) -> Callable[..., Any]:
        """`run` of the engine's operations on a caller's connection."""
        if self.loop is None:
            run: Callable[..., Any] = once.in_transaction(object()).run
            return run
        inside = once.inner.in_transaction(object())
        loop = self.loop

        async def body(attempt: Any) -> int:
            return self.body(attempt)

        def run_inside(operation: str, key: str, _: Any, **options: Any) -> Any:
            return loop.run(inside.run(operation, key, body, **options))

        return run_inside


@pytest.fixture(params=["blocking", "asyncio"])
def kind(request: pytest.FixtureRequest) -> Any:
    if request.param == "blocking":
        yield EngineKind(None)
        return
    loop = LoopThread()
    yield EngineKind(loop)
    loop.close()


# --- when the store is reached --------------------------------------------------------------------


def test_an_engine_does_not_reach_its_store_at_construction_or_decoration(kind: EngineKind) -> None:
    store = kind.store()
    store.failures = [StoreUnavailable("no server")]
    once = kind.once(store, policy=Policy(require="at_most_once"))
    once.guard("charge", key=lambda order: order, require="fenced", retry_safe=True)
    assert store.binds == 0
    assert once.guarantee is HOPED


def test_the_first_run_reaches_the_store_once(kind: EngineKind) -> None:
    store = kind.store(Guarantee(Level.FENCED, "learned"))
    once = kind.once(store)
    assert once.run("op", "k1", kind.body).value == 1
    assert once.run("op", "k2", kind.body).value == 2
    assert once.guarantee is store.learned
    assert store.binds == 1


def test_get_sweep_and_the_with_statement_reach_the_store(kind: EngineKind) -> None:
    stores = [kind.store() for _ in range(3)]
    assert kind.once(stores[0]).get("op", "k") is None
    assert kind.once(stores[1]).sweep() == 0
    if kind.loop is None:
        with kind.once(stores[2]):
            pass
    else:
        kind.loop.run(kind.once(stores[2]).inner.__aenter__())
    assert [store.binds for store in stores] == [1, 1, 1]
    assert [store.used for store in stores] == [["Look"], ["sweep"], []]


def test_a_store_that_cannot_be_reached_is_tried_again_by_the_next_call(kind: EngineKind) -> None:
    store = kind.store()
    store.failures = [StoreUnavailable("no server yet"), StoreUnavailable("nor now")]
    once = kind.once(store)
    for text in ("no server yet", "nor now"):
        with pytest.raises(StoreUnavailable, match=text):
            once.run("op", "k", kind.body)
    assert kind.runs == 0
    assert once.run("op", "k", kind.body).value == 1
    assert store.binds == 3


def test_a_wrong_secret_is_refused_on_first_use(kind: EngineKind) -> None:
    store = kind.store()
    kind.once(store, secret="one" * 10).run("op", "k", kind.body)
    other = kind.once(store, secret="two" * 10)
    with pytest.raises(ConfigurationError):
        other.run("op", "k2", kind.body)
    assert kind.runs == 1


def test_threads_that_all_come_first_all_succeed() -> None:
    store = LazyStore()
    once = Once(store)
    together = threading.Barrier(8)
    values: list[object] = []

    def call(number: int) -> None:
        together.wait(60)
        values.append(once.run("op", f"k{number}", lambda attempt: number).value)

    threads = [threading.Thread(target=call, args=(n,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(values, key=str) == list(range(8))
    assert once.guarantee is store.learned


def test_tasks_that_all_come_first_all_succeed() -> None:
    async def main() -> None:
        once = AsyncOnce(AsyncLazyStore())

        async def body(attempt: Any) -> str:
            return str(attempt.key)

        runs = [once.run("op", f"k{number}", body) for number in range(8)]
        assert [result.value for result in await asyncio.gather(*runs)] == [
            f"k{number}" for number in range(8)
        ]

    asyncio.run(main())


# --- its guarantee --------------------------------------------------------------------------------


def test_a_default_policy_above_the_stores_guarantee_is_refused_before_any_body(
    kind: EngineKind,
) -> None:
    store = kind.store(POOR)
    once = kind.once(store, policy=Policy(require="at_most_once"))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="does not wait for its disk"):
            once.run("op", "k", kind.body)
    assert kind.runs == 0
    assert store.used == []
    assert once.guarantee is POOR


def test_only_the_operation_that_requires_more_is_refused(kind: EngineKind) -> None:
    store = kind.store(POOR)
    once = kind.once(store)
    calls: list[str] = []

    def charge(order: str) -> str:
        calls.append(order)
        return order

    guard = once.guard("charge", key=lambda order: order, require="fenced", retry_safe=True)
    charged = guard(charge)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="requires fenced"):
            charged("o1")
        with pytest.raises(ConfigurationError, match="requires at most once"):
            once.run("op", "k", kind.body, require="at_most_once")
    assert calls == []
    assert once.run("op", "k", kind.body).value == 1, "what requires nothing runs"


def test_a_level_the_store_can_never_guarantee_is_refused_at_construction(kind: EngineKind) -> None:
    store = kind.store()
    store.guarantee = POOR
    with pytest.raises(ConfigurationError):
        kind.once(store, policy=Policy(require="at_most_once"))


def test_a_transactional_default_is_checked_against_the_reached_store(kind: EngineKind) -> None:
    store = kind.store(POOR)
    once = kind.once(store, policy=Policy(require="transactional"))
    with pytest.raises(ConfigurationError, match="requires transactional"):
        kind.in_transaction(once)("op", "k", kind.body)
    assert kind.runs == 0


# --- in a transaction -----------------------------------------------------------------------------


def test_a_transaction_reaches_the_store_before_it_claims(kind: EngineKind) -> None:
    store = kind.store()
    store.failures = [StoreUnavailable("no server yet")]
    run = kind.in_transaction(kind.once(store))
    assert store.binds == 0
    with pytest.raises(StoreUnavailable, match="no server yet"):
        run("op", "k", kind.body)
    assert run("op", "k", kind.body).value == 1
    assert store.binds == 2


def test_a_transaction_is_checked_against_the_reached_store(kind: EngineKind) -> None:
    store = kind.store(POOR)
    once = kind.once(store)
    run = kind.in_transaction(once)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="requires transactional"):
            run("op", "k", kind.body, require="transactional")
    assert kind.runs == 0
    late = kind.in_transaction(once)
    with pytest.raises(ConfigurationError, match="requires transactional"):
        late("op", "k", kind.body, require="transactional")


# --- stores that are not lazy ---------------------------------------------------------------------


class Counting(MemoryStore):
    binds = 0

    def bind(self, check: bytes, /) -> Seen:
        self.binds += 1
        return super().bind(check)


class AsyncCounting(AsyncMemoryStore):
    binds = 0

    async def bind(self, check: bytes, /) -> Seen:
        self.binds += 1
        return await super().bind(check)


def test_a_store_that_is_not_lazy_is_bound_when_the_engine_is_made() -> None:
    store = Counting()
    once = Once(store)
    assert store.binds == 1
    once.run("op", "k", lambda attempt: 1)
    assert store.binds == 1


def test_an_async_engine_binds_on_first_use_whatever_the_store() -> None:
    store = AsyncCounting()
    once = AsyncOnce(store)
    assert store.binds == 0

    async def main() -> None:
        async def body(attempt: Any) -> int:
            return 1

        await once.run("op", "k", body)
        await once.run("op", "k2", body)

    asyncio.run(main())
    assert store.binds == 1
