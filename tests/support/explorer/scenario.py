"""A scenario to explore: who tries the key with which policy, and how much may go wrong.

One tick is ten units of time, so that fences (one unit each) never overtake the clock; in real time
a unit is a microsecond. The bounds keep a scenario finite; the scenarios together are the proof.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from oncekey.core.commands import Claim
from oncekey.core.policy import PolicyTimes
from oncekey.core.record import FOREVER_US

TICK = 10
START = 100
KEY = b"k" * 16
SAME, OTHER = b"\x01same", b"\x01other"


class BodyEnding(enum.StrEnum):
    """How a body can end. RETURNED only after its side effect, NOT_STARTED only before it, the
    others both."""

    RETURNED = "returns"
    RAISED = "raises"
    NOT_STARTED = "raises NotStarted"
    TERMINAL = "raises Terminal"
    INTERRUPTED = "is interrupted"


@dataclass(frozen=True)
class Actor:
    """One attempt. Durations are in ticks, `keep_unknown` None is for ever; `beats` limits its
    renewals.

    An `operator` makes no attempt: it looks at the key, and decides it if it is unknown.

    The commands of a `quick` actor are sent, applied and replied to in one move: with some quick
    actors a scenario can have more attempts, or more time.
    """

    name: str
    retry_safe: bool = False
    lease: int = 2
    keep: int = 2
    audit: int = 1
    keep_unknown: int | None = None
    wait: int = 0
    beats: int = 0
    recoverable: bool = False
    quick: bool = False
    operator: bool = False
    fingerprint: bytes = SAME
    endings: tuple[BodyEnding, ...] = (BodyEnding.RETURNED,)

    @property
    def spare(self) -> bytes:
        """Its owner token if it has to claim again."""
        return self.name.lower().encode() * 16

    @property
    def times(self) -> PolicyTimes:
        return PolicyTimes(
            self.lease * TICK,
            self.keep * TICK,
            self.audit * TICK,
            self.wait * TICK,
            self.retry_safe,
            FOREVER_US if self.keep_unknown is None else self.keep_unknown * TICK,
        )

    @property
    def claim(self) -> Claim:
        times = self.times
        return Claim(
            KEY,
            self.name.encode() * 16,
            self.fingerprint,
            times.lease,
            times.keep,
            times.audit,
            times.retry_safe,
            keep_unknown=times.keep_unknown,
        )


@dataclass(frozen=True)
class Scenario:
    """Some attempts on one key. `losses` limits lost replies and late commands together,
    `set_backs` how often the clock is set back after the key was swept."""

    name: str
    actors: tuple[Actor, ...]
    ticks: int
    losses: int = 0
    crashes: int = 0
    set_backs: int = 0
    until: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "until", START + self.ticks * TICK)
