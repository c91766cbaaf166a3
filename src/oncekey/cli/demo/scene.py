"""What a scenario gives back, and whether its promise was kept.

Owns the judgement: a scene is good only if the provider's books and every caller's answer are
as promised. The counts come from the books (provider.py), never from the scenario's own telling.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from oncekey import (
    InFlight,
    Mismatch,
    OncekeyError,
    OperationFailed,
    OutcomeUnknown,
    Result,
    Terminal,
)


class Got(enum.StrEnum):
    """What a caller can get."""

    RAN = "ran"
    REPLAYED = "replayed"
    IN_FLIGHT = "in flight"
    UNKNOWN = "outcome unknown"
    MISMATCH = "mismatch"
    FAILED = "failed"
    STORED_ERROR = "stored error"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class Answer:
    """One caller's answer. `receipt` is the provider's number, where there is one."""

    who: str
    got: Got
    detail: str = ""
    receipt: str | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """The provider's books for one order: how often it was asked, how often it acted."""

    asked: int = 1
    acted: int = 1


@dataclass(frozen=True, slots=True)
class Scene:
    """One scenario as it was played."""

    number: str
    title: str
    story: str
    order: str
    answers: tuple[Answer, ...]
    expected: tuple[Got, ...]
    counted: Counts
    promised: Counts = field(default_factory=Counts)
    #: What else the scenario itself found wrong.
    problems: tuple[str, ...] = ()

    @property
    def faults(self) -> list[str]:
        """Every broken promise in words; empty for a good scene."""
        found = list(self.problems)
        if self.counted.acted != self.promised.acted:
            found.append(f"it took effect {times(self.counted.acted)}, not once")
        if self.counted.asked != self.promised.asked:
            promised = times(self.promised.asked)
            found.append(f"it was asked for {times(self.counted.asked)}, promised {promised}")
        got = tuple(answer.got for answer in self.answers)
        if got != self.expected:
            found.append(f"callers got {', '.join(got)}; promised {', '.join(self.expected)}")
        receipts = {answer.receipt for answer in self.answers if answer.receipt}
        if len(receipts) > 1:
            found.append(f"callers got different answers: {', '.join(sorted(receipts))}")
        return found

    @property
    def ok(self) -> bool:
        return not self.faults


def answer_of(who: str, call: Callable[[], Result[dict[str, str]]], note: str = "") -> Answer:
    """Make the call as `who` and put what came of it into an Answer."""
    try:
        result = call()
    except InFlight as error:
        return Answer(who, Got.IN_FLIGHT, f"{error.status}, retry in {error.retry_after:.1f} s")
    except OutcomeUnknown as error:
        return Answer(who, Got.UNKNOWN, f"{error.status}, {note or 'not run again'}")
    except Mismatch as error:
        return Answer(who, Got.MISMATCH, f"{error.status}, {note or 'use a new key'}")
    except OperationFailed as error:
        return Answer(who, Got.STORED_ERROR, error.error_message)
    except Terminal as error:
        return Answer(who, Got.FAILED, str(error))
    except OncekeyError as error:
        # No promise expects it, so the scene fails with these words instead of a traceback.
        return Answer(who, Got.FAILED, str(error))
    got = Got.REPLAYED if result.replayed else Got.RAN
    return Answer(who, got, note, result.value["charge"])


def times(count: int) -> str:
    """A count in words."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
