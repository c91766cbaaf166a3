"""AMQP's messages as the rules see them, the copies that are published in their place, and the
queues that those go to.

A copy is a new message to RabbitMQ, so some of what the old one carried must not be copied: see
`_NOT_COPIED`. A message that has to wait is moved to a delay queue, from which RabbitMQ itself
moves it back when its time is over. There is one delay queue for each step of time, because
RabbitMQ looks only at the first message of a queue: in one queue for all, a message that waits for
long would hold up those behind it. The steps are powers of two seconds, so there are few queues
however many delays are asked for. Pure: knows neither of the two clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from oncekey.core.errors import ConfigurationError
from oncekey.queues.disposition import Disposition, Kind
from oncekey.queues.outbox.outgoing_message import OutgoingMessage, short_id
from oncekey.queues.queue_message import Message
from oncekey.queues.rabbitmq.settings import QueueNames
from oncekey.queues.redrive import ERROR_HEADER, HEADERS, REDRIVE_HEADER, headers_of

# How often a message was delivered before it was moved to a delay queue: there RabbitMQ's own count
# begins anew.
RECEIVES_HEADER: Final = "oncekey-receives"
# Which headers of a message were too large for its copy.
LEFT_OUT_HEADER: Final = "oncekey-left-out"
LEFT_OUT_MAX_CHARS: Final = 500
# The headers of a copy; with the other properties they have to fit into a frame of 131,072 bytes.
HEADERS_MAX_BYTES: Final = 126_000
PERSISTENT: Final = 2
NAME_MAX_BYTES: Final = 255  # of a routing key, a message id and the name of a header
# The properties of AMQP that a copy has too. Left out are `user_id`, since RabbitMQ refuses a
# message in another user's name, and `expiration`, by which a dead letter would vanish.
COPIED: Final = (
    "content_type",
    "content_encoding",
    "priority",
    "correlation_id",
    "reply_to",
    "message_id",
    "timestamp",
    "type",
    "app_id",
)
# Properties that are found like headers, unless there is a header of that name.
_AS_HEADERS: Final = ("message_id", "correlation_id", "type", "app_id")
# RabbitMQ writes the counts and deaths itself, and sends a message with CC to more queues.
_NOT_COPIED: Final = frozenset(
    ("cc", "bcc", "x-acquired-count", "x-death", "x-delivery-count", RECEIVES_HEADER)
)
_NOT_COPIED_BEGIN: Final = ("x-first-death-", "x-last-death-")
DELAY_MIN_S: Final = 0.125
DELAY_MAX_S: Final = 4096.0
# From 3.10 on a quorum queue hands an expired message over with confirms; a classic one may lose it
# if the node dies at that moment.
SAFE_DELAYS_SINCE: Final = (3, 10)
Arguments = dict[str, Any]
STREAM: Final[Arguments] = {"x-queue-type": "stream"}
_QUORUM: Final[Arguments] = {"x-queue-type": "quorum"}
# A message is removed from one queue only after the other has confirmed it. RabbitMQ asks for the
# second line wherever it is given the first.
_HANDED_OVER: Final[Arguments] = {
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


class Delivery(NamedTuple):
    """One delivery, as `Message.raw`.

    session       the connection that it belongs to; when that has ended, so has the delivery
    tag           its number there
    properties    AMQP's properties by their names; `headers` is one of them
    exchange      where it was published, with its routing key
    is_redelivered  it was delivered before
    source        what the client gave
    """

    session: object
    tag: int
    properties: Mapping[str, Any]
    exchange: str
    routing_key: str
    is_redelivered: bool
    source: Any


class Letter(NamedTuple):
    """A message to publish: to a queue by its name, or to an exchange with a routing key."""

    queue: str
    body: bytes
    properties: dict[str, Any]
    exchange: str = ""


def message_of(delivery: Delivery, body: bytes, queue: str) -> Message:
    headers = _text_headers(delivery.properties)
    return Message(
        body,
        queue,
        headers,
        delivery.properties.get("message_id") or "",
        _receives(delivery, headers),
        None,
        delivery,
    )


def letter_of(message: Message, disposition: Disposition, names: QueueNames) -> Letter:
    """What is published in place of a message that is delayed, dead or parked."""
    if disposition.kind is Kind.DEAD_LETTER:
        assert disposition.dead_letter is not None
        return copy_of(message, names.dead_letters, headers_of(disposition.dead_letter), HEADERS)
    if disposition.kind is Kind.PARK:
        return copy_of(message, names.parked, {ERROR_HEADER: disposition.reason})
    return delayed_letter(message, disposition.seconds, names)


def delayed_letter(message: Message, seconds: float, names: QueueNames) -> Letter:
    count = {RECEIVES_HEADER: str(message.receive_count)}
    return copy_of(message, names.delay_queue(delay_step(seconds)), count)


def redriven_letter(message: Message, id: str, names: QueueNames) -> Letter:
    """What is published in the consumed queue in place of a dead letter."""
    return copy_of(message, names.queue, {REDRIVE_HEADER: id})


def unparked_letter(message: Message, names: QueueNames) -> Letter:
    """What is published in the consumed queue in place of a parked message."""
    return copy_of(message, names.queue, {}, (ERROR_HEADER,))


def copy_of(
    message: Message, queue: str, headers: Mapping[str, str], without: tuple[str, ...] = ()
) -> Letter:
    """A persistent copy of a message for another queue, with these headers and `without` others."""
    delivery: Delivery = message.raw
    old = delivery.properties
    properties = {name: old[name] for name in COPIED if old.get(name) is not None}
    kept = {
        name: value
        for name, value in (old.get("headers") or {}).items()
        if not _is_left_out(name.lower(), without)
    }
    properties["headers"] = _fitting(kept, headers)
    properties["delivery_mode"] = PERSISTENT
    return Letter(queue, message.body, properties)


def outgoing_letter(message: OutgoingMessage, exchange: str) -> Letter:
    """What is published for a message of an outbox; raises ConfigurationError if AMQP cannot carry
    it. RabbitMQ keeps the message id, and deduplicates nothing by it."""
    for name in (message.queue, *message.headers):
        if not _is_name(name):
            raise ConfigurationError(f"AMQP has {NAME_MAX_BYTES} bytes for a name, not {name!r}")
    properties = {
        "message_id": short_id(message.id, _is_name),
        "headers": dict(message.headers),
        "delivery_mode": PERSISTENT,
    }
    return Letter(message.queue, message.body, properties, exchange)


def _is_name(text: str) -> bool:
    return len(text.encode()) <= NAME_MAX_BYTES


def _fitting(kept: dict[str, Any], added: Mapping[str, str]) -> dict[str, Any]:
    """The headers of a copy. They must fit into one frame, or RabbitMQ ends the connection, and
    does so with every further try. If ours are too much, the largest ones are left out, and
    named."""
    too_much = _size_of(kept) + _size_of(added) - HEADERS_MAX_BYTES
    if too_much <= 0:
        return kept | dict(added)
    names = []
    for name, value in sorted(kept.items(), key=lambda item: _size_of(item[1]), reverse=True):
        names.append(name)
        too_much -= _size_of(value)
        if too_much <= 0:
            break
    left = {name: value for name, value in kept.items() if name not in names}
    shown = ", ".join(names)[:LEFT_OUT_MAX_CHARS]
    return left | {LEFT_OUT_HEADER: shown} | dict(added)


def _size_of(value: object) -> int:
    """No less than the bytes that a value of a header takes in a frame."""
    if isinstance(value, Mapping):
        return 5 + sum(5 + len(name.encode()) + _size_of(each) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return 5 + sum(map(_size_of, value))
    if isinstance(value, str):
        return 5 + len(value.encode())
    return 5 + len(value) if isinstance(value, (bytes, bytearray)) else 16


def _is_left_out(name: str, without: tuple[str, ...]) -> bool:
    return name in _NOT_COPIED or name in without or name.startswith(_NOT_COPIED_BEGIN)


def _text_headers(properties: Mapping[str, Any]) -> dict[str, str]:
    found = {
        name.replace("_", "-"): str(properties[name])
        for name in _AS_HEADERS
        if properties.get(name)
    }
    for name, value in (properties.get("headers") or {}).items():
        text = _text(value)
        if text is not None:
            found[name.lower()] = text
    return found


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:d}"
    return None


def _receives(delivery: Delivery, headers: Mapping[str, str]) -> int:
    """How often it was delivered. Quorum queues count; of a classic one it is only known whether
    it was delivered before."""
    here = max(
        _number(headers.get("x-acquired-count")),
        _number(headers.get("x-delivery-count")),
        int(delivery.is_redelivered),
    )
    return _number(headers.get(RECEIVES_HEADER)) + here + 1


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else 0


# --- queues ---------------------------------------------------------------------------------------


def delay_step(seconds: float) -> float:
    """The shortest step that is not shorter than what is asked for; the longest for anything
    beyond it, after which the message is delivered and, if need be, delayed again."""
    if seconds <= DELAY_MIN_S:
        return DELAY_MIN_S
    if seconds >= DELAY_MAX_S:
        return DELAY_MAX_S
    return 2.0 ** math.ceil(math.log2(seconds))


def delay_arguments(names: QueueNames, seconds: float, version: tuple[int, ...]) -> Arguments:
    """How the delay queue of one step is declared."""
    back = _to(names.queue) | {"x-message-ttl": round(seconds * 1000)}
    if version < SAFE_DELAYS_SINCE:
        return back
    return back | _QUORUM | _HANDED_OVER


def queue_arguments(names: QueueNames) -> Arguments:
    """How the consumed queue is declared: what the broker itself gives up, because consumers died
    too often with it, is a dead letter instead of being dropped."""
    return _QUORUM | _to(names.dead_letters) | _HANDED_OVER


def store_arguments(version: tuple[int, ...]) -> Arguments:
    """How the queues of dead letters and of parked messages are declared."""
    return _QUORUM if version >= SAFE_DELAYS_SINCE else {}


def _to(queue: str) -> Arguments:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
