"""What a `recover` function is given and what it may answer.

Owns the two small values users meet when a key is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oncekey.core.record import State, Step


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """An operation whose owner died. Ask the outside world about it, by child key if you can."""

    scope: str
    operation: str
    key: str
    fence: int
    attempt: int
    steps: tuple[Step, ...]
    child_keys: Any

    def child_key(self, name: str) -> str:
        """The key the dead attempt sent downstream for this step."""
        text: str = self.child_keys(name)
        return text


@dataclass(frozen=True, slots=True)
class Recovery:
    """The answer: `Recovery.succeeded(value)`, `.failed(message)`, `.free()`.

    Returning None from `recover` means "still unknown".
    """

    state: State
    value: Any = None
    note: str = "recover"

    @classmethod
    def succeeded(cls, value: Any, *, note: str = "recover: it happened") -> Recovery:
        return cls(State.SUCCEEDED, value, note)

    @classmethod
    def failed(cls, message: str, *, note: str = "recover: it failed") -> Recovery:
        return cls(State.FAILED, message, note)

    @classmethod
    def free(cls, *, note: str = "recover: it never happened") -> Recovery:
        return cls(State.ABSENT, None, note)
