"""Dead letters, redrives and retries that need headers, and all of it with aiokafka too.

They run on Kafka 4.1. Where that cannot be had, they run on librdkafka's mock cluster, because the
old broker has no headers, and aiokafka does not speak to it.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Producer, TopicPartition
from tests.queues.kafka_topics import NEW_GROUP, SECONDS, Topic, consumer_of, running, wait_for
from tests.queues.running_consumer import stop_consumer
from tests.support.kafka_servers import headers_kafka, kafka_mock
from tests.support.servers.kafka_server import KafkaMock

from oncekey import AsyncOnce, Once, Policy, Terminal
from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.disposition import Kind
from oncekey.queues.kafka import AsyncKafkaConsumer, aiokafka_topics, confluent_sender
from oncekey.queues.kafka.message import DUE_HEADER, RECEIVED_HEADER
from oncekey.queues.queue_message import Message

POLICY = Policy(lease="1m")
Handler = Callable[[Message], object]


def new_topic(client: dict[str, Any]) -> Topic:
    """A topic that confluent-kafka consumes by the newer group protocol."""
    return Topic(client, options=NEW_GROUP)


@pytest.fixture
def topic() -> Topic:
    return new_topic(headers_kafka().client)


class SyncConsumers:
    """Runs consumers on confluent-kafka; all of one object share a store."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._once = Once("memory://", policy=POLICY)

    @contextmanager
    def running(
        self, handler: Handler, *, reset: str = "earliest", **options: Any
    ) -> Iterator[Any]:
        config = {**self._topic.config, "auto.offset.reset": reset}
        given = {"config": config, **options}
        with running(consumer_of(self._topic, self._once, handler, **given)) as consumer:
            yield consumer

    def redrive(self, most: int, id: str) -> int:
        consumer = consumer_of(self._topic, self._once, print)
        consumer._broker.facts()
        return consumer._broker.redrive(most, id)

    def close(self) -> None:
        self._once.close()


