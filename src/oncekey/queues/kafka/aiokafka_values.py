"""The values of aiokafka, as the rest of this package has them, and what a cluster tells by it.

aiokafka does not ask for topic ids, so a topic has no identity here.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.broker_faults import is_fault, reason_of
from oncekey.queues.kafka.kafka_records import KafkaRecord
from oncekey.queues.kafka.kafka_settings import missing_topics, topic_patience
from oncekey.queues.kafka.order_queue import Partition, Position

_PAUSE_S: Final = 0.1
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


# --- what the cluster tells -----------------------------------------------------------------------


async def ask(
    config: Mapping[str, Any], topics: Sequence[str], seconds: float
) -> tuple[float | None, str | None]:
    """Check that topics exist, and return for how many seconds the longest of them keeps a message
    (math.inf for ever), and the cluster's id; None for what the cluster does not tell."""
    milliseconds = int(seconds * 1000)
    admin = AIOKafkaAdminClient(**connection_options(config), request_timeout_ms=milliseconds)
    try:
        await admin.start()
        try:
            await _check(admin, topics, seconds)
            return await _retention(admin, topics), await _cluster_id(admin)
        finally:
            await admin.close()
    except Exception as error:
        if not is_fault(error):
            raise
        raise unavailable(error) from error


async def _cluster_id(admin: Any) -> str | None:
    found: str | None = (await admin.describe_cluster()).get("cluster_id")
    return found


async def _check(admin: Any, topics: Sequence[str], seconds: float) -> None:
    """Raise ConfigurationError for topics that do not exist: see confluent_topics.py."""
    began = time.monotonic()
    while True:
        found = {each["topic"]: each["error_code"] for each in await admin.describe_topics(topics)}
        codes = {topic: code for topic in topics if (code := found.get(topic, -1))}
        if not codes:
            return
        if time.monotonic() - began >= topic_patience(codes.values(), seconds):
            raise missing_topics(codes)
        await asyncio.sleep(_PAUSE_S)


async def _retention(admin: Any, topics: Sequence[str]) -> float | None:
    names = {"retention.ms": None, "cleanup.policy": None}
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic, names) for topic in topics]
    try:
        answers = await admin.describe_configs(resources)
    except KafkaError:
        return None
    kept = []
    for answer in answers:
        for resource in answer.to_object()["resources"]:
            values = {
                each["config_names"]: each["config_value"] for each in resource["config_entries"]
            }
            kept.append(_seconds(values))
    return max(kept, default=None)


def _seconds(values: Mapping[str, str]) -> float:
    kept = int(values.get("retention.ms", "-1"))
    is_deleted = "delete" in values.get("cleanup.policy", "")
    return kept / 1000 if kept >= 0 and is_deleted else math.inf
