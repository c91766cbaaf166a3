"""What becomes of a message, by how its attempt ended: one table.

    how the attempt ended                            the message
    ------------------------------------------------ -------------------------------------------
    finished now, or replayed                        REMOVE
    in flight elsewhere                              HIDE for the rest of that lease
    the handler raised, and the key is free again    RETRY after a backoff
    failed for good, now or before; too many tries   DEAD_LETTER, with the stored error
    the key belongs to another request (mismatch)    DEAD_LETTER, with that error
    no key, or one that cannot be used               DEAD_LETTER, with that error
    nobody knows how it ended (unknown)              PARK, where operators see it
    the store did not answer; the consumer stops     GIVE_BACK: nothing is removed

An error of a handler does not tell whether it could be stored. So whenever an attempt ended with an
error that is not clear by itself, the record decides: see `by_record`. Pure.
"""

from __future__ import annotations

import enum
import math
from typing import Final, NamedTuple

from oncekey.core.codec import StoredError, unpack
from oncekey.core.commands import Seen
from oncekey.core.errors import (
    InFlight,
    InvalidKey,
    Mismatch,
    NotStarted,
    OutcomeUnknown,
    StoreUnavailable,
)
from oncekey.core.record import Record, State
from oncekey.core.state_machine import state_now

SECOND: Final = 1_000_000
# The owner of a lease may have renewed it a moment ago, and clocks are read one after the other.
HIDE_MARGIN_S: Final = 0.5
ERROR_MAX_CHARS: Final = 500  # of an error that is attached to a dead letter


class Kind(enum.StrEnum):
    """What to do with a message."""

    REMOVE = "remove"
    HIDE = "hide"
    RETRY = "retry"
    DEAD_LETTER = "dead letter"
    PARK = "park"
    GIVE_BACK = "give back"


class DeadLetter(NamedTuple):
    """Why a message is a dead letter: the error, and of the failed record its fence and the number
    of its attempt; both are 0 if no record failed."""

    error: str
    fence: int = 0
    tries: int = 0


class Disposition(NamedTuple):
    """What to do with a message. `seconds` says after how long it is to be delivered again, and
    `reason` is for people; `dead_letter` goes with a dead letter."""

    kind: Kind
    seconds: float = 0.0
    reason: str = ""
    dead_letter: DeadLetter | None = None

    @property
    def lets_pass(self) -> bool:
        """True if the next message of the same order group may follow."""
        return self.kind in _ENDS


class ConsumerStops(NotStarted):
    """The consumer stops, and this message's handler has not begun."""


_ENDS: Final = frozenset((Kind.REMOVE, Kind.DEAD_LETTER, Kind.PARK))
REMOVE: Final = Disposition(Kind.REMOVE)
STOPPED: Final = Disposition(Kind.GIVE_BACK, reason="the consumer stops")
FOLLOWS: Final = Disposition(Kind.GIVE_BACK, reason="an earlier message of its group is not done")


def give_back(error: StoreUnavailable) -> Disposition:
    return Disposition(Kind.GIVE_BACK, reason=f"the store is unavailable: {error}")


def by_error(error: BaseException) -> Disposition | None:
    """What follows from the error of an attempt; None if only the record can tell."""
    if isinstance(error, InFlight):
        return _hidden(error.retry_after)
    if isinstance(error, (Mismatch, InvalidKey)):
        return dead_letter(describe(error))
    if isinstance(error, OutcomeUnknown):
        return Disposition(Kind.PARK, reason=describe(error))
    if isinstance(error, StoreUnavailable):
        return give_back(error)
    if isinstance(error, ConsumerStops) or not isinstance(error, Exception):
        return STOPPED  # or an interruption, such as Ctrl-C
    return None


def by_record(seen: Seen, error: BaseException, backoff: float) -> Disposition:
    """What follows from the record of a key whose attempt ended with `error`."""
    record = seen.record
    state = state_now(record, seen.now)
    if record is None or state is State.ABSENT:
        return Disposition(Kind.RETRY, backoff, describe(error))
    if state is State.SUCCEEDED:
        return REMOVE
    if state is State.FAILED:
        return dead_letter(_stored_error(record) or describe(error), record)
    if state is State.UNKNOWN:
        return Disposition(Kind.PARK, reason=describe(error))
    return _hidden((record.lease_until - seen.now) / SECOND)


def dead_letter(error: str, record: Record | None = None) -> Disposition:
    fence, tries = (record.fence, record.attempt) if record is not None else (0, 0)
    return Disposition(Kind.DEAD_LETTER, 0.0, error, DeadLetter(error, fence, tries))


def describe(error: BaseException) -> str:
    """An error in one line that fits into a header."""
    try:
        message = str(error)
    except Exception:  # it is the user's class, and its __str__ may raise
        message = "(this error has no readable message)"
    return _one_line(f"{type(error).__name__}: {message}")


def _hidden(seconds: float) -> Disposition:
    reason = "another attempt holds this key"
    return Disposition(Kind.HIDE, max(seconds, 0.0) + HIDE_MARGIN_S, reason)


def _stored_error(record: Record) -> str:
    stored = unpack(record.body) if record.body else None
    if not isinstance(stored, StoredError):
        return ""
    return _one_line(f"{stored.type}: {stored.message}")


def _one_line(text: str) -> str:
    """Text that every broker takes: one that cannot be encoded would never leave its queue."""
    words = " ".join(text.split())
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)
    return text if len(text) <= ERROR_MAX_CHARS else text[: ERROR_MAX_CHARS - 1] + "…"


def backoff_s(tries: int, first: float, most: float) -> float:
    """How long to wait before the next try, doubled with each one."""
    doublings = min(max(tries - 1, 0), 62)
    return min(most, math.ldexp(first, doublings))
