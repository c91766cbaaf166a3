"""Consumers of Redis Streams on a real Valkey: duplicates, dead letters, redrives, long handlers,
and servers that crash."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.queues.running_consumer import PATIENCE_S, wait_until
from tests.queues.running_stream_consumer import consuming
from tests.queues.stream_queues import ClockedServer
from tests.support.redis_stores import valkey
from tests.support.servers import processes
from tests.support.servers.redis_server import DURABLE, RedisServer
from tests.support.servers.requirements import require

from oncekey import Once, Terminal
from oncekey.core.errors import ConfigurationError
from oncekey.queues.aio import consumer as aio_consumer
from oncekey.queues.blocking import consumer as blocking_consumer
from oncekey.queues.disposition import Kind
from oncekey.queues.queue_message import Message
from oncekey.queues.redis_streams import RedisStreamConsumer

GROUP = "shipping"


@pytest.fixture(params=("threads", "tasks"))
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


class Place:
    """A stream on a server, and the file of a store."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.server = server
        self.stream = processes.fresh_name("orders")
        self.where = (f"sqlite:///{folder / 'keys.db'}", server.url(), self.stream)
        self.client: Any = server.client()

    def add(self, *orders: object, **fields: str) -> None:
        for order in orders:
            self.client.xadd(self.stream, {"body": json.dumps({"order": order}), **fields})

    def is_done(self) -> bool:
        """True if everything was given to the group and is not pending any more."""
        (group,) = self.client.xinfo_groups(self.stream) or ({"pending": 1, "lag": 1},)
        return not group["pending"] and not group["lag"]

    def dead(self) -> list[dict[str, str]]:
        return [fields for _, fields in self.client.xrange(f"{self.stream}:dead")]

    def due(self) -> list[float]:
        key = f"{self.stream}:oncekey:{GROUP}"
        return [score for _, score in self.client.zrange(key, 0, -1, withscores=True)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(valkey(), tmp_path)
    yield made
    made.client.close()


class Handler:
    """Counts how often each order was handled; `gate` holds those that are named in `held`."""

    def __init__(self, *held: object) -> None:
        self.counts: Counter[object] = Counter()
        self.errors: dict[object, Exception] = {}
        self.gate = threading.Event()
        self.entered = threading.Event()
        self._held = held

    def __call__(self, message: Message) -> None:
        order = message.json()["order"]
        self.counts[order] += 1
        if order in self._held:
            self.entered.set()
            assert self.gate.wait(PATIENCE_S)
        if order in self.errors:
            raise self.errors[order]


def test_each_order_is_handled_once_and_every_entry_acknowledged(kind: str, place: Place) -> None:
    handler = Handler()
    place.add(*range(100), *range(20))
    with consuming(kind, *place.where, handler, retry_safe=True) as made:
        wait_until(place.is_done, "everything is acknowledged")
        place.add(100)
        wait_until(lambda: handler.counts[100] == 1, "a later entry is handled")
    assert handler.counts == dict.fromkeys(range(101), 1)
    assert made.error is None
    assert place.client.xinfo_consumers(place.stream, GROUP) == []


def test_a_duplicate_of_a_running_order_is_neither_handled_nor_removed(
    kind: str, place: Place
) -> None:
    handler = Handler("book")
    place.add("book")
    with (
        consuming(kind, *place.where, handler) as one,
        consuming(kind, *place.where, handler) as other,
    ):
        assert handler.entered.wait(PATIENCE_S)
        place.add("book")
        both = (one.consumer, other.consumer)
        wait_until(lambda: any(c.counts[Kind.HIDE] for c in both), "the duplicate is hidden")
        assert len(place.client.xpending_range(place.stream, GROUP, "-", "+", 10)) == 2
        handler.gate.set()
        wait_until(place.is_done, "it comes again after the lease, and is removed")
    assert handler.counts["book"] == 1


@pytest.fixture(scope="module")
def clocked() -> Iterator[ClockedServer]:
    made = require(ClockedServer)
    yield made
    made.close()


def test_a_handler_that_lasts_longer_than_the_lease_keeps_its_entry(
    kind: str, clocked: ClockedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5 for the broker's deadline: the owner renews it together with its lease. The server's clock
    is moved on by less than a lease after each renewal."""
    for module in (blocking_consumer, aio_consumer):
        monkeypatch.setattr(module, "EXTENSIONS_PER_LEASE", 600)  # one in a tenth of a second
    place, handler = Place(clocked.server, tmp_path), Handler("book")
    place.add("book")
    with (
        consuming(kind, *place.where, handler, lease="1m") as one,
        consuming(kind, *place.where, handler, lease="1m") as other,
    ):
        assert handler.entered.wait(PATIENCE_S)
        wait_until(lambda: bool(place.due()), "it has its first deadline")
        for _ in range(3):
            (due,) = place.due()
            clocked.pass_time(40)
            wait_until(lambda: place.due()[0] > due + 30_000, "it has a later one")  # noqa: B023
        (pending,) = place.client.xpending_range(place.stream, GROUP, "-", "+", 10)
        assert pending["times_delivered"] == 1
        handler.gate.set()
        wait_until(place.is_done, "it is acknowledged")
    assert handler.counts["book"] == 1
    assert one.consumer.counts + other.consumer.counts == {Kind.REMOVE: 1}
    place.client.close()


def test_a_terminal_error_goes_with_its_dead_letter_and_a_redrive_runs_it_once_more(
    kind: str, place: Place
) -> None:
    handler = Handler()
    handler.errors["book"] = Terminal("no such item")
    place.add("book", "pen")
    with consuming(kind, *place.where, handler, retry_safe=True):
        wait_until(lambda: len(place.dead()) == 1, "it is a dead letter")
        assert place.dead()[0]["oncekey-error"] == "Terminal: no such item"
        place.add("book")  # an ordinary duplicate opens nothing
        wait_until(lambda: len(place.dead()) == 2, "its duplicate is one, too")
        assert handler.counts == {"book": 1, "pen": 1}
        handler.errors.clear()
        # Both are moved back by hand, as `oncekey redrive` does it, and one of them twice.
        for letter in [*place.dead(), place.dead()[0]]:
            place.client.xadd(place.stream, letter)
        wait_until(place.is_done, "they are handled")
    assert handler.counts == {"book": 2, "pen": 1}


def test_a_failed_try_is_repeated_and_too_many_are_a_dead_letter(kind: str, place: Place) -> None:
    handler = Handler()
    handler.errors["book"] = RuntimeError("busy")
    place.add("book")
    with consuming(kind, *place.where, handler, retry_safe=True, max_tries=3):
        wait_until(lambda: len(place.dead()) == 1, "it is a dead letter")
    assert handler.counts["book"] == 3
    assert "failed 3 times, last with RuntimeError: busy" in place.dead()[0]["oncekey-error"]
    with Once(place.where[0]) as once:
        options: Any = {"server": place.where[1], "name": GROUP, "key": "json:$.order"}
        redriving = RedisStreamConsumer(once, handler, place.stream, **options)
        redriving._broker.facts()
        assert redriving._broker.redrive(10, "after-the-fix") == 1
        redriving._broker.close()
    handler.errors.clear()
    with consuming(kind, *place.where, handler, retry_safe=True, max_tries=3):
        wait_until(place.is_done, "it is handled")
    assert handler.counts["book"] == 4


def test_deliveries_of_a_recreated_stream_are_new_messages(kind: str, place: Place) -> None:
    handler = Handler()
    for order in ("old", "new"):
        place.client.xadd(place.stream, {"body": json.dumps({"order": order})}, id="1-0")
        with consuming(kind, *place.where, handler, key="delivery") as made:
            wait_until(lambda: handler.counts[order] == 1, f"the {order} one is handled")  # noqa: B023
            place.client.delete(place.stream)
            wait_until(lambda: made.error is not None, "a deleted stream ends its consumer")
            assert isinstance(made.error, ConfigurationError)
    assert handler.counts == {"old": 1, "new": 1}


def test_a_server_that_crashes_while_a_handler_runs_loses_and_repeats_nothing(
    kind: str, tmp_path: Path
) -> None:
    """Its append-only file has the entries and who holds them; the consumer connects again."""
    with require(lambda: RedisServer(settings=DURABLE)) as server:
        place, handler = Place(server, tmp_path), Handler("book")
        place.add("book", *range(10))
        with consuming(kind, *place.where, handler) as made:
            assert handler.entered.wait(PATIENCE_S)
            wait_until(lambda: handler.counts[9] == 1, "the others are handled")
            server.kill()
            handler.gate.set()
            wait_until(lambda: made.consumer.in_hand == 0, "the handler has ended")
            server.start()
            place.add(10)
            wait_until(place.is_done, "everything is acknowledged")
        assert handler.counts == dict.fromkeys(["book", *range(11)], 1)
        place.client.close()
