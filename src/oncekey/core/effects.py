"""The effects that flows yield, the results of these effects, and the outcome of an attempt.

A flow is a generator (attempt_flow.py, step_flow.py, heartbeat_flow.py, recovery.py). A driver
performs each effect that it yields and sends the result back; the drivers are the sync engine, the
asyncio engine and the tests' explorer. Frozen data, nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

from oncekey.core.commands import Command, Reply
from oncekey.core.errors import StoreUnavailable
from oncekey.core.events import EventKind
from oncekey.core.policy import PolicyTimes
from oncekey.core.record import Record, State, Step

# --- effects and their results -------------------------------------------------------------


class ApplyCommand(NamedTuple):
    """Apply one command in the store; the result is a `CommandResult`. `repeated`: the command is
    a claim that may have been applied already, so the reply to another claim will not do."""

    command: Command
    repeated: bool = False


class CommandResult(NamedTuple):
    """The reply or the failure, when the command was sent, and when the reply came (`at`).
    `shared`: the reply follows from that to another claim of the same key in this process, and
    this command was not sent."""

    reply: Reply | StoreUnavailable
    sent_at: int
    at: int
    shared: bool = False


class Grant(NamedTuple):
    """The right to run the body: until `deadline`, on the owner's own clock, nobody else can hold
    the key."""

    id: bytes
    owner: bytes
    fence: int
    attempt: int
    lease: int
    deadline: int
    steps: tuple[Step, ...]
    taken_over: bool
    retry_safe: bool = False


class RunBody(NamedTuple):
    """Run the body under this grant; the result is `Returned`, `Raised` or `Overtaken`, or
    `StartedTooLate` if the body was not started."""

    grant: Grant


class Returned(NamedTuple):
    """The packed value of a body or a step. `kept` is False if the value itself could not be
    stored; then `raw` is the value and `body` a tombstone. `deadline` is the owner's when it
    returned."""

    body: bytes
    deadline: int
    raw: object = None
    kept: bool = True


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


Effect = ApplyCommand | RunBody | Sleep | Recover | RunStep | Probe | DeadlineExtended

# --- attempts ------------------------------------------------------------------------------


class AttemptOutcome(NamedTuple):
    """How one attempt ended for its caller.

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
    retry_after: int = 0
    raw: object = None
    kept: bool = True
    error: BaseException | None = None
    version: int = 0
    deferred: Command | None = None
    unrecorded: bool = False


class Task(NamedTuple):
    """What to attempt: the id of the identity, a fresh random owner, the fingerprint of the
    request, and the policy's times. `arguments` are stored before the body starts, if there are
    any (see step_format.py)."""

    id: bytes
    owner: bytes
    fingerprint: bytes
    times: PolicyTimes
    recoverable: bool = False
    scope: str = ""
    operation: str = ""
    key: str = ""
    in_transaction: bool = False
    arguments: bytes = b""
