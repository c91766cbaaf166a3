"""Moves dead letters of a consumer back to its topic, over aiokafka: see confluent_redrive.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from oncekey.queues.kafka.aiokafka_values import connection_options, unavailable
from oncekey.queues.kafka.kafka_settings import (
    FORWARD_MAX_BYTES,
    REDRIVE_SUFFIX,
    KafkaSettings,
)
from oncekey.queues.redrive import REDRIVE_HEADER


async def redrive(settings: KafkaSettings, config: Mapping[str, Any], most: int, id: str) -> int:
    """Move at most `most` letters that were in the dead-letter topic at the start; how many."""
    connection = connection_options(config)
    consumer = AIOKafkaConsumer(
        **connection,
        group_id=settings.group + REDRIVE_SUFFIX,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    producer = AIOKafkaProducer(**connection, acks="all", max_request_size=FORWARD_MAX_BYTES)
    try:
        await producer.start()
        await consumer.start()
        ends = await _assign(consumer, producer, settings)
        return await _move(consumer, producer, settings, ends, most, id)
    except KafkaError as error:
        raise unavailable(error) from error
    finally:
        await consumer.stop()
        await producer.stop()


async def _assign(
    consumer: AIOKafkaConsumer, producer: AIOKafkaProducer, settings: KafkaSettings
) -> dict[TopicPartition, int]:
    """Assign what is left in the dead-letter topic; the end of each partition with letters."""
    topic = settings.dead_letter_topic
    partitions = [TopicPartition(topic, n) for n in await producer.partitions_for(topic)]
    consumer.assign(partitions)
    starts = await consumer.beginning_offsets(partitions)
    ends = await consumer.end_offsets(partitions)
    left = {}
    for each in partitions:
        start = max(await consumer.committed(each) or 0, starts[each])
        if start < ends[each]:
            left[each] = ends[each]
            consumer.seek(each, start)
        else:
            consumer.pause(each)
    return left


async def _move(
    consumer: AIOKafkaConsumer,
    producer: AIOKafkaProducer,
    settings: KafkaSettings,
    ends: dict[TopicPartition, int],
    most: int,
    id: str,
) -> int:
    moved = 0
    while ends and moved < most:
        wait = int(settings.ask_timeout * 1000)
        fetched = await consumer.getmany(timeout_ms=wait, max_records=1)
        if not fetched:
            break
        for partition, letters in fetched.items():
            for letter in letters:
                kept = [(n, v) for n, v in letter.headers if n.lower() != REDRIVE_HEADER]
                headers = [*kept, (REDRIVE_HEADER, id.encode())]
                await producer.send_and_wait(
                    settings.topic, letter.value, key=letter.key, headers=headers
                )
                await consumer.commit({partition: letter.offset + 1})
                moved += 1
                if letter.offset + 1 >= ends.get(partition, 0):
                    ends.pop(partition, None)
                    consumer.pause(partition)
    return moved
