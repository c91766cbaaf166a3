"""Decides about owners that are late: when a body must not begin any more, until when a silent
owner may still act, and whether a late one is the only witness of what happened.

Pure. Must not know how time passes; the flow and its drivers give the readings.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from oncekey.core.commands import Command, Finish, Release
from oncekey.core.effects import ApplyCommand, AttemptOutcome, CommandResult, Effect, Grant
from oncekey.core.errors import StoreUnavailable
from oncekey.core.events import EventKind
from oncekey.core.record import Record, State

# A body begins only with this part of its lease left; else the lease is renewed first.
LATE_PART: Final = 3
LATE_TRIES: Final = 3


def starts_too_late(grant: Grant, now: int) -> bool:
    """Whether a body must not begin now: its claim is old, and might be another's before it has
    done anything. Asked by drivers directly before they call the body."""
    return now > grant.deadline - grant.lease // LATE_PART


def too_slow(deferred: Release | None = None) -> AttemptOutcome:
    """Nothing ran; `deferred` is to be offered again, where the claim could not be given back."""
    error = StoreUnavailable(
        "the store answers so slowly that leases end before their operations can begin; nothing "
        "ran. Give them a longer lease, or the store less to do",
        ambiguous=False,
    )
    return AttemptOutcome(EventKind.UNAVAILABLE, error=error, deferred=deferred)


def give_back(
    id: bytes, owner: bytes, fence: int | None
) -> Generator[Effect, object, Release | None]:
    """Free a key whose body has not begun: else it would be held, then unknown, though nothing
    happened. What is left to be offered again where the store does not answer."""
    release = Release(id, owner, fence)
    answer = yield ApplyCommand(release)
    assert isinstance(answer, CommandResult)
    return release if isinstance(answer.reply, StoreUnavailable) else None


def grace_left(record: Record, now: int, grace: int) -> int:
    """How much longer its silent owner may wake and act, so that a "nothing happened" is not to be
    believed. 0 where its owner has said itself that it ended, or told why it did."""
    return 0 if record.body else max(0, record.lease_until + grace - now)


def is_witness(record: Record | None, grant: Grant) -> bool:
    """Whether nobody but the owner of this grant can say how its key ended."""
    return (
        record is not None
        and record.is_undecided
        and (record.owner, record.fence) == (grant.owner, grant.fence)
    )


def is_undecided_of(record: Record, finish: Command | None) -> bool:
    """Whether the record is still that of the owner whose finish was refused, and without an end:
    then nobody has decided it, and the finish is worth offering again."""
    return (
        isinstance(finish, Finish)
        and (record.owner, record.fence) == (finish.owner, finish.fence)
        and record.state in (State.PENDING, State.UNKNOWN)
    )
