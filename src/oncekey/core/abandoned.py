"""What to do about an operation that nobody finishes: a decision over its record, and when to look
again.

An operation is left behind when its owner died and its caller does not come back. Unknown, it may
be asked about; retry-safe, run again; both only where it is registered. Rules, first that holds:

    ended, expired, or freed with nothing begun    forget it
    not registered here                            forget it
    an owner is alive                              look again when its lease is over
    unknown                                        ask, if there is a `recover`, once it is settled
    freed with a step begun                        run again
    dead owner, retry-safe                         run again

A caller whose attempt raised and freed its key may not come back, and what its steps did is there:
only an operation that ends, if need be by raising Terminal, is left in peace.

Asking and running again come at growing intervals. Asking ends after `tries`, running when the
operation was begun that often again after its first time, by whomever. Pure: no clock, no store.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from oncekey.core.late_owner import unsettled_for
from oncekey.core.record import Record, State
from oncekey.core.state_machine import has_ended, is_expired, state_now
from oncekey.core.step_format import ARGUMENTS

TRIES_DEFAULT: Final = 10
BACKOFF_FIRST_US: Final = 1_000_000
BACKOFF_MAX_US: Final = 3_600_000_000
# What is left alone is looked at now and then: its caller may have come, or an operator.
LEFT_LOOK_US: Final = 30_000_000


class Todo(enum.StrEnum):
    """What comes next for one record."""

    FORGET = "ended"
    LEAVE = "left to its caller or an operator"
    LATER = "not yet"
    ASK = "ask what became of it"
    RUN = "run it again"


class Known(NamedTuple):
    """What is registered for an operation here."""

    runs: bool = False
    recovers: bool = False
    tries: int = TRIES_DEFAULT
    settle: int = 0


class Next(NamedTuple):
    """The decision; how long from now to look again, and for LEAVE why."""

    todo: Todo
    after: int = 0
    why: str = ""


def _leave(why: str) -> Next:
    return Next(Todo.LEAVE, LEFT_LOOK_US, why)


def backoff(tries: int) -> int:
    """How long to rest after this many tries."""
    return min(BACKOFF_FIRST_US << min(tries, 32), BACKOFF_MAX_US)


def decide(
    record: Record | None, now: int, known: Known | None, *, asked: int = 0, driven: bool = False
) -> Next:
    """`asked` is how often `recover` was asked in vain about this record; `driven` tells that it
    was run again here before, and freed because that failed."""
    if record is None or known is None or is_expired(record, now) or has_ended(record):
        return Next(Todo.FORGET)
    state = state_now(record, now)
    if state is State.UNKNOWN:
        return _unknown(record, now, known, asked)
    if state is State.ABSENT:
        if not (driven or begun(record)):
            return Next(Todo.FORGET)  # its caller's; claimed again, it is listed again
    elif now < record.lease_until:
        return Next(Todo.LATER, record.lease_until - now)
    return _left_behind(record, now, known)


def _unknown(record: Record, now: int, known: Known, asked: int) -> Next:
    if not known.recovers:
        return _leave("it is unknown, and its operation has no recover=")
    unsettled = unsettled_for(record, now, known.settle)
    if unsettled:
        return Next(Todo.LATER, unsettled)
    if asked >= known.tries:
        return _leave(f"asked {asked} times what became of it, in vain")
    return Next(Todo.ASK)


def _left_behind(record: Record, now: int, known: Known) -> Next:
    if not known.runs:
        return _leave("only its recover= is registered here, not what it does")
    if not has_arguments(record):
        return _leave("its arguments were not kept; its caller's retry goes on")
    if record.attempt > known.tries:
        return _leave(f"it was begun {record.attempt} times and never ended")
    # Counted by the store, in attempts and in its own time: a restart forgets neither.
    rested = record.lease_until + backoff(record.attempt - 1)
    if now < rested:
        return Next(Todo.LATER, rested - now)
    return Next(Todo.RUN)


def has_arguments(record: Record) -> bool:
    return any(step.name == ARGUMENTS for step in record.steps)


def begun(record: Record) -> bool:
    """Whether any step was, beside the arguments that are kept before the first."""
    return any(step.name != ARGUMENTS for step in record.steps)
