"""Fingerprints of requests: a version byte and a digest of the request as canonical bytes.

Two requests that mean the same give the same bytes: members in any order, tuples as lists,
dataclasses and pydantic models by their fields. Two that differ never do: a value that JSON cannot
express (dates, decimals, bytes, ...) is written in a form that no JSON text has, `!Decimal"1.10"`,
and the keys of a dict must be text, since JSON would write the keys 1 and "1" alike.

The version comes first so that a later way of hashing can be distinguished from this one: a record
that was written under an unknown version is never called a mismatch, it is refused as unreadable.
If no request was given, NO_REQUEST takes the place of the version, so that the message about a
mismatch can say which call had none.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from hashlib import blake2b
from pathlib import PurePath
from typing import Any
from uuid import UUID

from oncekey.core.codec import make_encode, refuse_nontext_keys
from oncekey.core.errors import InvalidKey


class _NotPlainError(Exception):
    """The value contains something that JSON cannot express."""


def canonical(value: Any) -> bytes:
    """Bytes that are equal exactly if the requests are; raises InvalidKey."""
    try:
        try:
            text = _encode(value)
            refuse_nontext_keys(value)
        except _NotPlainError:
            text = _write(value)
        return text.encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidKey(
            f"this request cannot be fingerprinted ({error}); give request= plain values "
            "(text, numbers, lists, dicts with text keys), bytes, or a dataclass"
        ) from error


def _write(value: Any) -> str:
    """JSON as `_encode` writes it, with tagged forms for the values that JSON does not have."""
    if isinstance(value, enum.Enum) and not isinstance(value, (str, int, float)):
        return "!enum" + _encode(value.name)
    if value is None or isinstance(value, (str, int, float)):
        return _encode(value)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_write, value)) + "]"
    if isinstance(value, Mapping):
        refuse_nontext_keys(dict.fromkeys(value))
        members = [f"{_encode(key)}:{_write(value[key])}" for key in sorted(value)]
        return "{" + ",".join(members) + "}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _write({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    if callable(dump := getattr(value, "model_dump", None)):
        return _write(dump(mode="json"))
    tag, content = _tagged(value)
    return f"!{tag}{_write(content)}"


def _tagged(value: Any) -> tuple[str, Any]:
    kind = type(value).__name__
    if isinstance(value, Set):
        return "set", sorted(map(_write, value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes", bytes(value).hex()
    if isinstance(value, datetime):
        return "datetime", value.isoformat()
    if isinstance(value, (date, time)):
        return kind, value.isoformat()
    if isinstance(value, timedelta):
        return "timedelta", [value.days, value.seconds, value.microseconds]
    if isinstance(value, (Decimal, UUID)):
        return kind, str(value)
    if isinstance(value, PurePath):
        return "path", str(value)
    raise TypeError(f"a {kind} has no canonical form")


def _not_plain(value: Any) -> Any:
    raise _NotPlainError


_encode = make_encode(sort_keys=True, ensure_ascii=True, default=_not_plain)


VERSION = 1
NO_REQUEST = 255  # in place of the version, if no request was given
_PREFIX = bytes([VERSION])
_PREFIX_NO_REQUEST = bytes([NO_REQUEST])
_PERSON = b"oncekey-fp-v1"


def fingerprints(secret: bytes = b"") -> Callable[[Any], bytes]:
    """The function that gives the fingerprint of a request, under a secret or none. None means
    that there is no request, and equals only None."""
    keyed = blake2b(digest_size=32, key=secret, person=_PERSON)

    without = keyed.copy()
    without.update(b"j" + canonical(None))
    nothing = _PREFIX_NO_REQUEST + without.digest()

    def of(request: Any) -> bytes:
        if request is None:
            return nothing
        hashed = keyed.copy()  # copying a hash costs less than making one
        hashed.update(b"b" + request if type(request) is bytes else b"j" + canonical(request))
        return _PREFIX + hashed.digest()

    return of


def fingerprint(request: Any, secret: bytes = b"") -> bytes:
    """The fingerprint of one request."""
    return fingerprints(secret)(request)


def version_of(stored: bytes) -> int:
    """The version of a stored fingerprint, or NO_REQUEST; 0 for an empty one."""
    return stored[0] if stored else 0
