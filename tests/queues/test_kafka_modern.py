"""What only a broker of this decade shows: topic ids, on Kafka 4.1."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.queues.kafka_topics import SECONDS, Topic, consumer_of, running, wait_for
from tests.support.kafka_servers import modern_kafka
from tests.support.servers import processes

from oncekey import Once, Policy
from oncekey.core.errors import ConfigurationError
from oncekey.queues.kafka import KafkaConsumer, confluent_member
from oncekey.queues.kafka.aiokafka_values import ask
from oncekey.queues.kafka.confluent_topics import ConfluentTopics
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
    return Topic(modern_kafka().client)


# --- topics that are created again ----------------------------------------------------------------


class CreatedAgain:
    """A topic that is created again while a handler holds a message of the old one.

    Its consumer fetches nothing meanwhile, and does not hear that the topic was deleted. When it
    goes on, the new topic has grown past the place where it was.
    """

    OLD = ("old-1", "old-2", "old-3")
    NEW = tuple(f"new-{number}" for number in range(6))

    def __init__(self, topic: Topic, once: Once) -> None:
        self.topic = topic
        self.once = once
        self.seen: list[object] = []
        self._go_on = threading.Event()

    def handle(self, message: Message) -> None:
        self.seen.append(message.json()["order"])
        if self.seen[-1] == self.OLD[-1]:
            assert self._go_on.wait(SECONDS)

    def consumer(self, **options: Any) -> KafkaConsumer:
        # Nobody asks for the topics again unless something makes it.
        config = {**self.topic.config, "topic.metadata.refresh.interval.ms": 300_000}
        return consumer_of(
            self.topic, self.once, self.handle, config=config, concurrency=1, **options
        )

    def create_again(self, consumer: KafkaConsumer) -> None:
        self.topic.send(*self.OLD)
        broker: Any = consumer.broker
        wait_for(lambda: self.seen == list(self.OLD), "the old ones are with the handler")
        client = broker._member._consumer
        client.pause(client.assignment())
        modern_kafka().delete_topic(self.topic.name)
        self.topic.recreate()
        self.topic.send(*self.NEW)
        client.resume(client.assignment())
        self._go_on.set()

    def check_all_were_handled(self) -> None:
        everything = sorted([*self.OLD, *self.NEW])
        wait_for(lambda: sorted(map(str, self.seen)) == everything, "the new ones are handled")
        self.topic.wait_until_done()
        assert sorted(map(str, self.seen)) == everything, "each once"


@pytest.fixture
def again(topic: Topic, once: Once, monkeypatch: pytest.MonkeyPatch) -> CreatedAgain:
    monkeypatch.setattr(confluent_member, "CHECK_EVERY_S", 0.1)
    return CreatedAgain(topic, once)


def test_i4_no_message_of_a_topic_that_is_created_again_is_skipped(again: CreatedAgain) -> None:
    """The client goes on at the offset of the old topic, which the new one has grown past."""
    with running(again.consumer()) as consumer:
        again.create_again(consumer)
        again.check_all_were_handled()


def test_i1_i4_delivery_keys_of_a_topic_that_is_created_again_are_new_ones(
    again: CreatedAgain,
) -> None:
    """The messages of the new topic have the offsets of old ones, which are done."""
    options = {"key": "delivery", "request": None}
    ended = pytest.raises(ConfigurationError, match="was created again")
    with ended, running(again.consumer(**options)) as consumer:
        again.create_again(consumer)
        wait_for(lambda: not consumer._is_running, "the consumer ends")
    with running(again.consumer(**options)):
        again.check_all_were_handled()


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
