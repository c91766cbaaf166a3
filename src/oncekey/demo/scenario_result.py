"""The result of a scenario, and whether it kept its promise.

A result is good only if the provider's ledger and every caller's response are as promised. The
counts come from the ledger, never from the scenario itself.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Any

from oncekey.demo.provider.ledger import Counts


class ResponseKind(enum.StrEnum):
    """What happened to one caller's request."""

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
class CallerResult:
    """One caller's response. `receipt` is the id that the API gave to what was done, if any."""

    who: str
    got: ResponseKind
    detail: str = ""
    receipt: str | None = None


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """What one scenario came to."""

    name: str
    title: str
    story: str
    key: str
    answers: tuple[CallerResult, ...]
    expected: tuple[ResponseKind, ...]
    counted: Counts
    promised: Counts = field(default_factory=Counts)
    #: What the scenario itself found wrong.
    problems: tuple[str, ...] = ()

    @property
    def faults(self) -> list[str]:
        """One sentence for each broken promise; empty if all were kept."""
        found = list(self.problems)
        if self.counted.acted != self.promised.acted:
            found.append(f"the provider acted {times(self.counted.acted)}, not once")
        if self.counted.asked != self.promised.asked:
            promised = times(self.promised.asked)
            found.append(f"it was asked {times(self.counted.asked)}, promised {promised}")
        # "In flight" means "not yet"; how often a caller gets it is a matter of timing.
        got = tuple(
            answer.got for answer in self.answers if answer.got is not ResponseKind.IN_FLIGHT
        )
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
    """A count as an adverb."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
