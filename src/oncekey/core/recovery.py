"""Recovery of an unknown key: what a `recover` function is given, what it may return, the flow that
decides the key by it, and what an attempt does that finds its key unknown.

Pure, like attempt_flow.py: the flow yields an effect to have `recover` called.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from oncekey.core.commands import Claim, Lost, Resolve, Unknown
from oncekey.core.effects import (
    AttemptOutcome,
    CommandResult,
    Effect,
    Recover,
    Recovered,
    Sleep,
)
from oncekey.core.errors import ConfigurationError, InvalidKey, StoreUnavailable
from oncekey.core.events import EventKind
from oncekey.core.late_owner import grace_left, release_unstarted, too_slow
from oncekey.core.record import NOTE_MAX_CHARS, Record, State
from oncekey.core.step_format import StepStatus

RESOLVE_TRIES: Final = 3
RESOLVE_PAUSE_US: Final = 20_000


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """What `recover` is given: an operation whose owner died. Ask the outside world about it, by
    child key if you can.

    `request` holds the arguments of a registered operation. `key` is empty if nobody retried and
    the store keeps no raw keys.
    """

    scope: str
    operation: str
    key: str
    fence: int
    attempt: int
    steps: tuple[StepStatus, ...]
    child_keys: Callable[[str], str]
    child_uuids: Callable[[str], UUID]
    request: Any = None

    def child_key(self, name: str) -> str:
        """The key the dead attempt sent downstream for this step."""
        if self.key:
            return self.child_keys(name)
        for step in self.steps:
            if step.name == name and step.intent is not None:
                return step.intent
        raise self._no_key(name)

    def child_uuid(self, name: str) -> UUID:
        """The same as a UUID, for providers that take one."""
        if self.key:
            return self.child_uuids(name)
        for step in self.steps:
            if step.name == name and step.child_uuid is not None:
                return UUID(step.child_uuid)
        raise self._no_key(name)

    def _no_key(self, name: str) -> InvalidKey:
        return InvalidKey(
            f"the child key of {name!r} cannot be made: the key itself is not stored, and that "
            "step left none. Register the operation with once.operation(), or keep raw keys",
            operation=self.operation,
        )


@dataclass(frozen=True, slots=True)
class Recovery:
    """What `recover` returns: `Recovery.succeeded(value)`, `.failed(message)` or `.free()`.

    Returning None instead means "still unknown".
    """

    state: State
    value: Any = None
    note: str = "recover"

    def __post_init__(self) -> None:
        if self.state not in (State.SUCCEEDED, State.FAILED, State.ABSENT):
            raise ConfigurationError(
                "a Recovery is made by Recovery.succeeded(value), .failed(message) or .free()"
            )
        note = self.note
        if not isinstance(note, str) or not (len(note) <= NOTE_MAX_CHARS and note.isprintable()):
            raise ConfigurationError(
                f"the note of a Recovery must be text of at most {NOTE_MAX_CHARS} printable "
                "characters, on one line"
            )

    @classmethod
    def succeeded(cls, value: Any, *, note: str = "recover: it happened") -> Recovery:
        return cls(State.SUCCEEDED, value, note)

    @classmethod
    def failed(cls, message: str, *, note: str = "recover: it failed") -> Recovery:
        return cls(State.FAILED, message, note)

    @classmethod
    def free(cls, *, note: str = "recover: it never happened") -> Recovery:
        return cls(State.ABSENT, None, note)


def recover(record: Record, *, grace_over: bool = True) -> Generator[Effect, object, State | None]:
    """Ask the user's `recover` what became of an unknown key, and decide it. Returns

    1.  the state that the key was given: SUCCEEDED, FAILED, or ABSENT if it was freed;
    2.  None if nobody can tell yet, or the store did not take the decision;
    3.  PENDING if somebody else decided first, so that a claim will tell;
    4.  UNKNOWN if `recover` says that it did not happen and the grace of the dead owner is not
        over: what has happened stays so, but what has not may still happen.
    """
    found = yield Recover(record)
    if found is None:
        return None
    assert isinstance(found, Recovered)
    if found.state != State.SUCCEEDED and not grace_over:
        return State.UNKNOWN
    # Decided as it was shown, lease included: a completer finds keys that nobody has given up, and
    # the silent owner of such a key may come back, renew, act, and fall silent again.
    command = Resolve(
        record.id,
        record.fence,
        found.state,
        found.body,
        found.note,
        lease_until=record.lease_until,
    )
    for _ in range(RESOLVE_TRIES):
        result = yield command
        assert isinstance(result, CommandResult)
        if isinstance(result.reply, Lost):
            return State.PENDING
        if not isinstance(result.reply, StoreUnavailable):
            return found.state
        yield Sleep(RESOLVE_PAUSE_US)
    return None


def decide_unknown(
    claim: Claim, reply: Unknown, may_recover: bool, grace_us: int, wait_left: int
) -> Generator[Effect, Any, AttemptOutcome | State]:
    """What to do about a key whose owner died: the caller's outcome, or the state `recover` has
    given the key, after which it is claimed again.

    1.  The owner is this very attempt, whose reply was lost for longer than its lease: nothing
        ran, so the claim is released.
    2.  There is no `recover`, or it cannot tell: the outcome is unknown.
    3.  `recover` says that nothing happened while the dead owner may still act: wait until its
        grace is over if the caller waits that long, and claim again.
    4.  `recover` has decided.
    """
    record = reply.record
    if record.owner == claim.owner:
        deferred = yield from release_unstarted(claim.id, claim.owner, record.fence)
        return too_slow(deferred)
    grace = grace_left(record, reply.now, grace_us)
    decided = None
    if may_recover:
        decided = yield from recover(record, grace_over=grace == 0)
    if decided is None:
        return AttemptOutcome(EventKind.UNKNOWN, fence=record.fence)
    if decided is State.UNKNOWN:
        if wait_left < grace:
            return AttemptOutcome(EventKind.IN_FLIGHT, retry_after=grace)
        yield Sleep(grace, watch=claim.id, most=grace)
    return decided
