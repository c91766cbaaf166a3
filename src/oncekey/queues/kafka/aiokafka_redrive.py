"""Moves dead letters of a consumer back to its topic, over aiokafka: see confluent_redrive.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from oncekey.queues.kafka.aiokafka_group import start
from oncekey.queues.kafka.aiokafka_values import connection_options, unavailable
from oncekey.queues.kafka.kafka_records import moved_headers
from oncekey.queues.kafka.kafka_settings import (
    FORWARD_MAX_BYTES,
    REDRIVE_SUFFIX,
    KafkaSettings,
)
from oncekey.queues.redrive import GoOn


async def redrive(
    settings: KafkaSettings,
    config: Mapping[str, Any],
    most: int,
    id: str,
    parked: bool,
    go_on: GoOn,
) -> int:
    """Move at most `most` letters that were in the dead-letter topic, or in that of parked
    messages, at the start; how many."""
    connection = connection_options(config)
    consumer = AIOKafkaConsumer(
        **connection,
        group_id=settings.group + REDRIVE_SUFFIX,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    producer = AIOKafkaProducer(**connection, acks="all", max_request_size=FORWARD_MAX_BYTES)
    try:
        await start(producer.start())
        await start(consumer.start())
        topic = settings.park_topic if parked else settings.dead_letter_topic
        ends = await _assign(consumer, producer, topic)
        mark = None if parked else id
        return await _move(consumer, producer, settings, ends, most, mark, go_on)
    except KafkaError as error:
        raise unavailable(error) from error
    finally:
        try:
            await consumer.stop()
        finally:
            await producer.stop()


async def _assign(
    consumer: AIOKafkaConsumer, producer: AIOKafkaProducer, topic: str
) -> dict[TopicPartition, int]:
    """Assign what is left in the topic; the end of each partition with letters."""
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
    mark: str | None,
    go_on: GoOn,
) -> int:
    moved = 0
    while ends and moved < most:
        wait = int(settings.ask_timeout * 1000)
        fetched = await consumer.getmany(timeout_ms=wait, max_records=1)
        if not fetched:
            break
        for partition, letters in fetched.items():
            for letter in letters:
                headers = moved_headers(letter.headers, mark)
                await producer.send_and_wait(
                    settings.topic, letter.value, key=letter.key, headers=headers
                )
                await consumer.commit({partition: letter.offset + 1})
                moved += 1
                if not go_on(moved):
                    return moved
                if letter.offset + 1 >= ends.get(partition, 0):
                    ends.pop(partition, None)
                    consumer.pause(partition)
    return moved
