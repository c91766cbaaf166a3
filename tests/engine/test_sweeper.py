"""The background sweeper: one of many engines sweeps, errors do not end it, closing does."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncekey.core.commands import Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.core.policy import Policy
from oncekey.core.store import SWEEP_LIMIT_DEFAULT, Unfinished
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.once import Once
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.testing.contract.engine_case import wait_until_true
from oncekey.testing.fake_clock import FakeClock
from oncekey.testing.sync_facade import LoopThread, SyncOnce

MINUTE = 60_000_000
KEY = "the-callers-own-key"


class _Watched:
    """A store that counts the sweeper's calls, and can fail."""

    lazy = False
    bites: list[int]

    def __init__(self, memory: MemoryStore) -> None:
        self.memory = memory
        self.asked = 0
        self.bites = []
        self.failures: list[Exception] = []
        self.on_sweep: Callable[[], int] | None = None

    def _elect(self, token: bytes, lease: int) -> bool:
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)
        return self.memory.elect(token, lease)

    def _sweep(self, limit: int) -> int:
        removed = self.memory.sweep(limit) if self.on_sweep is None else self.on_sweep()
        self.bites.append(removed)
        return removed


class Watched(_Watched, MemoryStore):
    def __init__(self, memory: MemoryStore) -> None:
        MemoryStore.__init__(self)
        _Watched.__init__(self, memory)

    def apply(self, commands: Any, /) -> Any:
        return self.memory.apply(commands)

    def elect(self, token: bytes, lease: int, /) -> bool:
        return self._elect(token, lease)

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int:
        return self._sweep(limit)

    def unfinished(self, after: int, limit: int, /) -> Unfinished:
        return self.memory.unfinished(after, limit)


class AsyncWatched(_Watched, AsyncMemoryStore):
    def __init__(self, memory: MemoryStore) -> None:
        AsyncMemoryStore.__init__(self, memory)
        _Watched.__init__(self, memory)

    async def elect(self, token: bytes, lease: int, /) -> bool:
        return self._elect(token, lease)

    async def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int:
        return self._sweep(limit)


class Case:
    """Sync or async engines that sweep every minute on one store, with a fake clock."""

    def __init__(self, loop: LoopThread | None) -> None:
        self.loop = loop
        self.clock = FakeClock()
        self.memory = MemoryStore(clock=self.clock.wall)
        self.engines: list[Any] = []
        self.alive = 0

    def store(self) -> Any:
        return Watched(self.memory) if self.loop is None else AsyncWatched(self.memory)

    def once(self, store: Any, **options: Any) -> Any:
        options = {"sweep_every": "1m", "clock": self.clock, **options}
        if self.loop is None:
            once: Any = Once(store, **options)
        else:
            once = SyncOnce(AsyncOnce(store, **options), self.loop)
            self.loop.run(once.inner._ready())  # an event loop is needed to start on
        self.engines.append(once)
        self.alive += 1
        return once

    def close(self, once: Any) -> None:
        self.engines.remove(once)
        self.alive -= 1
        once.close()

    def next_period(self) -> None:
        """Let a minute pass, once all sweepers wait for it, and let them do their work."""
        self.clock.wait_until_due(MINUTE, self.alive)
        self.clock.advance(MINUTE)
        self.clock.wait_until_due(MINUTE, self.alive)

    def finished_keys(self, count: int) -> None:
        """Keys that are garbage from now on."""
        once = Once(self.memory, policy=Policy(keep="1ms", audit="0s"))
        for number in range(count):
            once.run("op", f"{KEY}-{number}", lambda attempt: None)
        self.clock.advance(1_000)


@pytest.fixture(params=["blocking", "asyncio"])
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    loop = None if request.param == "blocking" else LoopThread()
    case = Case(loop)
    yield case
    for engine in case.engines:
        engine.close()
    if loop is not None:
        loop.close()


# --- the election ---------------------------------------------------------------------------------


def test_one_of_two_engines_on_a_store_sweeps(case: Case) -> None:
    stores = [case.store(), case.store()]
    for store in stores:
        case.once(store)
    for period in (1, 2, 3):
        case.next_period()
        assert [store.asked for store in stores] == [period, period]
        assert sorted(len(store.bites) for store in stores) == [0, period], "always the same one"


def test_another_engine_sweeps_after_the_elected_one_has_closed(case: Case) -> None:
    stores = [case.store(), case.store()]
    first = case.once(stores[0])
    case.next_period()
    case.once(stores[1])
    case.close(first)
    case.next_period()
    assert stores[1].bites == [], "elected for two periods, which are not over"
    case.next_period()
    assert stores[1].bites == [0]
    assert len(stores[0].bites) == 1


