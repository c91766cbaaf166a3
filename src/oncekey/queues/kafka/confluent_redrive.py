"""Moves dead letters, or parked messages, of a consumer back to its topic, over confluent-kafka.

Each letter is written to the topic, a dead one with the mark of this redrive, and only then the
offset of the topic it comes from passes it; the group of the redrive keeps how far it came.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.kafka.confluent_errors import unavailable
from oncekey.queues.kafka.confluent_values import connection_options, record_of, stores_headers
from oncekey.queues.kafka.kafka_records import KafkaRecord, moved_headers
from oncekey.queues.kafka.kafka_settings import (
    FORWARD_MAX_BYTES,
    FORWARD_TIMEOUT_S,
    REDRIVE_SUFFIX,
    KafkaSettings,
)
from oncekey.queues.redrive import GoOn


def redrive(
    settings: KafkaSettings,
    config: Mapping[str, Any],
    most: int,
    id: str,
    parked: bool,
    go_on: GoOn,
) -> int:
    """Move at most `most` letters that were in the dead-letter topic, or in that of parked
    messages, at the start; how many."""
    if not parked and not stores_headers(config):
        raise ConfigurationError(
            "these brokers store no headers, so a dead letter that comes back cannot be told from "
            "a duplicate; free its key by `oncekey release`, and send the message again"
        )
    connection = connection_options(config)
    options = {
        **connection,
        "group.id": settings.group + REDRIVE_SUFFIX,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(options)
    try:
        topic = settings.park_topic if parked else settings.dead_letter_topic
        ends = _assign(consumer, topic, settings.ask_timeout)
        producer = Producer({**connection, "acks": "all", "message.max.bytes": FORWARD_MAX_BYTES})
        mark = None if parked else id
        return _move(consumer, producer, settings, ends, most, mark, go_on)
    except KafkaException as error:
        raise unavailable(error) from error
    finally:
        consumer.close()


def _assign(consumer: Consumer, topic: str, seconds: float) -> dict[int, int]:
    """Assign what is left in the topic; the end of each partition with letters."""
    numbers = consumer.list_topics(topic, timeout=seconds).topics[topic].partitions
    wanted = [TopicPartition(topic, number) for number in numbers]
    ends: dict[int, int] = {}
    starts: list[TopicPartition] = []
    for each in consumer.committed(wanted, timeout=seconds):
        first, end = consumer.get_watermark_offsets(each, timeout=seconds)
        if max(each.offset, first) < end:
            ends[each.partition] = end
            start = each.offset if each.offset >= 0 else OFFSET_BEGINNING
            starts.append(TopicPartition(topic, each.partition, start))
    consumer.assign(starts)
    return ends


def _move(
    consumer: Consumer,
    producer: Producer,
    settings: KafkaSettings,
    ends: dict[int, int],
    most: int,
    mark: str | None,
    go_on: GoOn,
) -> int:
    moved = 0
    until = time.monotonic() + settings.ask_timeout
    while ends and moved < most and time.monotonic() < until:
        letter = consumer.poll(0.1)
        if letter is None or letter.error() is not None:
            continue
        until = time.monotonic() + settings.ask_timeout
        record = record_of(letter)
        _write(producer, settings.topic, record, moved_headers(record.headers, mark))
        consumer.commit(message=letter, asynchronous=False)
        moved += 1
        if not go_on(moved):
            break
        if record.position.offset + 1 >= ends[record.position.partition]:
            del ends[record.position.partition]
    return moved


def _write(
    producer: Producer,
    topic: str,
    record: KafkaRecord,
    headers: list[tuple[str, bytes]],
) -> None:
    """Write a letter, and raise if not all replicas have it: then it stays where it is. What was
    given up is no longer in the producer's queue either, so only its report tells."""
    errors: list[KafkaError | None] = []
    producer.produce(
        topic,
        value=record.value,
        key=record.key,
        headers=list(headers) or None,
        on_delivery=lambda error, _: errors.append(error),
    )
    producer.flush(FORWARD_TIMEOUT_S)
    # The client's errors cannot be compared with None by value.
    if not errors or errors[0] is not None:
        why = errors[0] if errors else "it took too long"
        raise BrokerUnavailable(f"a dead letter could not be written to {topic}: {why}")
