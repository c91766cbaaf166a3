"""What a `recover` function is given and what it may answer.

Owns the two small values users meet when a key is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from oncekey.core.errors import ConfigurationError, InvalidKey
from oncekey.core.record import State
from oncekey.core.step_format import StepStatus

NOTE_MAX_CHARS: Final = 1_000


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """An operation whose owner died. Ask the outside world about it, by child key if you can.

    `request` is what was asked for, where it is an operation that keeps its arguments. `key` is
    empty where nobody retried and the store was told to keep no raw keys.
    """

    scope: str
    operation: str
    key: str
    fence: int
    attempt: int
    steps: tuple[StepStatus, ...]
    child_keys: Callable[[str], str]
    child_uuids: Callable[[str], UUID]
    request: Any = None

    def child_key(self, name: str) -> str:
        """The key the dead attempt sent downstream for this step."""
        if self.key:
            return self.child_keys(name)
        for step in self.steps:
            if step.name == name and step.intent is not None:
                return step.intent
        raise self._no_key(name)

    def child_uuid(self, name: str) -> UUID:
        """The same as a UUID, for providers that took one."""
        if self.key:
            return self.child_uuids(name)
        raise self._no_key(name)

    def _no_key(self, name: str) -> InvalidKey:
        return InvalidKey(
            f"the child key of {name!r} cannot be made: the key itself is not stored, and that "
            "step left none. Register the operation with once.operation(), or keep raw keys",
            operation=self.operation,
        )


@dataclass(frozen=True, slots=True)
class Recovery:
    """The answer: `Recovery.succeeded(value)`, `.failed(message)`, `.free()`.

    Returning None from `recover` means "still unknown".
    """

    state: State
    value: Any = None
    note: str = "recover"

    def __post_init__(self) -> None:
        if self.state not in (State.SUCCEEDED, State.FAILED, State.ABSENT):
            raise ConfigurationError(
                "a Recovery is made by Recovery.succeeded(value), .failed(message) or .free()"
            )
        note = self.note
        if not isinstance(note, str) or not (len(note) <= NOTE_MAX_CHARS and note.isprintable()):
            raise ConfigurationError(
                f"the note of a Recovery must be text of at most {NOTE_MAX_CHARS} printable "
                "characters, on one line"
            )

    @classmethod
    def succeeded(cls, value: Any, *, note: str = "recover: it happened") -> Recovery:
        return cls(State.SUCCEEDED, value, note)

    @classmethod
    def failed(cls, message: str, *, note: str = "recover: it failed") -> Recovery:
        return cls(State.FAILED, message, note)

    @classmethod
    def free(cls, *, note: str = "recover: it never happened") -> Recovery:
        return cls(State.ABSENT, None, note)
