"""What the rest of this package has to know about aiokafka: its values, the start and the stop of
its clients, and what a member commits beyond its own partitions.

`AIOKafkaConsumer.commit` refuses the partitions of other members, which Kafka itself does not. So
this module commits by the client's coordinator, and is the one place that does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import ConsumerRecord, OffsetAndMetadata

from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.broker_faults import CUT_OFF_S, is_fault, reason_of
from oncekey.queues.kafka.message import KafkaRecord
from oncekey.queues.kafka.order_queue import Partition, Position
from oncekey.queues.kafka.settings import (
    FORWARD_MAX_BYTES,
    FORWARD_TIMEOUT_S,
    MAX_POLL_INTERVAL_S,
    KafkaSettings,
    client_reset,
)

# What aiokafka calls the generation of a member that the group has put out.
_NO_GENERATION: Final = -1
_CONNECTION: Final = ("bootstrap_servers", "client_id", "security_protocol", "ssl_", "sasl_")
_log = logging.getLogger("oncekey")


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


# --- clients --------------------------------------------------------------------------------------


async def new_clients(
    settings: KafkaSettings, config: Mapping[str, Any]
) -> tuple[AIOKafkaProducer, AIOKafkaConsumer]:
    """Make the clients, which asks nothing of Kafka yet."""
    producer = None
    try:
        producer = AIOKafkaProducer(
            **connection_options(config),
            acks="all",
            request_timeout_ms=int(FORWARD_TIMEOUT_S * 1000),
            max_request_size=FORWARD_MAX_BYTES,
        )
        interval = config.get("max_poll_interval_ms", int(MAX_POLL_INTERVAL_S * 1000))
        consumer = AIOKafkaConsumer(
            **{  # how long a revocation may take is the client's to say; Kafka's own choice
                "rebalance_timeout_ms": interval,
                **config,
                "auto_offset_reset": client_reset(config["auto_offset_reset"]),
                "group_id": settings.group,
                "enable_auto_commit": False,
            }
        )
    except (TypeError, ValueError) as error:
        await stop(producer)
        raise ConfigurationError(f"config= is not what aiokafka takes: {error}") from error
    return producer, consumer


async def pin_the_end(consumer: AIOKafkaConsumer, topic: str) -> None:
    """Commit where a new group begins: see `GroupMember._pin_the_end`."""
    partitions = _partitions(topic, consumer.partitions_for_topic(topic))
    if await _has_begun(consumer, partitions):
        return
    ends = await consumer.end_offsets(partitions)
    if not await _has_begun(consumer, partitions):
        await _commit(consumer, ends)


async def set_back(consumer: AIOKafkaConsumer, topic: str, numbers: Iterable[int]) -> None:
    """Commit the beginning of all partitions, whoever has them: their member may be gone. The
    consumer itself may still know those of the old topic, so they are given."""
    await _commit(consumer, dict.fromkeys(_partitions(topic, numbers), 0))


def _partitions(topic: str, numbers: Iterable[int] | None) -> list[TopicPartition]:
    found = [TopicPartition(topic, number) for number in numbers or ()]
    if not found:
        raise BrokerUnavailable(f"Kafka does not tell the partitions of {topic}")
    return found


async def _has_begun(consumer: AIOKafkaConsumer, partitions: Collection[TopicPartition]) -> bool:
    return any([await consumer.committed(each) is not None for each in partitions])


async def _commit(consumer: AIOKafkaConsumer, offsets: Mapping[TopicPartition, int]) -> None:
    given = {each: OffsetAndMetadata(offset, "") for each, offset in offsets.items()}
    await consumer._coordinator.commit_offsets(None, given)


async def start(starting: Coroutine[Any, Any, object]) -> None:
    """Await the start of a client. aiokafka first asks one broker for the cluster, and if that is
    cancelled, it leaves the connection open, which nobody else knows. So the answer is waited for,
    and `stop` closes what there is then."""
    task = asyncio.ensure_future(starting)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait((task,), timeout=CUT_OFF_S)
        finally:
            task.cancel()
        raise


async def stop(client: Any) -> None:
    """Stop a client, if there is one. While its brokers are away, aiokafka lets the cancellation of
    a task of its own out, and leaves the connections open; whoever stops was not cancelled then."""
    if client is None:
        return
    inner = getattr(client, "_client", None) or client.client
    try:
        await client.stop()
    except BaseException as error:
        # If it was cancelled, its loop ends while the brokers do not answer, and nobody waits.
        closing = asyncio.ensure_future(_cut_off(client, inner))
        await asyncio.wait((closing,), timeout=CUT_OFF_S)
        if not is_fault(error):
            raise
        _log.warning("a client of Kafka did not close: %s", reason_of(error))


async def _cut_off(client: Any, inner: Any) -> None:
    """Close the connections of a client that did not stop. One that had not even begun to would
    stay a member of its group, with partitions that nobody consumes; any other is stopped already,
    and does nothing."""
    with suppress(Exception):
        await client.stop()
    await inner.close()


def is_put_out(consumer: AIOKafkaConsumer | None) -> bool:
    """True if the group has put this member out, for which aiokafka has no callback. If a later
    release hides the generation, the broker refuses the commit itself."""
    coordinator = getattr(consumer, "_coordinator", None)
    return bool(getattr(coordinator, "generation", 0) == _NO_GENERATION)
