"""Records of Kafka as messages, and messages on their way to another topic of the same consumer.

A message that goes to the retry, dead-letter or park topic keeps its key, value and headers. The
headers added here say where it came from and, for a retry, not before when it is due and how often
it was received. On the way back they are read again. This module is pure; a client gives it the
fields of a record.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from oncekey.queues.disposition import DeadLetter, Disposition, Kind
from oncekey.queues.kafka.kafka_settings import KafkaSettings
from oncekey.queues.kafka.order_queue import Position
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import HEADERS as REDRIVE_HEADERS
from oncekey.queues.redrive import REDRIVE_HEADER, headers_of

ORIGIN_HEADER: Final = "oncekey-origin"
DUE_HEADER: Final = "oncekey-due"
RECEIVED_HEADER: Final = "oncekey-received"
REASON_HEADER: Final = "oncekey-reason"
_OWN_HEADERS: Final = frozenset((ORIGIN_HEADER, DUE_HEADER, RECEIVED_HEADER, REASON_HEADER))
_NUMBER: Final = re.compile(r"\d{1,15}")

RawHeaders = Sequence[tuple[str, bytes | None]]


class KafkaRecord(NamedTuple):
    """The fields of a record, as both clients have them."""

    position: Position
    key: bytes | None
    value: bytes | None
    headers: RawHeaders
    raw: Any


class ForwardedRecord(NamedTuple):
    """What is written to another topic."""

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
) -> ForwardedRecord:
    """Return the record for the retry topic; it keeps the marks of a redrive."""
    assert settings.retry_topic is not None
    marks = {DUE_HEADER: str(int(due * 1000)), RECEIVED_HEADER: str(tries)}
    return _forwarded(source, settings.retry_topic, identity, marks, _OWN_HEADERS)


def to_dead_letter(
    source: ReceivedRecord, settings: KafkaSettings, identity: str | None, letter: DeadLetter
) -> ForwardedRecord:
    replaced = _OWN_HEADERS | set(REDRIVE_HEADERS)
    marks = headers_of(letter)
    return _forwarded(source, settings.dead_letter_topic, identity, marks, replaced)


def to_park(
    source: ReceivedRecord, settings: KafkaSettings, identity: str | None, reason: str
) -> ForwardedRecord:
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
) -> ForwardedRecord | None:
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
) -> ForwardedRecord:
    record = source.record
    kept = [(name, value or b"") for name, value in record.headers if name.lower() not in replaced]
    if identity:
        marks = {ORIGIN_HEADER: f"{identity}/{source.message.delivery_id}", **marks}
    added = [(name, value.encode()) for name, value in marks.items()]
    return ForwardedRecord(topic, record.key, record.value, kept + added)


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _number(text: str) -> int:
    return int(text) if _NUMBER.fullmatch(text) else 0
