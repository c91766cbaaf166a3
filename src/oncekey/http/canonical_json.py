"""Parses JSON that all parsers understand alike, and writes it in its canonical form.

The canonical form is that of RFC 8785, with exactly the bytes of the rfc8785 library. There are two
ways to it:

1. Plain documents are nearly every body of an API: an object or an array that is not long and not
   deep, without floats, large integers and escapes by number. For these, RFC 8785 is what the json
   module's C encoder writes with sorted keys, which is fast.
2. Any other document is written here in slices. The library has no place where it could pause:
   whoever holds the interpreter's lock for long makes the event loop wait. So the writer sleeps for
   a moment after every SLICE_VALUES values, and other threads get their turn. The library still
   writes very large and very small numbers.

The fingerprints of stored records depend on these bytes: tests compare them with the library's.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, Final

from oncekey.core.codec import make_encode
from oncekey.http.missing_dependency import needs

with needs("http"):
    import rfc8785

PLAIN_MAX_BYTES: Final = 16 * 1024
# Deeper documents could end in a RecursionError here or in the library, and not in the other. This
# limits the number of objects and arrays, and so the depth.
_BEGINNINGS_MAX: Final = 100
_SURELY_FLAT: Final = 2 * _BEGINNINGS_MAX  # a text of this length has no room for more of them
# From 2**53 on, which has 16 digits, integers are not exact, and the library refuses them. A number
# begins after one of these characters, and what is found in a text does no harm.
_has_long_number = re.compile(r"[:,\[ \t\n\r]-?\d{16}").search

NOT_PLAIN: Final = object()
# What takes half a millisecond, whatever the values are.
SLICE_VALUES: Final = 50
# Long enough that a thread that waits for the lock is awake before this one asks for it again.
PAUSE_SECONDS: Final = 0.0001

_INTEGER_MAX: Final = 2**53 - 1


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member comes twice")
    return members


def _refuse(value: Any) -> Any:
    raise ValueError(f"{value} is no JSON")


# --- plain documents ------------------------------------------------------------------------------


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


# --- any document ---------------------------------------------------------------------------------


class Slices:
    """Counts values, and pauses after each slice of them."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = SLICE_VALUES

    def count(self) -> None:
        """One value was read or written."""
        self._left -= 1
        if not self._left:
            self.pause()

    def pause(self) -> None:
        """End a slice."""
        self._left = SLICE_VALUES
        time.sleep(PAUSE_SECONDS)


def parse_strict(text: str, slices: Slices) -> Any:
    """The value of a JSON document, of which all parsers think the same."""

    def exact(number: str) -> float:
        slices.count()
        return _exact(number)

    decoder = json.JSONDecoder(
        object_pairs_hook=_members, parse_float=exact, parse_constant=_refuse
    )
    return decoder.decode(text)


def _exact(text: str) -> float:
    """Accept only numbers that a float represents as written: 0.1, not 0.10000000000000001."""
    number = float(text)
    written = repr(number)
    if text != written and Decimal(text) != Decimal(written):
        raise ValueError(f"{text} is no float")
    return number


def canonical_json(value: Any, slices: Slices) -> bytes:
    """The canonical form. Raises ValueError for what has none: a text that is no Unicode, an
    integer that is not exact as a float."""
    parts: list[str] = []
    _write(value, parts.append, slices.count)
    return "".join(parts).encode("utf-8")


def _write(value: Any, write: Callable[[str], None], count: Callable[[], None]) -> None:
    count()
    kind = type(value)
    if kind is str:
        write(encode_basestring(value))
    elif kind is float:
        write(_float(value))
    elif kind is int:
        if not -_INTEGER_MAX <= value <= _INTEGER_MAX:
            raise rfc8785.IntegerDomainError(value)
        write(str(value))
    elif kind is list:
        before = "["
        for element in value:
            write(before)
            _write(element, write, count)
            before = ","
        write("]" if value else "[]")
    elif kind is dict:
        before = "{"
        for name, member in sorted(value.items(), key=_utf16):
            write(before)
            write(encode_basestring(name))
            write(":")
            _write(member, write, count)
            before = ","
        write("}" if value else "{}")
    else:
        write("null" if value is None else "true" if value else "false")


def _float(number: float) -> str:
    """As JavaScript writes it. Where Python writes no exponent, the two agree but for `.0`; NaN and
    infinity, which have an `n`, are for the library to refuse."""
    text = repr(number)
    if "e" in text or "n" in text or not number:
        return rfc8785.dumps(number).decode()
    return text[:-2] if text.endswith(".0") else text


def _utf16(member: tuple[str, Any]) -> bytes:
    return member[0].encode("utf-16be")
