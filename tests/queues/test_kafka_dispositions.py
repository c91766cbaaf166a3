"""What becomes of messages in Kafka, by how their attempts end, on the real broker.

What needs headers, which an old broker does not have, is in test_kafka_headers.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.queues.kafka_topics import (
    SECONDS,
    Topic,
    consumer_of,
    orders_of,
    running,
    wait_for,
)
from tests.support.kafka_servers import kafka

from oncekey import NotStarted, Once, Policy, Terminal
from oncekey.queues.disposition import Kind
from oncekey.queues.queue_message import Message
from oncekey.stores.memory import MemoryStore
from oncekey.testing import FakeClock, FaultyStore


@pytest.fixture
def once() -> Iterator[Once]:
    """Its store's clock stands still, so that no lease ends."""
    with Once(MemoryStore(clock=FakeClock().wall), policy=Policy(lease="2s")) as opened:
        yield opened


@pytest.fixture
def real() -> Topic:
    return Topic(kafka().client)


class Seen:
    """The orders that a handler was called for; `failing` ones raise an error of their own."""

    def __init__(self, failing: dict[object, list[Exception]] | None = None) -> None:
        self.orders: list[object] = []
        self.messages: list[Message] = []
        self._failing = failing or {}

    def __call__(self, message: Message) -> None:
        order = message.json()["order"]
        self.orders.append(order)
        self.messages.append(message)
        if self._failing.get(order):
            raise self._failing[order].pop(0)


def test_messages_of_a_partition_are_handled_in_order_also_after_failures(
    real: Topic, once: Once
) -> None:
    seen = Seen({3: [ValueError("not yet"), ValueError("not yet")]})
    real.send(1, 2, 3, 4, 5)
    with running(consumer_of(real, once, seen)):
        real.wait_until_done()
    assert seen.orders == [1, 2, 3, 3, 3, 4, 5]
    assert [message.receive_count for message in seen.messages if message.json()["order"] == 3] == [
        1,
        2,
        3,
    ]


def test_a_failing_key_holds_back_only_messages_of_its_own_key(real: Topic, once: Once) -> None:
    """With order="key" the others go on, and the offset waits for the failing one."""
    seen, free = Seen(), threading.Event()

    def handler(message: Message) -> None:
        if message.json()["order"] == "a" and not free.is_set():
            raise NotStarted("the carrier is closed")
        seen(message)

    real.send("a", "b", "c")
    with running(consumer_of(real, once, handler, order="key", max_tries=1_000)):
        wait_for(lambda: sorted(map(str, seen.orders)) == ["b", "c"], "the others are done")
        assert real.committed()[0] == 0
        free.set()
        real.wait_until_done()
    assert sorted(map(str, seen.orders)) == ["a", "b", "c"]


def test_a_stuck_message_goes_to_the_retry_topic_and_its_partition_goes_on(
    real: Topic, once: Once
) -> None:
    seen = Seen({1: [ValueError("not yet")]})
    real.send(1, 2, 3)
    # The next try comes a second later, which is too long to be waited for here.
    options = {"backoff": "1s", "backoff_max": "1s", "stuck_after": "500ms"}
    with running(consumer_of(real, once, seen, **options)):
        real.wait_until_done()
    assert sorted(map(str, seen.orders)) == ["1", "1", "2", "3"]
    assert orders_of(real.read(real.retry, 1)) == [1]


def test_a_full_partition_moves_the_message_that_holds_it_back(real: Topic, once: Once) -> None:
    seen = Seen({1: [ValueError("not yet")]})
    real.send(*range(1, 21))
    options = {"order": "none", "backoff": "2s", "stuck_after": "10m", "max_uncommitted": 5}
    with running(consumer_of(real, once, seen, **options)):
        real.wait_until_done()
    assert orders_of(real.read(real.retry, 1)) == [1]
    assert set(seen.orders) == set(range(1, 21))


def test_without_a_retry_topic_a_full_partition_waits(real: Topic, once: Once) -> None:
    seen, free = Seen(), threading.Event()

    def handler(message: Message) -> None:
        if message.json()["order"] == 1 and not free.is_set():
            raise NotStarted("the carrier is closed")
        seen(message)

    real.send(*range(1, 41))
    real.ends(real.retry)
    options = {"order": "none", "retry_topic": None, "max_uncommitted": 5, "max_tries": 1_000}
    with running(consumer_of(real, once, handler, **options)):
        # The first fetch may bring more than fits; then the partition is paused.
        wait_for(lambda: len(seen.orders) >= 5, "the others are done")
        assert real.committed()[0] == 0
        free.set()
        real.wait_until_done()
    assert sorted(map(int, map(str, seen.orders))) == list(range(1, 41))
    assert real.size(real.retry) == 0


def test_in_flight_elsewhere_is_neither_run_nor_passed_until_it_ends(
    real: Topic, once: Once
) -> None:
    seen, began, end = Seen(), threading.Event(), threading.Event()

    def elsewhere() -> None:
        def body(attempt: object) -> None:
            began.set()
            assert end.wait(SECONDS)

        once.run(
            "shipping",
            "1",
            body,
            scope=f"shipping/{real.name}",
            request=json.dumps({"order": 1}).encode(),
        )

    thread = threading.Thread(target=elsewhere)
    thread.start()
    assert began.wait(SECONDS)
    real.send(1, 2)
    consumer = consumer_of(real, once, seen, order="none", wait="0s")
    with running(consumer):
        wait_for(lambda: seen.orders == [2] and consumer.counts[Kind.HIDE] > 0, "it is hidden")
        assert real.committed()[0] == 0
        end.set()
        real.wait_until_done()
    thread.join()
    assert seen.orders == [2]  # the outcome of the other attempt was replayed


def test_a_terminal_failure_and_a_mismatch_are_in_the_dead_letter_topic(
    real: Topic, once: Once
) -> None:
    seen = Seen({1: [Terminal("no such address")]})
    real.send(1, 2)
    real.send_body(b'{"order": 2, "sent": "again, and changed"}')
    real.send_body(b"not JSON")
    real.flush()
    with running(consumer_of(real, once, seen)) as consumer:
        real.wait_until_done()
        assert consumer.counts[Kind.DEAD_LETTER] == 3
    bodies = [message.value() for message in real.read(real.dead, 3)]
    assert sorted(map(bytes, filter(None, bodies))) == [
        b"not JSON",
        b'{"order": 1}',
        b'{"order": 2, "sent": "again, and changed"}',
    ]
    assert seen.orders == [1, 2]


def test_while_the_store_is_down_nothing_is_passed_and_the_member_stays(real: Topic) -> None:
    store = FaultyStore(MemoryStore(clock=FakeClock().wall))
    seen = Seen()
    with Once(store, policy=Policy(lease="2s", store_timeout="100ms")) as once:
        consumer = consumer_of(real, once, seen)
        with running(consumer):
            real.send(1)
            real.wait_until_done()
            store.down = True
            real.send(2, 3)
            wait_for(lambda: consumer.in_hand > 0, "messages are in hand")
            broker: Any = consumer._broker
            wait_for(lambda: broker._work._assigned.all_paused, "the partitions are paused")
            assert real.committed()[0] == 1
            store.down = False
            real.wait_until_done()
    assert seen.orders == [1, 2, 3]
