"""The bytes that a record keeps for a step, and the public values that are read from them.

    byte 0      format version
    u16         length of the facts
    the facts   JSON: {"key": ..., "uuid": ...} of an intent, {"external_id": ..., "status": ...} of
                a result
    the rest    an envelope (see codec.py): the request to send, or the value that was returned

An intent is stored before the step's call, its result after it, under the step's name in
`Record.steps`; how a SQL store writes all steps of a record is stores/record_format.py. The
arguments of a registered operation are stored as a step too, under the reserved name ARGUMENTS.
Owns these formats. Knows no store and runs nothing.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from oncekey.core.errors import InvalidKey

T = TypeVar("T")

VERSION: Final = 1
RESERVED_PREFIX: Final = "oncekey:"
ARGUMENTS: Final = "oncekey:arguments"
EXTERNAL_ID_MAX_CHARS: Final = 255
STATUS_MAX_CHARS: Final = 100

_HEAD: Final = struct.Struct(">BH")
_json = json.JSONEncoder(ensure_ascii=False).encode  # made once: json.dumps would make one per call


@dataclass(frozen=True, slots=True)
class StepResult(Generic[T]):
    """What a step's function, or its probe, may return instead of the bare value.

    `external_id` and `status` are the other side's own words for what it did ("ch_7", 201). They
    are stored beside the value, for `oncekey show` and for whoever has to find it there.
    """

    value: T
    external_id: str | int | None = None
    status: str | int | None = None


@dataclass(frozen=True, slots=True)
class StepStatus:
    """One step as it is stored: what was sent, and what came back once it is done.

    `intent` is the child key of a step that began and did not finish: ask the other side what
    became of it. `quoted_intent` is the same as an RFC 9651 String, as clients send it that quote
    keys. `child_uuid` is what clients send that need a UUID, as those of AWS; it is None where an
    older release stored the step, which kept none. All is stored before the step's function is
    called, so which of the three the other side has got is not known here.
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
    child_uuid: str | None = None

    @property
    def quoted_intent(self) -> str | None:
        return None if self.intent is None else f'"{self.intent}"'


def intent_facts(key: str, uuid: UUID) -> dict[str, str]:
    """What is stored of a step before its call: its child key and its child UUID. Neither can be
    made from the other, nor from the record: the secret and most raw keys are not in the store."""
    return {"key": key, "uuid": str(uuid)}


def pack_step(facts: dict[str, str], envelope: bytes = b"") -> bytes:
    """The stored bytes of an intent or a result."""
    text = _json(facts).encode()
    return _HEAD.pack(VERSION, len(text)) + text + envelope


def unpack_step(body: bytes) -> tuple[dict[str, str], bytes]:
    """The facts and the envelope of stored bytes. Never raises: both are empty if the bytes cannot
    be read, and whoever needs an envelope refuses an empty one."""
    try:
        version, length = _HEAD.unpack_from(body)
        end = _HEAD.size + length
        if version != VERSION or end > len(body):
            return {}, b""
        facts = json.loads(body[_HEAD.size : end])
        return {str(name): str(fact) for name, fact in facts.items()}, body[end:]
    except (struct.error, ValueError, AttributeError, RecursionError):
        return {}, b""


def result_facts(result: object) -> dict[str, str]:
    """The external id and the status of a StepResult; empty for a bare value. Texts that are too
    long are cut, not refused: the step has happened and must be stored."""
    facts: dict[str, str] = {}
    if not isinstance(result, StepResult):
        return facts
    if result.external_id is not None:
        facts["external_id"] = _printable(result.external_id, EXTERNAL_ID_MAX_CHARS)
    if result.status is not None:
        facts["status"] = _printable(result.status, STATUS_MAX_CHARS)
    return facts


def result_value(result: Any) -> Any:
    """The value of a StepResult, or the bare value itself."""
    return result.value if isinstance(result, StepResult) else result


def _printable(fact: object, max_chars: int) -> str:
    try:
        text = str(fact)
    except Exception:  # it is the user's object, and its __str__ may raise
        text = "(unreadable)"
    # Python allows a lone surrogate in a text, and no database does.
    return text.encode("utf-8", "backslashreplace").decode()[:max_chars]


def refuse_reserved(name: str) -> None:
    """Raise InvalidKey for a step name that is reserved for oncekey itself."""
    if name.startswith(RESERVED_PREFIX):
        raise InvalidKey(
            f"the step name {name!r} begins with {RESERVED_PREFIX!r}, which oncekey keeps for "
            "itself; choose another one"
        )
