"""What only a broker of this decade shows: topic ids, on Kafka 4.1."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.queues.kafka_topics import SECONDS, Topic, consumer_of, running, wait_for
from tests.support.kafka_servers import modern_kafka
from tests.support.servers import processes

from oncekey import Once, Policy
from oncekey.core.errors import ConfigurationError
from oncekey.queues.kafka import KafkaConsumer
from oncekey.queues.kafka.aiokafka_values import ask
from oncekey.queues.kafka.confluent_topics import ConfluentTopics
from oncekey.stores.memory import MemoryStore
from oncekey.testing import FakeClock


@pytest.fixture
def once() -> Iterator[Once]:
    """Its store's clock stands still, so that no lease ends."""
    with Once(MemoryStore(clock=FakeClock().wall), policy=Policy(lease="2s")) as opened:
        yield opened


@pytest.fixture
def topic() -> Topic:
    return Topic(modern_kafka().client)


def test_i1_delivery_keys_of_a_topic_that_is_created_again_are_new_ones(
    topic: Topic, once: Once
) -> None:
    """The messages of the new topic have the offsets of old ones, which are done."""
    seen: list[object] = []

    def consumer() -> KafkaConsumer:
        return consumer_of(
            topic, once, lambda m: seen.append(m.json()["order"]), key="delivery", request=None
        )

    ended = pytest.raises(ConfigurationError, match="was created again")
    with ended, running(consumer()) as running_one:
        topic.send("old-1", "old-2", "old-3")
        topic.wait_until_done()
        modern_kafka().delete_topic(topic.name)
        topic.recreate()
        topic.send("new-1", "new-2")
        wait_for(lambda: not running_one._is_running, "the consumer ends")
    with running(consumer()):
        wait_for(lambda: len(seen) == 5, "the new ones are handled")
    assert seen == ["old-1", "old-2", "old-3", "new-1", "new-2"]


# --- topics that are missing at the start ---------------------------------------------------------


def check_confluent(address: str, topics: list[str]) -> None:
    ConfluentTopics({"bootstrap.servers": address}, SECONDS).check(topics)


def check_aiokafka(address: str, topics: list[str]) -> None:
    asyncio.run(ask({"bootstrap_servers": address}, topics, SECONDS))


@pytest.mark.parametrize("check", [check_confluent, check_aiokafka])
def test_topics_that_the_broker_creates_when_it_is_asked_are_waited_for(check: Any) -> None:
    """Kafka 4 creates a topic in the background, and does not know it until it is there."""
    names = [processes.fresh_name("orders") for _ in range(3)]
    check(modern_kafka().address, names)
    assert modern_kafka().topics() >= set(names)


@pytest.mark.parametrize("check", [check_confluent, check_aiokafka])
def test_a_topic_that_nobody_creates_is_named(check: Any) -> None:
    """The name of a topic has no space, so no broker creates it."""
    with pytest.raises(ConfigurationError, match="has no topic no topic; create it first"):
        check(modern_kafka().address, ["no topic"])
