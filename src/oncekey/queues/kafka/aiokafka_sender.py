"""What aiokafka writes beside a consumer's own forwards: the messages of an outbox
(`AsyncKafkaSender`), and letters that go back to their topic (`redrive`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError, UnknownTopicOrPartitionError

from oncekey.core.errors import OncekeyError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.kafka.aiokafka_client import connection_options, start, unavailable
from oncekey.queues.kafka.message import (
    OutgoingRecord,
    check_acks,
    error_of,
    moved_headers,
    outgoing_record,
)
from oncekey.queues.kafka.settings import FORWARD_MAX_BYTES, REDRIVE_SUFFIX, KafkaSettings
from oncekey.queues.outbox.outgoing_message import OutgoingMessage
from oncekey.queues.outbox.senders import SEND_TIMEOUT_S, SENDER_BATCH_MAX, prepared
from oncekey.queues.redrive import GoOn

_ERRORS: Final = (KafkaError, IllegalStateError, OSError, TimeoutError)


class AsyncKafkaSender:
    """The same as KafkaSender with aiokafka, for `AsyncOutboxPublisher`.

    config   options of AIOKafkaProducer. `acks` is "all"

    It is not idempotent by default: aiokafka then never gives up a message, and a publisher would
    wait for a broker that is down instead of giving its messages back. What is written twice has
    the same id, as always.
    """

    batch_max = SENDER_BATCH_MAX

    def __init__(self, config: Mapping[str, Any]) -> None:
        check_acks(config, "acks")
        timeout = int(SEND_TIMEOUT_S * 1000)
        self._config = {"acks": "all", "request_timeout_ms": timeout, **config}
        self._lock = asyncio.Lock()
        self._producer: AIOKafkaProducer | None = None

    async def send(self, messages: Sequence[OutgoingMessage], /) -> list[Exception | None]:
        """Write messages; None for each that all replicas in sync have, or its error."""
        records, results = prepared(messages, outgoing_record)
        producer = await self._started()
        written = await asyncio.gather(*(_write(producer, each) for each in records.values()))
        for position, error in zip(records, written, strict=True):
            results[position] = error
        if any(isinstance(error, BrokerUnavailable) for error in written):
            await self.close()  # a new one asks for the cluster anew
        return results

    async def close(self) -> None:
        """End the connections."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.stop()

    async def _started(self) -> AIOKafkaProducer:
        async with self._lock:
            if self._producer is None:
                producer = AIOKafkaProducer(**self._config)
                try:
                    await start(producer.start())
                except BaseException as error:
                    await producer.stop()
                    if isinstance(error, _ERRORS):
                        raise unavailable(error) from error
                    raise
                self._producer = producer
            return self._producer


async def _write(producer: AIOKafkaProducer, record: OutgoingRecord) -> OncekeyError | None:
    topic, key, value, headers = record
    try:
        await producer.send_and_wait(topic, value, key=key, headers=headers)
    except UnknownTopicOrPartitionError as error:
        # aiokafka says so, too, if no broker has answered when it asked for the topic.
        code = error.errno if await producer.client.force_metadata_update() else None
        return error_of(topic, code, repr(error))
    except _ERRORS as error:
        return error_of(topic, getattr(error, "errno", None), repr(error))
    return None


# --- letters that go back -------------------------------------------------------------------------


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
