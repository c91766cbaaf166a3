"""Records of Kafka as messages, and messages as records: on their way to another topic of the same
consumer, and from an outbox.

A message that goes to the retry, dead-letter or park topic keeps its key, value and headers. The
headers added here say where it came from and, for a retry, not before when it is due and how often
it was received. On the way back they are read again. A message of an outbox becomes a record so:

    key       the order group, so that a group has one partition; without one, the id
    headers   those of the message, `oncekey-key` among them
    topic     the message's queue

This module is pure; a client gives it the fields of a record, and the codes of Kafka's protocol,
which both clients have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.disposition import DeadLetter, Disposition, Kind
from oncekey.queues.kafka.order_queue import Position
from oncekey.queues.kafka.settings import TOPIC_MAX_CHARS, KafkaSettings
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import HEADERS as REDRIVE_HEADERS
from oncekey.queues.redrive import REDRIVE_HEADER, headers_of

if TYPE_CHECKING:
    from oncekey.queues.outbox.outgoing_message import OutgoingMessage

ORIGIN_HEADER: Final = "oncekey-origin"
DUE_HEADER: Final = "oncekey-due"
RECEIVED_HEADER: Final = "oncekey-received"
REASON_HEADER: Final = "oncekey-reason"
_OWN_HEADERS: Final = frozenset((ORIGIN_HEADER, DUE_HEADER, RECEIVED_HEADER, REASON_HEADER))
_NUMBER: Final = re.compile(r"\d{1,15}")
# librdkafka would look for a topic that it does not know for half a minute.
TOPIC_TIMEOUT_S: Final = 5.0
# Errors of one message or one topic: unknown topic, message too large, bad name, batch too large,
# no right to write, bad timestamp, format without headers, policy violation, bad record. Every
# other one says nothing about a message.
_OF_ONE_MESSAGE: Final = frozenset((3, 10, 17, 18, 29, 32, 43, 44, 87))

RawHeaders = Sequence[tuple[str, bytes | None]]


class KafkaRecord(NamedTuple):
    """The fields of a record, as both clients have them."""

    position: Position
    key: bytes | None
    value: bytes | None
    headers: RawHeaders
    raw: Any


class OutgoingRecord(NamedTuple):
    """What is written to a topic."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


class ReceivedRecord(NamedTuple):
    """A record as a message, its order group in its partition, and when it is due (Unix time)."""

    record: KafkaRecord
    message: Message
    due: float


def received(record: KafkaRecord, settings: KafkaSettings, identity: str | None) -> ReceivedRecord:
    """Return a record as a message. A tombstone of a compacted topic has an empty body."""
    headers = {name.lower(): _text(value) for name, value in record.headers}
    is_retry = record.position.topic == settings.retry_topic
    message = Message(
        record.value or b"",
        settings.topic,
        {name: value for name, value in headers.items() if name not in _OWN_HEADERS},
        _delivery_id(record.position, headers.get(ORIGIN_HEADER, ""), identity),
        _number(headers.get(RECEIVED_HEADER, "")) + 1,
        # What comes from the retry topic has left its order behind.
        None if is_retry else order_group(record, settings),
        record.raw,
    )
    due = _number(headers.get(DUE_HEADER, "")) / 1000 if is_retry else 0.0
    return ReceivedRecord(record, message, due)


def order_group(record: KafkaRecord, settings: KafkaSettings) -> str | None:
    """Return the group of a record that is handled in order; None if it has none."""
    partition = str(record.position.partition)
    if settings.order == "partition":
        return partition
    if settings.order == "key" and record.key is not None:
        return f"{partition}/{record.key.hex()}"
    return None


def _delivery_id(position: Position, origin: str, identity: str | None) -> str:
    """Partition and offset; of a message that was forwarded, those it had at first. What comes from
    an earlier topic of the same name has no place in this one."""
    if identity and origin.startswith(f"{identity}/"):
        return origin.removeprefix(f"{identity}/")
    return f"{position.partition}/{position.offset}"


# --- to another topic -----------------------------------------------------------------------------


def to_retry(
    source: ReceivedRecord, settings: KafkaSettings, identity: str | None, due: float, tries: int
) -> OutgoingRecord:
    """Return the record for the retry topic; it keeps the marks of a redrive."""
    assert settings.retry_topic is not None
    marks = {DUE_HEADER: str(int(due * 1000)), RECEIVED_HEADER: str(tries)}
    return _forwarded(source, settings.retry_topic, identity, marks, _OWN_HEADERS)


def to_dead_letter(
    source: ReceivedRecord, settings: KafkaSettings, identity: str | None, letter: DeadLetter
) -> OutgoingRecord:
    replaced = _OWN_HEADERS | set(REDRIVE_HEADERS)
    marks = headers_of(letter)
    return _forwarded(source, settings.dead_letter_topic, identity, marks, replaced)


def to_park(
    source: ReceivedRecord, settings: KafkaSettings, identity: str | None, reason: str
) -> OutgoingRecord:
    marks = {REASON_HEADER: reason}
    return _forwarded(source, settings.park_topic, identity, marks, _OWN_HEADERS)


def moved_headers(headers: RawHeaders, mark: str | None) -> list[tuple[str, bytes]]:
    """Return the headers of a message that goes back to its topic: a dead letter with the mark of
    the redrive, a parked message (None) without what says why it was parked."""
    replaced = REASON_HEADER if mark is None else REDRIVE_HEADER
    kept = [(name, value or b"") for name, value in headers if name.lower() != replaced]
    return kept if mark is None else [*kept, (REDRIVE_HEADER, mark.encode())]


def by_disposition(
    source: ReceivedRecord, settings: KafkaSettings, identity: str | None, wanted: Disposition
) -> OutgoingRecord | None:
    """Return what a disposition has written to another topic; None if that is nothing."""
    if wanted.kind is Kind.PARK:
        return to_park(source, settings, identity, wanted.reason)
    if wanted.kind is Kind.DEAD_LETTER:
        letter = wanted.dead_letter or DeadLetter(wanted.reason)
        return to_dead_letter(source, settings, identity, letter)
    return None


def _forwarded(
    source: ReceivedRecord,
    topic: str,
    identity: str | None,
    marks: dict[str, str],
    replaced: frozenset[str] | set[str],
) -> OutgoingRecord:
    record = source.record
    kept = [(name, value or b"") for name, value in record.headers if name.lower() not in replaced]
    if identity:
        marks = {ORIGIN_HEADER: f"{identity}/{source.message.delivery_id}", **marks}
    added = [(name, value.encode()) for name, value in marks.items()]
    return OutgoingRecord(topic, record.key, record.value, kept + added)


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _number(text: str) -> int:
    return int(text) if _NUMBER.fullmatch(text) else 0


# --- from an outbox -------------------------------------------------------------------------------


class KafkaRefused(OncekeyError):
    """Kafka refuses a message of an outbox: there is no such topic, the message is too large, or a
    right is missing. The publisher tries it again, and parks it."""


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
