"""Reads the key from the Idempotency-Key header: an RFC 9651 String, or the same without quotes.

A malformed header is an error even where a key is optional, because its sender believes to be
protected. Knows nothing of a request beyond the lines of this header.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from oncekey.core.errors import InvalidKey
from oncekey.core.identity import KEY_MAX_CHARS
from oncekey.http.missing_dependency import needs

with needs("http"):
    import http_sf

HEADER = b"idempotency-key"
HEADER_NAME = "Idempotency-Key"
# Escapes and parameters included. A longer field is rejected without parsing it.
FIELD_MAX_BYTES = 1_024

# Visible ASCII without the characters that have a meaning in a structured field or in a list.
_UNQUOTED = re.compile(rb"[\x21\x23-\x2b\x2d-\x3a\x3c-\x7e]+")
# What nearly all clients send: such a key, or a String without escapes and parameters.
_PLAIN_UNQUOTED = re.compile(_UNQUOTED.pattern[:-1] + rb"{1,%d}" % KEY_MAX_CHARS).fullmatch
_PLAIN_QUOTED = re.compile(rb'"[\x20\x21\x23-\x5b\x5d-\x7e]{1,%d}"' % KEY_MAX_CHARS).fullmatch


class RefusedField(InvalidKey):
    """A key that is rejected in this form, but may have been accepted before: from a delivery that
    had the header once only, or by a rule that was not strict yet."""


def read_key(lines: Sequence[bytes], *, strict: bool = False) -> str | None:
    """Return the key of these header lines, or None if there are none. Raises InvalidKey.

    With `strict` only quoted Strings are accepted.
    """
    if not lines:
        return None
    if len(lines) == 1:
        line = lines[0]
        if not strict and _PLAIN_UNQUOTED(line):
            return line.decode("ascii")
        if _PLAIN_QUOTED(line):
            return line[1:-1].decode("ascii")
    return _read_any(lines, strict)


def _read_any(lines: Sequence[bytes], strict: bool) -> str:
    """The same for lines of any form."""
    if len(lines) > 1:
        raise RefusedField(f"{HEADER_NAME} came {len(lines)} times; send it once")
    value = lines[0].strip(b" \t")
    if not value:
        raise InvalidKey(f"{HEADER_NAME} is empty; send a key, such as a random UUID")
    if len(value) > FIELD_MAX_BYTES:
        raise InvalidKey(
            f"{HEADER_NAME} has {len(value)} bytes; at most {FIELD_MAX_BYTES} are read"
        )
    if value[:1] == b'"':
        key = _quoted(value)
    elif strict:
        raise RefusedField(f'{HEADER_NAME} must be a quoted string: {HEADER_NAME}: "your-key"')
    elif _UNQUOTED.fullmatch(value):
        key = value.decode("ascii")
    else:
        raise InvalidKey(
            f"{HEADER_NAME} is malformed; send visible ASCII characters, in double quotes if there "
            "are spaces, commas, semicolons or quotes among them"
        )
    if not key:
        raise InvalidKey(f"the key in {HEADER_NAME} is empty; send a key, such as a random UUID")
    if len(key) > KEY_MAX_CHARS:
        raise InvalidKey(f"the key has {len(key)} characters; allowed are 1 to {KEY_MAX_CHARS}")
    return key


def _quoted(value: bytes) -> str:
    try:
        parsed = http_sf.parse(value, tltype="item")
    except ValueError as error:
        raise InvalidKey(f"{HEADER_NAME} is malformed: {error}") from None
    item = parsed[0] if isinstance(parsed, tuple) else parsed  # parameters are ignored
    if type(item) is not str:
        raise InvalidKey(f"{HEADER_NAME} must be a string")
    return item
