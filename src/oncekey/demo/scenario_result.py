"""The result of a scenario, and whether it kept its promise.

A result is good only if the provider's ledger and every caller's response are as promised. The
counts come from the ledger, never from the scenario itself.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Any

from oncekey.demo.handlers import Handler
from oncekey.demo.provider.ledger import Counts, Kind

#: What was done, by the kind of request to the provider.
VERBS: dict[Kind, str] = {"charge": "charged", "refund": "refunded", "shipment": "shipped"}


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
    #: Of a GET: nothing ran.
    READ = "read"


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
    kind: Kind = "charge"
    handler: Handler = Handler.GUARDED
    #: Why it comes to this with this handler.
    reason: str = ""

    @property
    def is_doubled(self) -> bool:
        """Whether money or goods moved more than once. A card that is declined twice moved none."""
        return self.counted.acted > 1

    @property
    def effect(self) -> str:
        """What the provider did, in a few words."""
        counted, verb = self.counted, VERBS[self.kind]
        if counted.acted:
            return f"{verb} {times(counted.acted)}"
        return f"declined, never {verb}" if counted.declined else f"never {verb}"

    @property
    def faults(self) -> list[str]:
        """One sentence for each broken promise; empty if all were kept."""
        found = list(self.problems)
        for done in ("acted", "declined"):
            counted, promised = getattr(self.counted, done), getattr(self.promised, done)
            if counted != promised:
                found.append(f"the provider {done} {times(counted)}, not {times(promised)}")
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
        return {
            **dataclasses.asdict(self),
            "ok": self.ok,
            "faults": self.faults,
            "effect": self.effect,
            "doubled": self.is_doubled,
        }


def times(count: int) -> str:
    """A count as an adverb."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
