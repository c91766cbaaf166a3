"""Decides about owners that are late: when a body must not start any more, until when a silent
owner may still act, and whether a late owner is the only one who knows what happened.

Pure. Must not know how time passes: the flows and their drivers give the clock readings.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from oncekey.core.commands import Command, Finish, Release, Reply, Seen
from oncekey.core.effects import AttemptOutcome, CommandResult, Effect, Grant
from oncekey.core.errors import StoreUnavailable
from oncekey.core.events import EventKind
from oncekey.core.record import Record, State

# A body starts only if a third of its lease is left; otherwise the lease is renewed first.
LATE_PART: Final = 3
LATE_TRIES: Final = 3


def starts_too_late(grant: Grant, now: int) -> bool:
    """True if a body must not start now, because its claim is so old that another owner might
    take over before it has done anything. Drivers check it directly before they call the body."""
    return now > grant.deadline - grant.claim.lease // LATE_PART


def too_slow(deferred: Release | None = None) -> AttemptOutcome:
    """The outcome of an attempt whose claims were too old each time; nothing ran. `deferred` is
    the release that the store did not take."""
    error = StoreUnavailable(
        "the store answers so slowly that leases end before their operations can begin; nothing "
        "ran. Give them a longer lease, or the store less to do",
        ambiguous=False,
    )
    return AttemptOutcome(EventKind.UNAVAILABLE, error=error, deferred=deferred)


def released_before() -> AttemptOutcome:
    """The outcome of an attempt whose claim reached the store after its own release: nothing ran,
    and nobody has taken over."""
    error = StoreUnavailable(
        "the store got this claim only after it was given up; nothing ran", ambiguous=False
    )
    return AttemptOutcome(EventKind.UNAVAILABLE, error=error)


def cut_off(seen: Reply | StoreUnavailable, grant: Grant) -> AttemptOutcome | None:
    """The outcome of an attempt that its heartbeat has stopped; `seen` is the reply to a look at
    its key. None if the store says that the key is somebody else's, or decided: then it was
    overtaken. Else its renewals did not reach the store, and that is all that is known."""
    cause = seen if isinstance(seen, StoreUnavailable) else None
    if cause is None and not (isinstance(seen, Seen) and _is_held(seen.record, grant)):
        return None
    error = StoreUnavailable(
        "the store did not renew this attempt's lease in time, so its operation was stopped on the "
        "way; nobody else is known to have run it",
        final=cause is not None and cause.final,
    )
    error.__cause__ = cause
    return AttemptOutcome(EventKind.UNAVAILABLE, error=error)


def _is_held(record: Record | None, grant: Grant) -> bool:
    return (
        record is not None
        and record.state == State.PENDING
        and (record.owner, record.fence) == (grant.owner, grant.fence)
    )


def release_unstarted(
    id: bytes, owner: bytes, fence: int | None
) -> Generator[Effect, object, Release | None]:
    """Release a key whose body has not started: otherwise it would be held and then unknown
    although nothing happened. Returns the release if the store did not take it."""
    release = Release(id, owner, fence)
    result = yield release
    assert isinstance(result, CommandResult)
    return release if isinstance(result.reply, StoreUnavailable) else None


def grace_left(record: Record, now: int, grace: int) -> int:
    """For how much longer the silent owner of an unknown key may wake up and act, so that a
    "nothing happened" is not believed. 0 if the owner itself has said how it ended."""
    return 0 if record.body else max(0, record.lease_until + grace - now)


def is_only_witness(record: Record | None, grant: Grant) -> bool:
    """True if nobody but the owner of this grant can say how its key ended."""
    return (
        record is not None
        and record.is_undecided
        and (record.owner, record.fence) == (grant.owner, grant.fence)
    )


def may_still_finish(record: Record, command: Command | None) -> bool:
    """True if `command` is a finish that was refused although the record is still its owner's and
    nobody has decided the key: then it is worth sending again."""
    return (
        isinstance(command, Finish)
        and (record.owner, record.fence) == (command.owner, command.fence)
        and record.state in (State.PENDING, State.UNKNOWN)
    )
