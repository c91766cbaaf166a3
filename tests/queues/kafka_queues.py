"""Kafka for the kill harness: topics of librdkafka's mock cluster, consumed with aiokafka.

Consumers on confluent-kafka are killed by kafka_worker.py, on the real broker and also around their
commits. A client is made in the process that uses it, because none survives a fork.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.queues.kafka_topics import Topic, consumer_of

from oncekey import AsyncOnce, Once
from oncekey.queues.kafka.aiokafka_broker import AsyncKafkaConsumer

GROUP = "kills"


class KafkaQueues:
    """A `QueueUnderTest`; its argument is what a client of confluent-kafka needs."""

    session_ms = 4_000  # of aiokafka; the mock needs 3 s to let the first member join

    def __init__(self, client: dict[str, Any]) -> None:
        self._client = client
        self._topics: dict[str, Topic] = {}

    def _topic(self, queue: str) -> Topic:
        if queue not in self._topics:
            self._topics[queue] = Topic(self._client, queue, GROUP, is_fresh=True)
        return self._topics[queue]

    def send(self, queue: str, bodies: Sequence[str]) -> None:
        topic = self._topic(queue)
        for number, body in enumerate(bodies):
            topic.send_body(body.encode(), number % topic.partitions)
        topic.flush()

    def consumer(self, once: Once, queue: str, handler: Callable[..., Any], **options: Any) -> Any:
        return consumer_of(self._topic(queue), once, handler, **options)

    def async_consumer(
        self, once: AsyncOnce, queue: str, handler: Callable[..., Any], **options: Any
    ) -> AsyncKafkaConsumer:
        config = {
            "bootstrap_servers": self._client["bootstrap.servers"],
            "group_id": self._topic(queue).group,
            "auto_offset_reset": "earliest",
            "session_timeout_ms": self.session_ms,
            "heartbeat_interval_ms": 300,
        }
        return AsyncKafkaConsumer(once, handler, queue, config=config, **options)

    def is_drained(self, queue: str) -> bool:
        return self._topic(queue).is_done()
