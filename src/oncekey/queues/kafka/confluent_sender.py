"""What confluent-kafka writes beside a consumer's own forwards: the messages of an outbox
(`KafkaSender`), and letters that go back to their topic (`redrive`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from oncekey.core.errors import ConfigurationError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.kafka.confluent_client import (
    connection_options,
    record_of,
    stores_headers,
    unavailable,
)
from oncekey.queues.kafka.message import (
    TOPIC_TIMEOUT_S,
    KafkaRecord,
    OutgoingRecord,
    check_acks,
    error_of,
    moved_headers,
    outgoing_record,
)
from oncekey.queues.kafka.settings import (
    FORWARD_MAX_BYTES,
    FORWARD_TIMEOUT_S,
    REDRIVE_SUFFIX,
    KafkaSettings,
)
from oncekey.queues.outbox.outgoing_message import OutgoingMessage
from oncekey.queues.outbox.senders import SEND_TIMEOUT_S, SENDER_BATCH_MAX, prepared
from oncekey.queues.redrive import GoOn

# librdkafka's own codes for what is wrong with one message or topic.
_REFUSED: Final = frozenset(
    (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError._INVALID_ARG)
)
# The client reports each message by its own timeout; beyond that it is not waited for.
_REPORT_MARGIN_S: Final = 5.0


class KafkaSender:
    """Writes messages of an outbox to Kafka with confluent-kafka, for `OutboxPublisher`.

        publisher = OutboxPublisher(once, KafkaSender({"bootstrap.servers": "127.0.0.1:9092"}))

    config   options of confluent-kafka's Producer. `acks` is "all" and `enable.idempotence` true;
             keys have the partitions that Kafka's own clients give them

    A message's queue is the topic, its `order_group` (or else its id) the record's key. A topic is
    not created here, unless the cluster does so by itself.
    """

    batch_max = SENDER_BATCH_MAX

    def __init__(self, config: Mapping[str, Any]) -> None:
        check_acks(config, "acks", "request.required.acks")
        if not stores_headers(config):
            raise ConfigurationError(
                "brokers before Kafka 0.11 keep no headers, so the header oncekey-key, by which a "
                "consumer knows what was sent twice, would be lost without an error"
            )
        self._config = {
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": int(SEND_TIMEOUT_S * 1000),
            "topic.metadata.propagation.max.ms": int(TOPIC_TIMEOUT_S * 1000),
            # librdkafka's own choice differs from that of all other clients: publishers with
            # different clients would tear a group into two partitions.
            "partitioner": "murmur2_random",
            **config,
        }
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def send(self, messages: Sequence[OutgoingMessage], /) -> list[Exception | None]:
        """Write messages; None for each that all replicas in sync have, or its error."""
        records, results = prepared(messages, outgoing_record)
        producer = self._made()
        unreported = set(records)

        def reporter(position: int, record: OutgoingRecord) -> Callable[..., None]:
            def report(error: KafkaError | None, message: Message) -> None:
                unreported.discard(position)
                if error is not None:
                    results[position] = self._error(record.topic, error)

            return report

        for position, record in records.items():
            topic, key, value, headers = record
            report = reporter(position, record)
            try:
                producer.produce(topic, value, key, headers=list(headers), on_delivery=report)
            except KafkaException as error:
                unreported.discard(position)
                results[position] = self._error(topic, error.args[0])
            except BufferError as error:
                unreported.discard(position)
                results[position] = error_of(topic, None, str(error))
        producer.flush(float(self._config["message.timeout.ms"]) / 1000 + _REPORT_MARGIN_S)
        for position in unreported:
            results[position] = error_of(records[position].topic, None, "Kafka does not answer")
        return results

    def close(self) -> None:
        """End the connections."""
        with self._lock:
            self._producer = None

    def _made(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = Producer(self._config)
            return self._producer

    def _error(self, topic: str, error: KafkaError) -> Exception:
        if error.fatal():  # this producer will take nothing more, and another one will
            self.close()
        return error_of(topic, error.code(), str(error), is_refused=error.code() in _REFUSED)


# --- letters that go back -------------------------------------------------------------------------


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
    given up is no longer in the producer's queue either, so only its report says so."""
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