def test_another_engine_sweeps_after_the_elected_one_has_died(case: Case) -> None:
    assert case.memory.elect(b"dead".ljust(16), 2 * MINUTE)
    store = case.store()
    case.once(store)
    case.next_period()
    assert store.bites == []
    case.next_period()
    assert store.bites == [0]


# --- batches --------------------------------------------------------------------------------------


def test_the_sweeper_removes_batch_after_batch_until_nothing_is_left(case: Case) -> None:
    store = case.store()
    case.finished_keys(25)
    case.once(store, sweep_limit=10)
    case.next_period()
    assert store.bites == [10, 10, 5, 0]
    assert case.memory._records == {}


def test_the_sweeper_pauses_after_each_batch_and_ends_when_the_next_period_is_due(
    case: Case,
) -> None:
    """The pause is as long as the batch took, so that callers have the store to themselves."""
    store = case.store()
    third = MINUTE // 3

    def slowly() -> int:
        case.clock.advance(third)
        return 1

    store.on_sweep = slowly
    case.once(store)
    case.clock.wait_until_due(MINUTE)
    case.clock.advance(MINUTE)
    case.clock.wait_until_due(third)
    assert store.bites == [1]
    case.clock.advance(third - 1)
    assert store.bites == [1]
    case.clock.advance(1)
    wait_until_true(lambda: len(store.bites) == 2)
    case.clock.wait_until_due(MINUTE)
    assert store.bites == [1, 1]


# --- failures -------------------------------------------------------------------------------------


def test_the_sweeper_tries_a_store_that_failed_again_in_the_next_period(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    store = case.store()
    store.failures = [StoreUnavailable("no server"), ValueError(f"about {KEY}")]
    case.once(store)
    with caplog.at_level(logging.WARNING, logger="oncekey"):
        for _ in range(3):
            case.next_period()
    assert store.bites == [0]
    told = [(record.name, record.levelno, record.getMessage()) for record in caplog.records]
    assert [name for name, _, _ in told] == ["oncekey", "oncekey"]
    assert {level for _, level, _ in told} == {logging.WARNING}
    assert "StoreUnavailable: no server" in told[0][2]
    assert "ValueError" in told[1][2]
    assert KEY not in caplog.text


# --- close ----------------------------------------------------------------------------------------


def test_close_ends_the_sweeper_at_once(case: Case) -> None:
    store = case.store()
    once = case.once(store)
    case.clock.wait_until_due(MINUTE)
    case.close(once)
    case.clock.advance(10 * MINUTE)
    assert store.asked == 0
    assert "oncekey-sweeper" not in [thread.name for thread in threading.enumerate()]


def test_an_engine_without_sweep_every_does_not_sweep(case: Case) -> None:
    store = case.store()
    once = case.once(store, sweep_every=None)
    once.run("op", "k", lambda attempt: 1)
    assert "oncekey-sweeper" not in [thread.name for thread in threading.enumerate()]
    case.clock.advance(100 * MINUTE)
    assert store.asked == 0


def test_close_during_a_sweep_ends_it_without_a_log_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    store = Watched(MemoryStore(clock=clock.wall))
    inside, go = threading.Event(), threading.Event()

    def held() -> int:
        inside.set()
        assert go.wait(60)
        raise StoreUnavailable("it is being closed")

    store.on_sweep = held
    once = Once(store, sweep_every="1m", clock=clock)
    clock.wait_until_due(MINUTE)
    clock.advance(MINUTE)
    assert inside.wait(60)
    closing = threading.Thread(target=once.close)
    closing.start()
    wait_until_true(once._background[0]._stop.is_set)
    go.set()
    closing.join(60)
    assert not closing.is_alive()
    assert caplog.text == ""


# --- lazy stores ----------------------------------------------------------------------------------


class Unreached(Watched):
    """A lazy store whose server comes up later."""

    lazy = True
    up = False

    def bind(self, check: bytes, /) -> Seen:
        if not self.up:
            raise StoreUnavailable("no server yet")
        return super().bind(check)


def test_the_sweeper_waits_until_a_lazy_store_can_be_reached(
    caplog: pytest.LogCaptureFixture,
) -> None:
    case = Case(None)
    store = Unreached(case.memory)
    once = case.once(store)
    case.next_period()
    assert store.asked == 0
    assert "no server yet" in caplog.text
    store.up = True
    case.next_period()
    assert store.bites == [0]
    once.close()


# --- event loops ----------------------------------------------------------------------------------


def test_the_sweeper_can_be_closed_from_another_event_loop() -> None:
    clock = FakeClock()
    store = AsyncWatched(MemoryStore(clock=clock.wall))
    once = AsyncOnce(store, sweep_every="1m", clock=clock)
    loop = LoopThread()
    loop.run(once._ready())
    asyncio.run(once.close())
    wait_until_true(lambda: once._background[0]._task is None)
    loop.close()
    asyncio.run(once.close())
