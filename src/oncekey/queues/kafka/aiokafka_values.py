"""The values of aiokafka, as the rest of this package has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.broker_faults import reason_of
from oncekey.queues.kafka.kafka_records import KafkaRecord
from oncekey.queues.kafka.order_queue import Partition, Position

_CONNECTION: Final = ("bootstrap_servers", "client_id", "security_protocol", "ssl_", "sasl_")


def connection_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options of a consumer that another client of the same cluster needs too."""
    return {name: value for name, value in config.items() if name.startswith(_CONNECTION)}


def record_of(record: ConsumerRecord) -> KafkaRecord:
    position = Position(record.topic, record.partition, record.offset)
    return KafkaRecord(position, record.key, record.value, list(record.headers), record)


def names_of(partitions: Iterable[TopicPartition]) -> list[Partition]:
    return [(each.topic, each.partition) for each in partitions]


def partitions_of(names: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic, partition in names]


def offsets_of(offsets: Mapping[Partition, int]) -> dict[TopicPartition, int]:
    return {TopicPartition(*partition): offset for partition, offset in offsets.items()}


def unavailable(error: BaseException) -> BrokerUnavailable:
    return BrokerUnavailable(f"Kafka does not answer as it should: {reason_of(error)}")
