"""An entry of a stream as a message, and a message as the fields of an entry. Pure.

An entry that takes another one's place gets another id from the server. So that it is still the
same message for `key="delivery"`, it carries where it came from in a field: the identity of the
stream and the id that the entry had first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from oncekey.queues.disposition import Disposition, Kind
from oncekey.queues.queue_message import Message
from oncekey.queues.redrive import HEADERS, headers_of

FIRST_ID_FIELD: Final = "oncekey-id"
PARKED_FIELD: Final = "oncekey-parked"
LOST_FIELD: Final = "oncekey-lost"  # written by take.lua
_OURS: Final = frozenset((*HEADERS, FIRST_ID_FIELD, PARKED_FIELD, LOST_FIELD))
_REPLACED: Final = frozenset((*HEADERS, FIRST_ID_FIELD, PARKED_FIELD))

Fields = tuple[tuple[bytes, bytes], ...]


class StreamEntry(NamedTuple):
    """One delivery of an entry: `raw` of its message. No other one has the same id and the same
    number of deliveries."""

    id: str
    deliveries: int
    fields: Fields


def message_of(
    reply: Sequence[Any], stream: str, body_field: str | None, identity: str | None
) -> Message:
    """The message of an entry as take.lua returns it: id, deliveries, and a flat list of fields."""
    id_bytes, deliveries, flat = reply
    fields: Fields = tuple(zip(flat[::2], flat[1::2], strict=True))
    body, others = _body_and_others(fields, body_field)
    headers = {name.lower(): value for name, value in others.items()}
    id: str = id_bytes.decode()
    return Message(
        body,
        stream,
        headers,
        _delivery_id(id, headers.get(FIRST_ID_FIELD, ""), identity),
        deliveries,
        raw=StreamEntry(id, deliveries, fields),
    )


def again_fields(message: Message, identity: str | None) -> list[bytes]:
    """The fields of the same message in another place of the stream."""
    kept = _without(message.raw.fields, (FIRST_ID_FIELD,))
    return _flat((*kept, *_pairs({FIRST_ID_FIELD: _first_id(message, identity)})))


def moved_fields(message: Message, disposition: Disposition, identity: str | None) -> list[bytes]:
    """The fields of a dead letter or of a parked message."""
    marks = {FIRST_ID_FIELD: _first_id(message, identity)}
    if disposition.dead_letter is not None:
        kept = _without(message.raw.fields, _REPLACED)
        marks |= headers_of(disposition.dead_letter)
    else:
        assert disposition.kind is Kind.PARK
        kept = _without(message.raw.fields, (FIRST_ID_FIELD, PARKED_FIELD))
        marks[PARKED_FIELD] = disposition.reason
    return _flat((*kept, *_pairs(marks)))


def _delivery_id(id: str, first: str, identity: str | None) -> str:
    """The id that the message had first. That of another stream keeps the identity of that stream,
    since this one may have an entry of the same id."""
    if not first:
        return id
    known, _, first_id = first.rpartition("/")
    return first_id if known == (identity or "") else first


def _first_id(message: Message, identity: str | None) -> str:
    id = message.delivery_id
    return id if "/" in id else f"{identity or ''}/{id}"


def _body_and_others(fields: Fields, body_field: str | None) -> tuple[bytes, dict[str, str]]:
    """The body, and the other fields that are text; what is not is left to `raw`."""
    wanted = body_field.encode() if body_field is not None else None
    body = b""
    others = {}
    for name, value in fields:
        if name == wanted:
            body = value
            continue
        try:
            others[name.decode()] = value.decode()
        except UnicodeDecodeError:
            continue
    if body_field is None:
        own = {name: value for name, value in others.items() if name.lower() not in _OURS}
        body = json.dumps(own, ensure_ascii=False, sort_keys=True).encode()
    return body, others


def _without(fields: Fields, names: Iterable[str]) -> Fields:
    left_out = frozenset(name.encode() for name in names)
    return tuple(field for field in fields if field[0].lower() not in left_out)


def _pairs(texts: dict[str, str]) -> Fields:
    return tuple((name.encode(), value.encode()) for name, value in texts.items())


def _flat(fields: Fields) -> list[bytes]:
    return [word for field in fields for word in field]
