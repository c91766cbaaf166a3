"""Messages of an outbox as records of Kafka, and what the errors of writing them mean.

    key       the order group, so that a group has one partition; without one, the id
    headers   those of the message, `oncekey-key` among them
    topic     the message's queue

This module is pure: it knows the codes of Kafka's protocol, which both clients have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.kafka.kafka_settings import TOPIC_MAX_CHARS
from oncekey.queues.outbox.outgoing_message import OutgoingMessage

# librdkafka would look for a topic that it does not know for half a minute.
TOPIC_TIMEOUT_S: Final = 5.0
# Errors of one message or one topic: unknown topic, message too large, bad name, batch too large,
# no right to write, bad timestamp, format without headers, policy violation, bad record. Every
# other one says nothing about a message.
_OF_ONE_MESSAGE: Final = frozenset((3, 10, 17, 18, 29, 32, 43, 44, 87))


class KafkaRefused(OncekeyError):
    """Kafka refuses a message of an outbox: there is no such topic, the message is too large, or a
    right is missing. The publisher tries it again, and parks it."""


class OutgoingRecord(NamedTuple):
    """What is written for a message."""

    topic: str
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


def outgoing_record(message: OutgoingMessage) -> OutgoingRecord:
    """The record of a message; raises ConfigurationError if its queue cannot be a topic."""
    if len(message.queue) > TOPIC_MAX_CHARS:
        raise ConfigurationError(f"{message.queue!r} is too long for a topic")
    headers = [(name, value.encode()) for name, value in message.headers.items()]
    key = message.id if message.order_group is None else message.order_group
    return OutgoingRecord(message.queue, key.encode(), message.body, headers)


def error_of(topic: str, code: int | None, text: str, *, is_refused: bool = False) -> OncekeyError:
    """The error of a message that was not written, by the code of Kafka's protocol."""
    said = f"cannot write to the topic {topic!r}: {text}"
    refused = is_refused or code in _OF_ONE_MESSAGE
    return KafkaRefused(said) if refused else BrokerUnavailable(said)


def check_acks(config: Mapping[str, Any], *names: str) -> None:
    """Refuse a producer that counts a message as written before all replicas in sync have it."""
    for name in names:
        if name in config and str(config[name]) not in ("all", "-1"):
            raise ConfigurationError(
                f"{name}={config[name]!r} must be 'all': a message is deleted from the outbox once "
                "Kafka has it, so it must not be lost with one broker"
            )
