"""`KafkaSender`: writes the messages of an outbox to Kafka, over confluent-kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from oncekey.core.errors import ConfigurationError
from oncekey.queues.kafka.confluent_values import stores_headers
from oncekey.queues.kafka.outgoing_records import (
    TOPIC_TIMEOUT_S,
    OutgoingRecord,
    check_acks,
    error_of,
    outgoing_record,
)
from oncekey.queues.outbox.outgoing_message import OutgoingMessage
from oncekey.queues.outbox.senders import SEND_TIMEOUT_S, SENDER_BATCH_MAX, prepared

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
