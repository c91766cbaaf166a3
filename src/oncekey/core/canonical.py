"""Python values as canonical bytes, for fingerprints.

Two requests that mean the same give the same bytes: members in any order, tuples as lists,
dataclasses and pydantic models by their fields. Values JSON has no word for (dates, decimals,
bytes, ...) are spelt as a tagged list, so that none of them can be mistaken for plain text.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

from oncekey.core.errors import InvalidKey
from oncekey.core.jsontext import make_encode


def canonical(value: Any) -> bytes:
    """Bytes that are equal exactly when the requests are."""
    try:
        return _encode(value).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidKey(
            f"this request cannot be fingerprinted ({error}); give request= plain values "
            "(text, numbers, lists, dicts with text keys), bytes, or a dataclass"
        ) from error


def _other(value: Any) -> Any:
    """What JSON cannot say, as a tagged list."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # Shallow: nested dataclasses come through here one by one.
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return ["set", sorted(_encode(item) for item in value)]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, (datetime, date, time)):
        return [type(value).__name__, value.isoformat()]
    if isinstance(value, timedelta):
        return ["timedelta", value.days, value.seconds, value.microseconds]
    if isinstance(value, (Decimal, UUID, PurePath)):
        return [type(value).__name__, str(value)]
    if isinstance(value, enum.Enum):
        return ["enum", value.name]
    raise TypeError(f"a {type(value).__name__} has no canonical form")


_encode = make_encode(sort_keys=True, ensure_ascii=True, default=_other)
