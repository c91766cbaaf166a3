"""What a stored outcome shows to people, whatever operation it is of: plain JSON values as they
are, an HTTP response as its status, its headers and its body.

Bytes of a user's own codec are only described. Owns the format of a stored response:

    the first line   a JSON object: the status, the headers in pairs, and whether the body was
                     omitted. It has no newline but the one that ends it
    the rest         the body, unchanged

The SQL views read the same bytes. Pure.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from oncekey.core.codec import StoredError, StoredValue, Tombstone, unpack

# The bytes of these codecs are JSON.
JSON_CODECS: Final = frozenset(("json", "dataclass", "pydantic"))
HTTP_CODEC: Final = "http2"  # the name that is stored beside a response; it contains the version
NEWLINE: Final = b"\n"

_STATUS: Final = re.compile(rb'\{"status":(\d{3}),')

HeaderPairs = tuple[tuple[bytes, bytes], ...]


class Answer(NamedTuple):
    """A decoded outcome. `kind` is "value", "response", "error", "tombstone", or "unreadable" if
    it cannot be shown here. `error` says why there is no value."""

    kind: str
    value: Any = None
    error: str | None = None


def answer_of(body: bytes) -> Answer:
    """What the bytes of an outcome show."""
    stored = unpack(body)
    if isinstance(stored, StoredError):
        return Answer("error", None, f"{stored.type}: {stored.message}")
    if not isinstance(stored, StoredValue):
        kind = "tombstone" if isinstance(stored, Tombstone) else "unreadable"
        return Answer(kind, None, stored.reason)
    try:
        if stored.codec in JSON_CODECS:
            return Answer("value", json.loads(stored.data))
        if stored.codec == HTTP_CODEC:
            return Answer("response", _response(stored.data))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"the stored answer cannot be decoded: {type(error).__name__}: {error}"
        return Answer("unreadable", None, why)
    why = f"it was stored by codec {stored.codec!r}, which only its application can read"
    return Answer("unreadable", None, why)


def encode_head(status: int, headers: HeaderPairs, omitted: bool) -> bytes:
    """The first line of a stored response."""
    pairs = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]
    head = {"status": status, "headers": pairs, "omitted": omitted}
    return json.dumps(head, separators=(",", ":")).encode() + NEWLINE


def decode_head(line: bytes) -> tuple[int, HeaderPairs, bool]:
    """What encode_head has written."""
    found = json.loads(line)
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in found["headers"]]
    return int(found["status"]), tuple(pairs), bool(found["omitted"])


def status_in(head: bytes) -> int | None:
    """The status of a stored response, of whose outcome these are the first bytes."""
    stored = unpack(head)
    if not isinstance(stored, StoredValue) or stored.codec != HTTP_CODEC:
        return None
    found = _STATUS.match(stored.data)
    return int(found[1]) if found else None


def _response(data: bytes) -> dict[str, Any]:
    """A stored HTTP response: JSON and text as they are, other bodies as their size."""
    line, _, body = data.partition(NEWLINE)
    status, headers, omitted = decode_head(line)
    pairs = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    shown: dict[str, Any] = {"status": status, "headers": pairs}
    if omitted:
        shown["omitted"] = True
    elif body:
        shown["body"] = _body(body)
    return shown


def _body(body: bytes) -> Any:
    try:
        text = body.decode()
    except ValueError:
        return f"({len(body)} bytes that are no text)"
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