class AsyncConsumers:
    """Runs consumers on aiokafka, each block in an event loop of its own thread."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._loop = asyncio.Runner()
        self._once = AsyncOnce("memory://", policy=POLICY)

    def _consumer(
        self, handler: Handler, *, reset: str = "earliest", **options: Any
    ) -> AsyncKafkaConsumer:
        async def awaited(message: Message) -> object:
            return handler(message)

        config = {
            "bootstrap_servers": self._topic.client["bootstrap.servers"],
            "group_id": self._topic.group,
            "auto_offset_reset": reset,
            # The mock forgets a member that leaves only after its session, and needs 3 s to let
            # the first one join.
            "session_timeout_ms": 4_000,
            "heartbeat_interval_ms": 300,
        }
        given = {
            "name": "shipping",
            "key": "json:$.order",
            "config": config,
            "retry_safe": True,
            "backoff": "50ms",
            **options,
        }
        return AsyncKafkaConsumer(self._once, awaited, self._topic.name, **given)

    @contextmanager
    def running(self, handler: Handler, **options: Any) -> Iterator[Any]:
        """The test goes on in this thread, and the loop in another one."""
        loop, errors = self._loop.get_loop(), []
        consumer = self._consumer(handler, **options)

        def run() -> None:
            try:
                loop.run_until_complete(consumer.run())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield consumer
        finally:
            stop_consumer(consumer, loop)
            thread.join(SECONDS)
        if errors:
            raise errors[0]

    def redrive(self, most: int, id: str) -> int:
        return self._loop.run(self._redrive(most, id))

    async def _redrive(self, most: int, id: str) -> int:
        async def ignored(message: Message) -> None: ...

        broker = self._consumer(ignored)._broker
        await broker.facts()
        return await broker.redrive(most, id)

    def close(self) -> None:
        self._loop.run(self._once.close())
        self._loop.close()


@pytest.fixture(params=[SyncConsumers, AsyncConsumers], ids=["confluent", "aiokafka"])
def consumers(request: pytest.FixtureRequest, topic: Topic) -> Iterator[Any]:
    made = request.param(topic)
    yield made
    made.close()


def headers_of(message: Any) -> dict[str, str]:
    return {name: value.decode() for name, value in message.headers() or []}


def test_a_dead_letter_has_its_error_and_a_redrive_runs_it_once_more(
    topic: Topic, consumers: Any
) -> None:
    seen: list[str] = []
    repaired = False

    def handler(message: Message) -> None:
        seen.append(message.json()["order"])
        if seen[-1] == "a" and not repaired:
            raise Terminal("no such address")

    topic.send("a", "b")
    topic.send("a")  # an ordinary duplicate of what will have failed
    with consumers.running(handler):
        topic.wait_until_done()
    first, second = topic.read(topic.dead, 2)
    assert headers_of(first)["oncekey-error"] == "Terminal: no such address"
    assert headers_of(first)["oncekey-fence"] == headers_of(second)["oncekey-fence"]
    assert seen == ["a", "b"]
    repaired = True
    assert consumers.redrive(10, "repair-1") == 2
    assert consumers.redrive(10, "repair-2") == 0  # they are moved back once
    with consumers.running(handler):
        topic.wait_until_done()
    # Both letters came back, and one of them opened the key.
    assert seen == ["a", "b", "a"]


def test_a_letter_that_a_redrive_could_not_write_stays_a_dead_letter(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(message: Message) -> None:
        raise Terminal("no such address")

    def without_broker(options: dict[str, Any]) -> Producer:
        """A producer whose broker is away, so that it gives every message up."""
        nobody = {"bootstrap.servers": "127.0.0.1:9", "log_level": 0}
        return Producer({**options, **nobody, "message.timeout.ms": 100})

    consumers = SyncConsumers(topic)
    topic.send("a")
    with consumers.running(fail):
        topic.wait_until_done()
    with monkeypatch.context() as patched:
        patched.setattr(confluent_sender, "Producer", without_broker)
        with pytest.raises(BrokerUnavailable, match="could not be written"):
            consumers.redrive(10, "repair-1")
    assert consumers.redrive(10, "repair-2") == 1
    consumers.close()


def test_a_large_message_can_become_a_dead_letter(topic: Topic, consumers: Any) -> None:
    """What the cluster has taken from another producer is not too large for this one."""

    def fail(message: Message) -> None:
        raise Terminal("no such address")

    body = b'{"order": 1, "text": "' + b"x" * 1_200_000 + b'"}'
    producer = Producer({**topic.client, "message.max.bytes": 2_000_000})
    producer.produce(topic.name, body, partition=0)
    assert producer.flush(SECONDS) == 0
    with consumers.running(fail):
        topic.wait_until_done()
    (letter,) = topic.read(topic.dead, 1)
    assert letter.value() == body
    assert consumers.redrive(10, "repair-1") == 1


def test_a_retry_keeps_its_time_and_its_count_in_the_retry_topic(
    topic: Topic, consumers: Any
) -> None:
    tries: list[tuple[float, int]] = []
    began = time.time()

    def handler(message: Message) -> None:
        tries.append((time.monotonic(), message.receive_count))
        if len(tries) < 3:
            raise ValueError("not yet")

    topic.send("a", source="shop")
    # Each next try comes a second later, which is too long to be waited for here.
    options = {"backoff": "1s", "backoff_max": "1s", "stuck_after": "500ms"}
    with consumers.running(handler, **options):
        topic.wait_until_done()
    assert [count for _, count in tries] == [1, 2, 3]
    times = [when for when, _ in tries]
    assert all(later - earlier > 0.9 for earlier, later in itertools.pairwise(times))
    retried = topic.read(topic.retry, 2)
    assert [headers_of(m)[RECEIVED_HEADER] for m in retried] == ["1", "2"]
    assert headers_of(retried[0])["source"] == "shop"
    assert began + 0.9 < int(headers_of(retried[0])[DUE_HEADER]) / 1000 < time.time()


@pytest.mark.parametrize("kind", [SyncConsumers, AsyncConsumers])
def test_a_delivery_key_is_refused_where_the_topic_has_no_identity(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mock tells no topic ids to confluent-kafka. On aiokafka it is asked by a version of the
    request that it does not have, as a broker before Kafka 2.8 would be."""
    monkeypatch.setattr(aiokafka_topics._AskTopics, "API_VERSION", 99)
    consumers = kind(new_topic(kafka_mock().client))
    refused = pytest.raises(ConfigurationError, match="key='delivery'")
    with refused, consumers.running(print, key="delivery") as consumer:
        wait_for(lambda: consumer._was_run and not consumer._is_running, "it has ended")
    consumers.close()


@pytest.mark.soak  # shown on the real broker
def test_the_partitions_of_a_member_that_leaves_go_to_the_other(
    topic: Topic, consumers: Any
) -> None:
    seen: list[str] = []
    with consumers.running(lambda m: seen.append(m.json()["order"])):
        for partition in range(topic.partitions):
            topic.send(f"a{partition}", partition=partition)
        topic.wait_until_done()
    with consumers.running(lambda m: seen.append(m.json()["order"])) as second:
        for partition in range(topic.partitions):
            topic.send(f"b{partition}", partition=partition)
        topic.wait_until_done()
        assert second.counts[Kind.REMOVE] == topic.partitions  # the others were committed
    assert sorted(seen) == sorted(f"{m}{n}" for m in "ab" for n in range(topic.partitions))


