"""Groups and topics that change under a consumer, on the real broker.

What only a broker of this decade has is in test_kafka_modern.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.queues.kafka_topics import SECONDS, Topic, consumer_of, running, wait_for
from tests.support.kafka_servers import kafka, old_kafka

from oncekey import Once, Policy
from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.disposition import Kind
from oncekey.queues.kafka.confluent_client import ConfluentTopics
from oncekey.queues.queue_message import Message
from oncekey.stores.memory import MemoryStore
from oncekey.testing import FakeClock


@pytest.fixture
def once() -> Iterator[Once]:
    """Its store's clock stands still, so that no lease ends."""
    with Once(MemoryStore(clock=FakeClock().wall), policy=Policy(lease="2s")) as opened:
        yield opened


@pytest.fixture
def topic() -> Topic:
    return Topic(kafka().client)


def test_a_revoked_partition_waits_for_its_handler_and_is_committed_first(
    topic: Topic, once: Once
) -> None:
    """The member that has the partition next finds nothing to do again."""
    began, end = threading.Event(), threading.Event()
    seen: list[str] = []

    def slow(message: Message) -> None:
        began.set()
        assert end.wait(SECONDS)
        seen.append(message.json()["order"])

    for partition in range(topic.partitions):
        topic.send(f"slow-{partition}", partition=partition)
    first = consumer_of(topic, once, slow)
    with running(first):
        assert began.wait(SECONDS)
        second = consumer_of(topic, once, lambda m: seen.append(m.json()["order"]))
        with running(second):
            broker: Any = first._broker
            held = broker._work._assigned._assignments
            wait_for(
                lambda: any(each.is_ending for each in list(held.values())),
                "the group takes partitions away",
            )
            end.set()
            topic.wait_until_done()
            for partition in range(topic.partitions):
                topic.send(f"fast-{partition}", partition=partition)
            topic.wait_until_done()
            wait_for(lambda: second.counts[Kind.REMOVE] > 0, "the second has a partition")
            assert second.counts[Kind.HIDE] == 0
            # Each message was received once, by either of them.
            assert first.counts[Kind.REMOVE] + second.counts[Kind.REMOVE] == 2 * topic.partitions
    assert len(seen) == len(set(seen)) == 2 * topic.partitions


def test_messages_of_a_topic_that_is_created_again_are_not_taken_for_old_ones(
    topic: Topic, once: Once
) -> None:
    """They have the offsets of old ones, and other business ids."""
    seen: list[object] = []
    with running(consumer_of(topic, once, lambda m: seen.append(m.json()["order"]))):
        topic.send("old-1", "old-2", "old-3")
        topic.wait_until_done()
        kafka().delete_topic(topic.name)
        topic.recreate()
        topic.send("new-1", "new-2")
        wait_for(lambda: len(seen) == 5, "the new ones are handled")
    assert seen == ["old-1", "old-2", "old-3", "new-1", "new-2"]


def test_a_broker_that_does_not_tell_the_id_of_a_topic_is_asked_again(
    topic: Topic, once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be away for a moment when partitions are assigned; no message is taken meanwhile."""
    asked: list[int] = []

    def identity(self: ConfluentTopics, name: str) -> str:
        asked.append(len(seen))
        if len(asked) == 2:  # after the one of the start
            raise BrokerUnavailable("Kafka does not answer as it should")
        return "first"

    monkeypatch.setattr(ConfluentTopics, "identity", identity)
    seen: list[object] = []
    topic.send("a", "b")
    handler = consumer_of(topic, once, lambda m: seen.append(m.json()["order"]), key="delivery")
    with running(handler):
        topic.wait_until_done()
    assert seen == ["a", "b"]
    assert asked[:3] == [0, 0, 0]


def test_delivery_keys_are_refused_on_a_broker_without_topic_ids(once: Once) -> None:
    topic = Topic(old_kafka().client)
    with pytest.raises(ConfigurationError, match="key='delivery'"):
        consumer_of(topic, once, print, key="delivery").run()


def test_a_redrive_is_refused_on_a_broker_without_headers(once: Once) -> None:
    topic = Topic(old_kafka().client)
    broker = consumer_of(topic, once, print)._broker
    broker.facts()
    with pytest.raises(ConfigurationError, match="store no headers"):
        broker.redrive(10, "r-1")


def test_a_session_timeout_that_the_broker_refuses_ends_the_consumer(
    topic: Topic, once: Once
) -> None:
    config = {**topic.config, "session.timeout.ms": 400, "heartbeat.interval.ms": 100}
    with pytest.raises(ConfigurationError, match="Invalid session timeout"):
        consumer_of(topic, once, print, config=config).run()
