"""The key as it comes in a header: an RFC 9651 String, or the same key without quotes.

Owns what is a well-formed field. A malformed one is an error, also where a key is optional: who
sends one believes to be protected. Knows no request beyond these lines.
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
# Escapes and parameters included; what is longer is not even parsed.
FIELD_MAX_BYTES = 1_024

# Visible ASCII without the characters that mean something in a structured field or in a list.
_BARE = re.compile(rb"[\x21\x23-\x2b\x2d-\x3a\x3c-\x7e]+")


class RefusedField(InvalidKey):
    """A key that is refused as it came, but may have been taken before: from a delivery that
    brought it once, or by a rule that was not yet strict."""


def read_key(lines: Sequence[bytes], *, strict: bool = False) -> str | None:
    """The key of these field lines; None where there is no line at all.

    `strict` takes quoted Strings only. Raises InvalidKey.
    """
    if not lines:
        return None
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
    elif _BARE.fullmatch(value):
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
    item = parsed[0] if isinstance(parsed, tuple) else parsed  # parameters mean nothing here
    if type(item) is not str:
        raise InvalidKey(f"{HEADER_NAME} must be a string")
    return item
