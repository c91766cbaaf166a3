"""The plan of one simulated world: who calls what and when, and what goes wrong.

A plan is data, and a world does nothing that its plan does not say: the same plan gives the same
run, and a plan with one call or fault less is a plan too, so a failing one can be made smaller.

Times are microseconds since the world began, on a clock that only the simulation sees.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from tests.support.explorer.scenario import BodyEnding

from oncekey.core.identity import Identities
from oncekey.core.policy import PolicyTimes

MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000

# The same key in two scopes, and another one (I8).
_NAMES: Final = (("acct_1", "order-17"), ("acct_2", "order-17"), ("acct_1", "order-18"))
KEYS: Final = tuple(f"{key} of {scope}" for scope, key in _NAMES)
IDS: Final = tuple(Identities().identify(scope, "charge", key).id for scope, key in _NAMES)
REQUESTS: Final = (b"\x01first", b"\x01other")


class Settings(NamedTuple):
    """The options of the operation in one deployment."""

    times: PolicyTimes
    recoverable: bool
    registered: bool  # its arguments are stored, so that a completer can run it


class ProcessPlan(NamedTuple):
    """One process. Its clock began at `offset` and is `drift` parts per million too fast."""

    offset: int
    drift: int
    cancels: bool  # an async engine: a body is cancelled once its claim is lost


class BodyPlan(NamedTuple):
    """What a body does: wait, take its steps, act on the outside world, wait, end.

    `careful`: it calls `attempt.check()` before it acts.
    """

    before: int
    steps: int
    acts: bool
    after: int
    ending: BodyEnding
    careful: bool


class Try(NamedTuple):
    """One try of a caller: how long after the last one has ended, and at which process."""

    after: int
    process: int


class Call(NamedTuple):
    """One caller with one intent, which it sends again with each try, whatever it was replied.
    `number` stays with the call when others are taken out of the plan."""

    number: int
    at: int
    key: int
    request: int
    body: BodyPlan
    tries: tuple[Try, ...]


class FaultKind(enum.Enum):
    """What can go wrong, or happens beside the calls; the text says it of a process."""

    CRASH = "is killed, and starts again"
    PAUSE = "is paused"
    LOSE_REQUESTS = "sends commands that never arrive"
    LOSE_REPLIES = "gets no replies"
    DELAY_REQUESTS = "sends commands that arrive late"
    DELAY_REPLIES = "gets its replies late"
    REPEAT_REQUESTS = "sends commands that arrive twice"
    DEPLOY = "gets the new settings"
    COMPLETER = "looks for abandoned operations"
    STORE_DOWN = "the store is down"
    STORE_CRASH = "the store crashes"
    CLOCK_AHEAD = "the store's clock is set ahead"
    CLOCK_BACK = "the store's clock is set back"
    SWEEP = "the sweeper runs"
    OPERATOR = "an operator looks at a key"
    FREE_FAILED = "an operator frees a failed key"


# These last for a while; the others happen at one moment.
WINDOWS: Final = frozenset(
    {
        FaultKind.LOSE_REQUESTS,
        FaultKind.LOSE_REPLIES,
        FaultKind.DELAY_REQUESTS,
        FaultKind.DELAY_REPLIES,
        FaultKind.REPEAT_REQUESTS,
    }
)
OF_THE_STORE: Final = frozenset(
    {
        FaultKind.STORE_DOWN,
        FaultKind.STORE_CRASH,
        FaultKind.CLOCK_AHEAD,
        FaultKind.CLOCK_BACK,
        FaultKind.SWEEP,
    }
)
OF_AN_OPERATOR: Final = frozenset({FaultKind.OPERATOR, FaultKind.FREE_FAILED})


class Fault(NamedTuple):
    """One fault. `process` or `key` says whose, `amount` by how much a clock or a message moves, or
    how many writes a store forgets that is not durable."""

    number: int
    kind: FaultKind
    at: int
    lasts: int = 0
    process: int = 0
    key: int = 0
    amount: int = 0


class Plan(NamedTuple):
    """A whole world. `patience` is how long a process waits for a reply, `spread` by how much the
    times of messages differ. A store that is not `durable` forgets its last writes in a crash."""

    seed: int
    settings: tuple[Settings, Settings]
    processes: tuple[ProcessPlan, ...]
    calls: tuple[Call, ...]
    faults: tuple[Fault, ...]
    patience: int
    spread: int
    durable: bool = True

    @property
    def set_back(self) -> int:
        """By how much the store's clock is set back in all."""
        return sum(fault.amount for fault in self.faults if fault.kind is FaultKind.CLOCK_BACK)

    @property
    def longest(self) -> int:
        """After this time all windows of a key are over that do not last until it is decided."""
        times = [settings.times for settings in self.settings]
        kept = [one.keep for one in times]
        kept += [one.keep_unknown for one in times if one.keep_unknown < 1_000 * SECOND]
        longest = max(one.lease for one in times) + max(kept) + max(one.audit for one in times)
        return longest + self.set_back
