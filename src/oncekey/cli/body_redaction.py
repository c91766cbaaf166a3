"""Bodies as operators see them who did not ask for them: their type and size, not their content.

Answers, arguments and the values of steps may be anybody's personal data. States, times, headers,
errors and notes are not redacted: they say what to do. Pure.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from oncekey.core.step_format import StepStatus
from oncekey.engine.keys.key_status import KeyStatus

_SIZE_ONLY = re.compile(r"\(\d+ bytes that are no text\)")
_TYPES: tuple[tuple[Any, str], ...] = (
    (bool, "boolean"),
    ((int, float), "number"),
    (str, "text"),
    (list, "list"),
    (dict, "object"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Redacted:
    """What stands for a value that is not shown."""

    type: str
    bytes: int
    redacted: bool = True

    def __str__(self) -> str:
        size = f"{self.bytes:,} {'byte' if self.bytes == 1 else 'bytes'}"
        return f"({self.type}, {size}; --bodies shows it)"


def redacted_status(status: KeyStatus) -> KeyStatus:
    """The status without what is in its bodies."""
    return dataclasses.replace(
        status,
        value=_answer(status),
        arguments=_redacted(status.arguments),
        steps=tuple(_step(step) for step in status.steps),
    )


def _answer(status: KeyStatus) -> Any:
    if status.http_status is None or "body" not in status.value:
        return status.value if status.http_status is not None else _redacted(status.value)
    return {**status.value, "body": _redacted(status.value["body"])}


def _step(step: StepStatus) -> StepStatus:
    return dataclasses.replace(step, value=_redacted(step.value), request=_redacted(step.request))


def _redacted(value: Any) -> Any:
    if value is None or (isinstance(value, str) and _SIZE_ONLY.fullmatch(value)):
        return value
    text = value if isinstance(value, str) else json.dumps(value, default=repr, ensure_ascii=False)
    kind = next((name for types, name in _TYPES if isinstance(value, types)), "value")
    return Redacted(kind, len(text.encode(errors="replace")))
