"""`AsyncKafkaSender`: writes the messages of an outbox to Kafka, over aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import IllegalStateError, KafkaError, UnknownTopicOrPartitionError

from oncekey.core.errors import OncekeyError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.kafka.aiokafka_group import start
from oncekey.queues.kafka.aiokafka_values import unavailable
from oncekey.queues.kafka.outgoing_records import (
    OutgoingRecord,
    check_acks,
    error_of,
    outgoing_record,
)
from oncekey.queues.outbox.outgoing_message import OutgoingMessage
from oncekey.queues.outbox.senders import SEND_TIMEOUT_S, SENDER_BATCH_MAX, prepared

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
