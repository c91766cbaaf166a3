"""Apache Kafka: `KafkaConsumer` and `KafkaSender` for threads, `AsyncKafkaConsumer` and
`AsyncKafkaSender` for event loops.

consumer = KafkaConsumer(
    once, ship, "orders", name="shipping", key="json:$.order",
    config={"bootstrap.servers": "127.0.0.1:9092", "auto.offset.reset": "earliest"},
)
consumer.run()

rules      settings, message, order_queue, assigned_partitions
both       program: what is done with records and dispositions, whichever the client
threads    blocking with the consumer, confluent_member, confluent_sender, confluent_client
loops      aio with the consumer, aiokafka_sender, aiokafka_client, aiokafka_topics

Each client is imported when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from oncekey.queues.kafka.message import KafkaRefused
from oncekey.queues.missing_client import client_of

if TYPE_CHECKING:
    from oncekey.queues.kafka.aio import AsyncKafkaConsumer
    from oncekey.queues.kafka.aiokafka_sender import AsyncKafkaSender
    from oncekey.queues.kafka.blocking import KafkaConsumer
    from oncekey.queues.kafka.confluent_sender import KafkaSender

__all__ = [
    "AsyncKafkaConsumer",
    "AsyncKafkaSender",
    "KafkaConsumer",
    "KafkaRefused",
    "KafkaSender",
]

_HOMES = {
    "KafkaConsumer": ("oncekey.queues.kafka.blocking", "kafka"),
    "KafkaSender": ("oncekey.queues.kafka.confluent_sender", "kafka"),
    "AsyncKafkaConsumer": ("oncekey.queues.kafka.aio", "kafka-async"),
    "AsyncKafkaSender": ("oncekey.queues.kafka.aiokafka_sender", "kafka-async"),
}


def __getattr__(name: str) -> Any:
    """Import the class that is asked for: each needs a package that the other does not need."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _HOMES[name]
    with client_of(name, extra=extra):
        return getattr(importlib.import_module(module), name)
