"""Apache Kafka: `KafkaConsumer` and `KafkaSender` for threads, `AsyncKafkaConsumer` and
`AsyncKafkaSender` for event loops.

consumer = KafkaConsumer(
    once, ship, "orders", name="shipping", key="json:$.order",
    config={"bootstrap.servers": "127.0.0.1:9092", "auto.offset.reset": "earliest"},
)
consumer.run()

rules      settings, message, order_queue, assigned_partitions
both       program: what is done with records and dispositions, whichever the client
threads    confluent_broker with the consumer; _member, _sender, _client
loops      aiokafka_broker with the consumer; _sender, _client, _topics

Each client is imported when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from oncekey.queues.kafka.message import KafkaRefused
from oncekey.queues.missing_client import client_of

if TYPE_CHECKING:
    from oncekey.queues.kafka.aiokafka_broker import AsyncKafkaConsumer
    from oncekey.queues.kafka.aiokafka_sender import AsyncKafkaSender
    from oncekey.queues.kafka.confluent_broker import KafkaConsumer
    from oncekey.queues.kafka.confluent_sender import KafkaSender

__all__ = [
    "AsyncKafkaConsumer",
    "AsyncKafkaSender",
    "KafkaConsumer",
    "KafkaRefused",
    "KafkaSender",
]

_HOMES = {
    "KafkaConsumer": ("oncekey.queues.kafka.confluent_broker", "kafka"),
    "KafkaSender": ("oncekey.queues.kafka.confluent_sender", "kafka"),
    "AsyncKafkaConsumer": ("oncekey.queues.kafka.aiokafka_broker", "kafka-async"),
    "AsyncKafkaSender": ("oncekey.queues.kafka.aiokafka_sender", "kafka-async"),
}


def __getattr__(name: str) -> Any:
    """Import the class that is asked for: each needs a package that the other does not need."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _HOMES[name]
    with client_of(name, extra=extra):
        return getattr(importlib.import_module(module), name)
