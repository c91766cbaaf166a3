"""What is written down about a step: the intent before its call, the result after it.

    byte 0      format version
    u16         length of the facts
    the facts   JSON: {"key": ...} of an intent, {"external_id": ..., "status": ...} of a result
    the rest    an envelope (see codec.py): the request to be sent, or what came back

The arguments of an operation that may have to be finished without its caller are kept as a step
too, under a name no body can use. Owns these forms. Knows no store and runs nothing.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, NamedTuple, TypeVar

from oncekey.core.errors import InvalidKey

T = TypeVar("T")

VERSION: Final = 1
RESERVED_PREFIX: Final = "oncekey:"
ARGUMENTS: Final = "oncekey:arguments"
EXTERNAL_ID_MAX_CHARS: Final = 255
STATUS_MAX_CHARS: Final = 100

_HEAD: Final = struct.Struct(">BH")


@dataclass(frozen=True, slots=True)
class StepResult(Generic[T]):
    """What a step's function, or its probe, may return instead of the bare value.

    `external_id` and `status` are what the other side calls what it did ("ch_7", 201): they are
    kept beside the value, for `oncekey show` and for whoever has to find it there.
    """

    value: T
    external_id: str | int | None = None
    status: str | int | None = None


@dataclass(frozen=True, slots=True)
class StepStatus:
    """One step as it stands: what was sent, and what came back once it is done.

    `intent` is the child key of a step that began and did not finish: ask the other side what
    became of it.
    """

    name: str
    done: bool
    at: datetime
    value: Any = None
    error: str | None = None
    intent: str | None = None
    request: Any = None
    external_id: str | None = None
    status: str | None = None


class Written(NamedTuple):
    """A step's bytes, taken apart. `facts` is empty where they cannot be read."""

    facts: dict[str, str]
    envelope: bytes


def pack_step(facts: dict[str, str], envelope: bytes = b"") -> bytes:
    text = json.dumps(facts, ensure_ascii=False).encode()
    return _HEAD.pack(VERSION, len(text)) + text + envelope


def unpack_step(body: bytes) -> Written:
    """Never raises: what cannot be read is empty, and an empty envelope is refused by whoever
    needs one."""
    try:
        version, length = _HEAD.unpack_from(body)
        end = _HEAD.size + length
        if version != VERSION or end > len(body):
            return Written({}, b"")
        facts = json.loads(body[_HEAD.size : end])
        return Written({str(name): str(kind) for name, kind in facts.items()}, body[end:])
    except (struct.error, ValueError, AttributeError, RecursionError):
        return Written({}, b"")


def result_facts(result: StepResult[Any]) -> dict[str, str]:
    """Cut to their limits, not refused: by now it has happened, and must be written down."""
    facts = {}
    if result.external_id is not None:
        facts["external_id"] = _printable(result.external_id, EXTERNAL_ID_MAX_CHARS)
    if result.status is not None:
        facts["status"] = _printable(result.status, STATUS_MAX_CHARS)
    return facts


def _printable(kind: object, longest: int) -> str:
    try:
        text = str(kind)
    except Exception:  # the kind is the user's object; what it says of itself may fail
        text = "(unreadable)"
    # A lone surrogate is text to Python and to no database.
    return text.encode("utf-8", "backslashreplace").decode()[:longest]


def refuse_reserved(name: str) -> None:
    if name.startswith(RESERVED_PREFIX):
        raise InvalidKey(
            f"the step name {name!r} begins with {RESERVED_PREFIX!r}, which oncekey keeps for "
            "itself; choose another one"
        )
