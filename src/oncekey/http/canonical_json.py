"""Writes the canonical form of any JSON value (RFC 8785), in slices.

The bytes are exactly those of the rfc8785 library, which still writes very large and very small
numbers; tests compare the two. The library has no place where it could pause: whoever holds the
interpreter's lock for long makes the event loop wait. Here the writer sleeps for a moment after
every SLICE_VALUES values, so that other threads get their turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any, Final

from oncekey.http.missing_dependency import needs

with needs("http"):
    import rfc8785

# What takes half a millisecond, whatever the values are.
SLICE_VALUES: Final = 50
# Long enough that a thread that waits for the lock is awake before this one asks for it again.
PAUSE_SECONDS: Final = 0.0001

_INTEGER_MAX: Final = 2**53 - 1


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
