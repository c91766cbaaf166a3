"""What a scenario gives back, and whether its promise was kept.

Owns the judgement: a scene is good only if the provider's books and every caller's answer are as
promised. The counts come from the books, never from the scenario's own telling.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Any

from oncekey.demo.provider.books import Counts


class Got(enum.StrEnum):
    """What a caller can get."""

    RAN = "ran"
    REPLAYED = "replayed"
    IN_FLIGHT = "in flight"
    MISMATCH = "mismatch"
    DECLINED = "declined"
    FAILED = "failed"
    LOST = "answer lost"
    GAVE_UP = "gave up"
    KILLED = "killed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Answer:
    """One caller's answer. `receipt` is the API's number of what was done, if there is one."""

    who: str
    got: Got
    detail: str = ""
    receipt: str | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """One scenario as it was played."""

    name: str
    title: str
    story: str
    key: str
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
            found.append(f"the provider acted {times(self.counted.acted)}, not once")
        if self.counted.asked != self.promised.asked:
            promised = times(self.promised.asked)
            found.append(f"it was asked {times(self.counted.asked)}, promised {promised}")
        # "In flight" only says "not yet"; how often somebody hears it is a matter of timing.
        got = tuple(answer.got for answer in self.answers if answer.got is not Got.IN_FLIGHT)
        if got != self.expected:
            found.append(f"callers got {', '.join(got)}; promised {', '.join(self.expected)}")
        receipts = {answer.receipt for answer in self.answers if answer.receipt}
        if len(receipts) > 1:
            found.append(f"callers got different answers: {', '.join(sorted(receipts))}")
        return found

    @property
    def ok(self) -> bool:
        return not self.faults

    def as_data(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "ok": self.ok, "faults": self.faults}


def times(count: int) -> str:
    """A count in words."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
