"""The gauges of a store are complete and right, on every store, whatever comes between readings."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.store_table import Opener

from oncekey.core.commands import Claim, Finish, Look
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import State
from oncekey.engine.keys.administration import run_plan, run_plan_async
from oncekey.metrics import store_gauges
from oncekey.metrics.exporter import StoreCollector, make_registry, text_of
from oncekey.metrics.store_gauges import GAUGE_NAMES, Reading, StoreWatch, gauges_of
from oncekey.stores.memory import MemoryStore
from oncekey.stores.outbox_commands import OutboxCounts
from oncekey.testing import FakeClock, FaultyStore

SECOND = 1_000_000
LEASE, KEEP = 30 * SECOND, 60 * SECOND


class WatchedStore:
    """A store of the table behind sync methods, and its watch."""

    def __init__(self, opener: Opener) -> None:
        self.clock = FakeClock()
        self.store: Any = opener(self.clock.wall)
        self._watch = StoreWatch()
        self._runner = asyncio.Runner()

    def claim(self, name: str, **options: Any) -> Claim:
        id = name.encode().ljust(16, b".")
        claim = Claim(id, id, b"f" * 33, LEASE, KEEP, 0, False, "acct", "charge")
        self.apply([claim._replace(**options)])
        return claim

    def finish(self, claim: Claim) -> None:
        fence = self._look(claim)
        self.apply([Finish(claim.id, claim.owner, fence, State.SUCCEEDED, b"x")])

    def _look(self, claim: Claim) -> int:
        return int(self.apply([Look(claim.id)])[0].record.fence)

    def apply(self, commands: list[Any]) -> Any:
        return self._wait(self.store.apply(commands))

    def read(self) -> Reading:
        plan = self._watch.read()
        if inspect.iscoroutinefunction(self.store.apply):
            return self._runner.run(run_plan_async(self.store, plan))
        return run_plan(self.store, plan)

    def _wait(self, made: Any) -> Any:
        async def await_it() -> Any:
            return await made

        return self._runner.run(await_it()) if inspect.isawaitable(made) else made

    def close(self) -> None:
        self._wait(self.store.close())
        self._runner.close()


@pytest.fixture
def watched(opener: Opener) -> Iterator[WatchedStore]:
    watched = WatchedStore(opener)
    yield watched
    watched.close()


def test_pending_unknown_and_ended_keys_are_told_apart_between_readings(
    watched: WatchedStore,
) -> None:
    assert watched.read().stats.pending == 0
    first = watched.claim("first")
    watched.clock.advance(10 * SECOND)
    watched.claim("second")
    reading = watched.read()
    assert (reading.stats.pending, reading.stats.unknown) == (2, 0)
    assert reading.stats.pending_oldest == pytest.approx(10, abs=1)
    watched.finish(first)
    watched.clock.advance(LEASE)
    watched.claim("third")
    reading = watched.read()
    assert (reading.stats.pending, reading.stats.unknown) == (1, 1)
    assert reading.unknown_oldest == pytest.approx(30, abs=1)
    assert reading.complete


def test_an_unknown_key_stays_counted_long_after_it_was_listed(watched: WatchedStore) -> None:
    watched.claim("dead")
    watched.clock.advance(LEASE)
    for _ in range(3):
        assert watched.read().stats.unknown == 1
        watched.clock.advance(3_600 * SECOND)


def test_every_gauge_has_a_name_that_is_promised(watched: WatchedStore) -> None:
    watched.claim("first")
    reading = watched.read()._replace(outbox=OutboxCounts(0, 0, 0, 0, 0))
    names = {gauge.name for gauge in gauges_of(reading)}
    assert names < set(GAUGE_NAMES)
    assert set(GAUGE_NAMES) - names == {
        "oncekey_store_up",
        "oncekey_store_read_seconds",
        "oncekey_store_read_timestamp_seconds",
    }


def test_more_open_keys_than_can_be_watched_are_said_to_be_incomplete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = WatchedStore(lambda clock: MemoryStore(clock=clock))
    monkeypatch.setattr(store_gauges, "OPEN_KEYS_MAX", 3)
    for number in range(5):
        watched.claim(f"key-{number}")
    reading = watched.read()
    assert (reading.complete, reading.stats.pending) == (False, 3)
    watched.close()


def test_while_the_store_is_down_it_is_not_up_and_has_no_figures() -> None:
    store = FaultyStore(MemoryStore())
    collector = StoreCollector(store, "main")
    registry = make_registry(collector)
    assert collector.read() is None
    assert 'oncekey_store_rows{store="main"} 0.0' in text_of(registry)
    store.down = True
    assert isinstance(collector.read(), StoreUnavailable)
    text = text_of(registry)
    assert 'oncekey_store_up{store="main"} 0.0' in text
    assert "oncekey_store_rows" not in text
    store.down = False
    assert collector.read() is None
    assert 'oncekey_store_up{store="main"} 1.0' in text_of(registry)
