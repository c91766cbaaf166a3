"""A topic of its own for each test, with its dead-letter, retry and park topics, seen from outside.

Topics and groups are looked at by clients of their own, so that what a consumer says of itself does
not count as proof.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from tests.support.servers import processes

from oncekey import Once
from oncekey.queues.kafka import KafkaConsumer
from oncekey.queues.queue_message import Message as QueueMessage

SECONDS = 90.0
# A member that leaves says so, and one that is slow is not missed.
REFRESH: dict[str, Any] = {"topic.metadata.refresh.interval.ms": 1_000}
GROUP_TIMES: dict[str, Any] = {
    "session.timeout.ms": 20_000,
    "heartbeat.interval.ms": 300,
    **REFRESH,
}
NEW_GROUP = {"group.protocol": "consumer"}
# Of a partition whose broker has just heard that it exists.
_NEW = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)
Handler = Callable[[QueueMessage], object]


class Topic:
    """One topic, and the consumer group `group` that consumes it."""

    def __init__(
        self,
        client: dict[str, Any],
        name: str = "orders",
        group: str = "shop",
        *,
        is_fresh: bool = False,
        options: dict[str, Any] | None = None,
    ) -> None:
        """`is_fresh` says that no other test has these names; else they get an ending. `options`
        are more options of its consumers."""
        self._options = options or {}
        self.client = client
        self.name = name if is_fresh else processes.fresh_name(name)
        self.group = group if is_fresh else f"{group}-{self.name}"
        self._producer = Producer({**client, "acks": "all"})
        self._numbers: dict[str, list[int]] = {}
        self.partitions = len(self._partitions(self.name))

    @property
    def dead(self) -> str:
        return f"{self.name}.{self.group}.dead"

    @property
    def retry(self) -> str:
        return f"{self.name}.{self.group}.retry"

    @property
    def parked(self) -> str:
        return f"{self.name}.{self.group}.parked"

    @property
    def config(self) -> dict[str, Any]:
        own = {"group.id": self.group, "auto.offset.reset": "earliest", **self._options}
        # The newer protocol has its times at the broker.
        is_new = own.get("group.protocol") == NEW_GROUP["group.protocol"]
        return {**self.client, **(REFRESH if is_new else GROUP_TIMES), **own}

    def send(self, *orders: object, partition: int = 0, **headers: str) -> None:
        """Send orders, each as a JSON body whose `order` is its business id."""
        for order in orders:
            body = json.dumps({"order": order}).encode()
            self.send_body(body, partition=partition, key=str(order).encode(), **headers)
        self.flush()

    def send_body(
        self, body: bytes, partition: int = 0, key: bytes | None = None, **headers: str
    ) -> None:
        pairs: list[tuple[str, str | bytes | None]] = list(headers.items())
        self._producer.produce(self.name, body, key=key, partition=partition, headers=pairs)

    def flush(self) -> None:
        assert self._producer.flush(SECONDS) == 0

    def recreate(self) -> None:
        """Let the broker create the topic again, after it was deleted."""
        self._numbers.clear()
        self._producer = Producer({**self.client, "acks": "all"})
        self._partitions(self.name)

    # --- what is there --------------------------------------------------------------------------

    def read(self, topic: str, expected: int) -> list[Message]:
        """Return `expected` messages of a topic from its beginning, outside of any group."""
        reader = Consumer({**self.client, "group.id": "reader", "enable.auto.commit": False})
        try:
            partitions = self._partitions(topic)
            reader.assign(
                [TopicPartition(topic, p.partition, OFFSET_BEGINNING) for p in partitions]
            )
            found: list[Message] = []

            def all_there() -> bool:
                found.extend(m for m in reader.consume(100, 0.05) if m.error() is None)
                return len(found) >= expected

            processes.wait_until(all_there, f"{topic} has {expected} messages", SECONDS)
            return found
        finally:
            reader.close()

    def size(self, topic: str) -> int:
        return sum(self.ends(topic).values())

    def ends(self, topic: str) -> dict[int, int]:
        """Return how many messages each partition has had. The broker creates a missing topic."""
        return {each.partition: self._end(each) for each in self._partitions(topic)}

    def _end(self, partition: TopicPartition) -> int:
        found: list[int] = []

        def is_told() -> bool:
            try:
                found.append(self._asking.get_watermark_offsets(partition, timeout=60)[1])
            except KafkaException as error:
                if error.args[0].code() not in _NEW:
                    raise
            return bool(found)

        processes.wait_until(is_told, f"the end of {partition} is told", SECONDS)
        return found[0]

    def committed(self, topic: str | None = None) -> dict[int, int]:
        """Return the offset that the group has committed of each partition; 0 for none. While the
        group is being moved, Kafka answers with an error, which is not none."""
        partitions = self._partitions(topic or self.name)
        asked: list[TopicPartition] = []

        def is_answered() -> bool:
            asked[:] = self._asking.committed(partitions, timeout=60)
            return not any(each.error for each in asked)

        processes.wait_until(is_answered, "Kafka tells the committed offsets", SECONDS)
        return {each.partition: max(0, each.offset) for each in asked}

    @functools.cached_property
    def _asking(self) -> Consumer:
        """A client that asks about the group without being a member of it."""
        return Consumer({**self.client, "group.id": self.group, "enable.auto.commit": False})

    def _partitions(self, topic: str) -> list[TopicPartition]:
        if topic not in self._numbers:
            processes.wait_until(lambda: self._has(topic), f"{topic} exists", SECONDS)
        return [TopicPartition(topic, number) for number in self._numbers[topic]]

    def _has(self, topic: str) -> bool:
        found = self._producer.list_topics(topic, timeout=60).topics[topic]
        if found.error is None and found.partitions:
            self._numbers[topic] = list(found.partitions)
        return topic in self._numbers

    def is_done(self) -> bool:
        """True if the group has committed everything, in the topic and in its retry topic."""
        return all(self.committed(name) == self.ends(name) for name in (self.name, self.retry))

    def wait_until_done(self, seconds: float = SECONDS) -> None:
        try:
            processes.wait_until(self.is_done, f"{self.group} has committed all", seconds)
        except processes.ServerFailed as error:
            error.add_note(f"committed {self.committed()} of {self.ends(self.name)}")
            raise


@contextmanager
def running(consumer: KafkaConsumer) -> Iterator[KafkaConsumer]:
    """Run a consumer in a thread of its own until the end of the block, and raise its error."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            consumer.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield consumer
    finally:
        consumer.stop()
        thread.join(SECONDS)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def consumer_of(topic: Topic, once: Once, handler: Handler, **options: Any) -> KafkaConsumer:
    given = {
        "name": "shipping",
        "key": "json:$.order",
        "config": topic.config,
        "retry_safe": True,
        "backoff": "50ms",
        **options,
    }
    return KafkaConsumer(once, handler, topic.name, **given)


def wait_for(condition: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    processes.wait_until(condition, what, seconds)


def orders_of(messages: Sequence[Message]) -> list[object]:
    return [json.loads(message.value() or b"{}").get("order") for message in messages]
