"""What the flow asks for, what it is answered, and what it comes to: frozen data.

A driver (blocking, asyncio, or the explorer) meets an ask, does it, and sends the answer back.
"""

from __future__ import annotations

from typing import NamedTuple

from oncekey.core.commands import Command, Reply
from oncekey.core.errors import StoreUnavailable
from oncekey.core.events import EventKind
from oncekey.core.policy import PolicyTimes
from oncekey.core.record import Record, State, Step

# --- asks and their answers ----------------------------------------------------------------


class ApplyCommand(NamedTuple):
    """Send one command to the store; its result is a `CommandResult`. A claim that may have been
    applied already is `repeated`: then only its own reply will do, never a duplicate's."""

    command: Command
    repeated: bool = False


class CommandResult(NamedTuple):
    """The reply or the failure, and when the command was sent and the answer came. `shared`: it
    was another claim's of the same key, this one was not sent."""

    reply: Reply | StoreUnavailable
    sent_at: int
    at: int
    shared: bool = False


class Grant(NamedTuple):
    """The right to run: until `deadline` on the owner's own clock nobody else can hold the key."""

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
    """Run the user's function under this grant; answered by `Returned`, `Raised` or `Overtaken`,
    or by `StartedTooLate` where it was not begun."""

    grant: Grant


class Returned(NamedTuple):
    """The body's packed result; `raw` is what the caller gets where the result was not kept."""

    body: bytes
    deadline: int
    raw: object = None
    kept: bool = True


class Raised(NamedTuple):
    error: BaseException
    deadline: int


class StartedTooLate(NamedTuple):
    """The body was not begun: too little of the lease was left when its turn came. `owner` is a
    fresh token, for a claim anew where this one is gone."""

    owner: bytes


class Overtaken(NamedTuple):
    """The heartbeat found the claim lost and stopped the body; `error` is an interruption that
    must reach the caller all the same."""

    error: BaseException | None = None


class Sleep(NamedTuple):
    """Let time pass (drivers add jitter). With `watch`, wake early if that key ends in this
    process; where another one here learns of it first, sleep for as long as `most`.

    Answered by the clock reading at waking.
    """

    us: int
    watch: bytes | None = None
    most: int = 0


class Recover(NamedTuple):
    """Ask the user's `recover` about an unknown record; answered by `Recovered` or None."""

    record: Record


class Recovered(NamedTuple):
    """What recovery found: SUCCEEDED or FAILED with a packed body, or ABSENT to free the key."""

    state: State
    body: bytes
    note: str


class RunStep(NamedTuple):
    """Run one step's function; answered by `Returned` or `Raised`."""

    name: str


class Probe(NamedTuple):
    """Ask the other side whether this step has happened; answered by `Returned` with what it did,
    by `Raised`, or by `ProbeFoundNothing` for a definite no."""

    name: str


class ProbeFoundNothing(NamedTuple):
    """It did not happen; `deadline` is the owner's now."""

    deadline: int


class DeadlineExtended(NamedTuple):
    """The heartbeat held: the owner's new deadline. Answered by nothing."""

    deadline: int


Effect = ApplyCommand | RunBody | Sleep | Recover | RunStep | Probe | DeadlineExtended

# --- what an attempt comes to --------------------------------------------------------------


class AttemptOutcome(NamedTuple):
    """How one attempt ended for its caller. `error` is the body's own, to be raised again;
    `version` is the fingerprint's of a key that belongs to another request; `deferred` is what the
    store did not take and is to be offered again after the caller has left; `unrecorded`: the body
    ended in a way that is known and could not be stored."""

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
    """What to attempt: the identity's id, a fresh random owner, what was asked, the policy's times.
    `arguments` are kept before the body begins, if there are any (see step_format.py)."""

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
