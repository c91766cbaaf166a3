"""Parses and encodes plain JSON documents fast, with exactly the bytes that rfc8785 gives.

Plain is nearly every body of an API: an object or an array that is not long and not deep, without
floats, large integers and escapes by number. For these, RFC 8785 is what the json module's C
encoder writes with sorted keys. Everything else is for the rfc8785 library, in canonical_body.py;
so is every document that is no JSON, or that two parsers may understand differently.

The fingerprints of stored records depend on these bytes: tests compare them with the library's.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from oncekey.core.json_encoder import make_encode

PLAIN_MAX_BYTES: Final = 16 * 1024
# Deeper documents could end in a RecursionError here or in the library, and not in the other. This
# limits the number of objects and arrays, and so the depth.
_BEGINNINGS_MAX: Final = 100
_SURELY_FLAT: Final = 2 * _BEGINNINGS_MAX  # a text of this length has no room for more of them
# From 2**53 on, which has 16 digits, integers are not exact, and the library refuses them. A number
# begins after one of these characters, and what is found in a text does no harm.
_has_long_number = re.compile(r"[:,\[ \t\n\r]-?\d{16}").search

NOT_PLAIN: Final = object()


class _NotPlain(ValueError):
    """The library must decide about this document."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _NotPlain
    return members


def _refuse(value: Any) -> Any:
    raise _NotPlain


# The scanner itself: `decode` and `raw_decode` cost more than scanning a small document.
_decoder: Any = json.JSONDecoder(
    object_pairs_hook=_members, parse_float=_refuse, parse_constant=_refuse
)
_scan = _decoder.scan_once
_encode = make_encode(sort_keys=True, ensure_ascii=False, default=_refuse)


def parse_plain(data: bytes) -> Any:
    """The value of a plain document, or NOT_PLAIN."""
    if len(data) > PLAIN_MAX_BYTES:
        return NOT_PLAIN
    try:
        text = data.decode().strip(" \t\n\r")
        if not (text[:1] == "{" or text[:1] == "[") or "\\u" in text or _has_long_number(text):
            return NOT_PLAIN  # an escape by number may be half of a character
        if len(text) > _SURELY_FLAT and text.count("{") + text.count("[") > _BEGINNINGS_MAX:
            return NOT_PLAIN
        if not data.isascii() and len(text.encode("utf-16-le")) != 2 * len(text):
            # Sorted by code points, characters beyond U+FFFF come last; in RFC 8785 they do not.
            return NOT_PLAIN
        value, end = _scan(text, 0)
    except (ValueError, StopIteration, RecursionError):  # a StopIteration where no value begins
        return NOT_PLAIN
    return value if end == len(text) else NOT_PLAIN


def encode_plain(value: Any) -> bytes:
    """The canonical form of what `parse_plain` gave, or of a part of it."""
    return _encode(value).encode("utf-8")
