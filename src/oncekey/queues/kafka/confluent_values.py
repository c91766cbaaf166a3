"""The values of confluent-kafka, as the rest of this package has them, and back.

This module converts records, partitions and offsets, and knows which options of a consumer are
those of a connection. It must not know what is done with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import Message, TopicPartition

from oncekey.queues.kafka.kafka_records import KafkaRecord
from oncekey.queues.kafka.order_queue import Partition, Position

_CONNECTION: Final = (
    "bootstrap.", "metadata.broker.list", "security.", "sasl.", "ssl.", "socket.", "client.",
    "broker.address.", "broker.version.", "api.version.", "reconnect.", "log_level", "logger",
    "enable.ssl.", "oauth_cb", "https.", "debug",
)  # fmt: skip


def connection_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options of a consumer that another client of the same cluster needs too."""
    return {name: value for name, value in config.items() if name.startswith(_CONNECTION)}


def stores_headers(config: Mapping[str, Any]) -> bool:
    """False if the client is told that its brokers are older than Kafka 0.11, whose messages have
    no headers; the client drops them without an error then."""
    return str(config.get("api.version.request", True)).lower() not in ("false", "0")


def record_of(message: Message) -> KafkaRecord:
    position = Position(message.topic() or "", message.partition() or 0, message.offset() or 0)
    found = message.headers() or []
    pairs = found.items() if isinstance(found, dict) else found
    headers = [(name, _bytes(value)) for name, value in pairs]
    return KafkaRecord(position, _bytes(message.key()), _bytes(message.value()), headers, message)


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def names_of(partitions: Iterable[TopicPartition]) -> list[Partition]:
    return [(each.topic, each.partition) for each in partitions]


def partitions_of(names: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic, partition in names]


def offsets_of(offsets: Mapping[Partition, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