def test_latest_pins_its_start_so_that_nothing_after_it_is_skipped(topic: Topic) -> None:
    """A new group that begins at the end commits that place before it has a message."""
    topic.send("old")
    seen: list[object] = []
    config = {**topic.config, "auto.offset.reset": "latest"}
    with Once("memory://", policy=POLICY) as once:
        consumer = consumer_of(topic, once, lambda m: seen.append(m.json()["order"]), config=config)
        with running(consumer):
            wait_for(lambda: topic.committed()[0] == 1, "the place is committed")
        topic.send("while nobody was there")
        again = consumer_of(topic, once, lambda m: seen.append(m.json()["order"]), config=config)
        with running(again):
            wait_for(lambda: seen == ["while nobody was there"], "it is handled")


def test_a_consumer_stops_in_order_while_its_brokers_are_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On aiokafka, whose client says only in its log that it tries in vain."""
    with KafkaMock() as mock:
        topic = new_topic({**mock.client, "log_level": 0})
        consumers = AsyncConsumers(topic)
        topic.send("a")
        # Its offset is done, and cannot be committed any more.
        with consumers.running(lambda message: mock.kill(), ask_timeout="2s") as consumer:
            wait_for(lambda: consumer.counts[Kind.REMOVE] == 1, "the message is handled")
            wait_for(lambda: "Failed fetch messages" in caplog.text, "the broker is missed")
        consumers.close()


@pytest.mark.parametrize("is_new", [True, False], ids=["added-later", "fell-behind"])
def test_latest_skips_nothing_of_a_partition_that_comes_after_the_group_has_begun(
    consumers: Any, topic: Topic, is_new: bool
) -> None:
    """The group has an offset in one partition and none in another, as after one was added; or one
    that the topic does not have any more. What waits there came after the group had begun."""
    topic.send("skipped", partition=0)
    began = TopicPartition(topic.name, 0, 1)
    gone = TopicPartition(topic.name, 1, 1_000_000)
    topic._asking.commit(offsets=[began] if is_new else [began, gone], asynchronous=False)
    topic.send("waiting", partition=1)
    seen: list[str] = []
    with consumers.running(lambda message: seen.append(message.json()["order"]), reset="latest"):
        topic.send("later", partition=0)
        wait_for(lambda: len(seen) >= 2, "both orders are handled")
    assert sorted(seen) == ["later", "waiting"]


def test_latest_keeps_what_aiokafka_fetches_before_the_group_has_its_beginning(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka fetches while its listener still asks where the group has begun."""
    topic.send("skipped")
    topic._asking.commit(offsets=[TopicPartition(topic.name, 0, 1)], asynchronous=False)
    topic.send("waiting")
    fetched, getmany, committed = (
        asyncio.Event(),
        AIOKafkaConsumer.getmany,
        AIOKafkaConsumer.committed,
    )

    async def noted(self: AIOKafkaConsumer, *partitions: Any, **options: Any) -> Any:
        records = await getmany(self, *partitions, **options)
        if records:
            fetched.set()
        return records

    async def late(self: AIOKafkaConsumer, partition: Any) -> Any:
        await fetched.wait()
        return await committed(self, partition)

    monkeypatch.setattr(AIOKafkaConsumer, "getmany", noted)
    monkeypatch.setattr(AIOKafkaConsumer, "committed", late)
    consumers, seen = AsyncConsumers(topic), list[str]()
    with consumers.running(lambda message: seen.append(message.json()["order"]), reset="latest"):
        wait_for(fetched.is_set, "a message was fetched")
        topic.send("later")
        wait_for(lambda: "later" in seen, "the later order is handled")
    consumers.close()
    assert seen == ["waiting", "later"]


def test_latest_begins_at_the_end_of_every_partition_whoever_has_it(
    consumers: Any, topic: Topic
) -> None:
    """The first member commits where the group begins for all partitions, so that a second one does
    not take the others for new."""
    topic.send("skipped", partition=0)
    topic.send("skipped", partition=1)
    with consumers.running(lambda message: None, reset="latest"):
        wait_for(lambda: topic.committed() == topic.ends(topic.name), "the start is committed")
    assert topic.partitions > 1
