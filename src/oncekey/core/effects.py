"""The effects that flows yield, the results of these effects, and the outcome of an attempt.

A flow is a generator (attempt_flow.py, step_flow.py, heartbeat_flow.py, recovery.py). A driver
performs each effect that it yields and sends the result back; the drivers are the sync engine, the
asyncio engine and the tests' explorer. Values, nothing else.

A command is an effect too: the store applies it, and the result is a `CommandResult`.

Nobody changes these values. Those that every run makes are not frozen and no named tuples all the
same: both cost twice as much to make, and a named tuple five times as much to read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from oncekey.core.commands import Claim, Command, Reply
from oncekey.core.errors import StoreUnavailable
from oncekey.core.events import EventKind
from oncekey.core.record import Record, State, Step

# --- effects and their results -------------------------------------------------------------


class RepeatClaim(NamedTuple):
    """Apply a claim that may have been applied already, so that the reply to another claim of the
    key will not do."""

    claim: Claim


@dataclass(slots=True)
class CommandResult:
    """The reply or the failure, when the command was sent, and when the reply came (`at`).
    `shared`: the reply follows from that to another claim of the same key in this process, and
    this command was not sent."""

    reply: Reply | StoreUnavailable
    sent_at: int
    at: int
    shared: bool = False


@dataclass(slots=True)
class Grant:
    """Run the body under this claim: until `deadline`, on the owner's own clock, nobody else can
    hold the key. The result is `Returned`, `Raised` or `Overtaken`, or `StartedTooLate` if the
    body was not started."""

    claim: Claim
    fence: int
    attempt: int
    deadline: int
    steps: tuple[Step, ...] = ()
    taken_over: bool = False

    @property
    def id(self) -> bytes:
        return self.claim.id

    @property
    def owner(self) -> bytes:
        return self.claim.owner

    @property
    def lease(self) -> int:
        return self.claim.lease

    @property
    def retry_safe(self) -> bool:
        return self.claim.retry_safe


@dataclass(slots=True)
class Returned:
    """The packed value of a body or a step. `deadline` is the owner's when it returned.

    raw    the one for the caller if it is `exact`; else the value itself, for an error if what was
           stored cannot be read back
    kept   False if the value could not be stored; then `body` is a tombstone
    exact  reading `body` gives a value that is equal to `raw`, so nobody has to
    """

    body: bytes
    deadline: int
    raw: object = None
    kept: bool = True
    exact: bool = False


class Raised(NamedTuple):
    """A body or a step raised `error`; `deadline` is the owner's at that moment."""

    error: BaseException
    deadline: int


class StartedTooLate(NamedTuple):
    """The body was not started: too little of its lease was left. `owner` is a fresh token, for
    another claim if this one is lost."""

    owner: bytes


class Overtaken(NamedTuple):
    """The heartbeat found the claim lost, and the body was stopped. `error` is an interruption
    that must reach the caller all the same."""

    error: BaseException | None = None


class Sleep(NamedTuple):
    """Wait; drivers add jitter. The result is the clock reading afterwards.

    With `watch`, wake up early when that key ends in this process. If another caller here polls
    the key already, sleep for up to `most` and leave the polling to it.
    """

    us: int
    watch: bytes | None = None
    most: int = 0


class Recover(NamedTuple):
    """Call the user's `recover` for an unknown record; the result is `Recovered` or None."""

    record: Record


class Recovered(NamedTuple):
    """What `recover` found: SUCCEEDED or FAILED with a packed body, or ABSENT to free the key."""

    state: State
    body: bytes
    note: str


class RunStep(NamedTuple):
    """Call one step's function; the result is `Returned` or `Raised`."""

    name: str


class Probe(NamedTuple):
    """Call the step's probe, which asks the other side whether the step has happened. The result is
    `Returned` with what it did, `Raised`, or `ProbeFoundNothing`."""

    name: str


class ProbeFoundNothing(NamedTuple):
    """The probe says that the step has not happened; `deadline` is the owner's now."""

    deadline: int


class DeadlineExtended(NamedTuple):
    """The heartbeat renewed the lease: this is the owner's new deadline. It has no result."""

    deadline: int


Effect = Command | RepeatClaim | Grant | Sleep | Recover | RunStep | Probe | DeadlineExtended


def command_of(effect: Effect | None) -> Command | None:
    """The command that an effect has the store apply, if it is one of those."""
    if isinstance(effect, RepeatClaim):
        return effect.claim
    return effect if isinstance(effect, Command) else None


# --- attempts ------------------------------------------------------------------------------


@dataclass(slots=True)
class AttemptOutcome:
    """How one attempt ended for its caller.

    returned    what this attempt's own body returned, if it did
    error       the body's own error, to be raised again, or the store's
    version     the version of the stored fingerprint, of a key that belongs to another request
    deferred    a write that the store did not take, to be sent again after the caller has left
    unrecorded  it is known how the body ended, and that could not be stored
    """

    kind: EventKind
    body: bytes = b""
    state: State = State.ABSENT
    attempt: int = 0
    fence: int = 0
    expires_in: int = 0
    returned: Returned | None = None
    error: BaseException | None = None
    retry_after: int = 0
    version: int = 0
    deferred: Command | None = None
    unrecorded: bool = False

    @property
    def raw(self) -> object:
        """The value that the body returned; None if this call did not run it."""
        return self.returned.raw if self.returned is not None else None

    @property
    def kept(self) -> bool:
        return self.returned is None or self.returned.kept
