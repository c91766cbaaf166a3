"""Decides what a completer does about an operation that nobody finishes, and when to look again.

An operation is abandoned when its owner died and its caller does not come back. A completer may
call `recover` for it if it is unknown, and run it again if it is retry-safe, both only if the
operation is registered in this process. The first rule that holds decides:

1.  The record has ended, has expired, or was freed before any step began: forget it.
2.  The operation is not registered here: forget it.
3.  Its owner is alive: look again when the lease is over.
4.  It is unknown: call `recover`, if there is one, once `recover_grace` is over.
5.  It was freed after a step had begun: run it again.
6.  Its owner is dead and it is retry-safe: run it again.

Rule 5 is there because a caller whose attempt raised may not come back, while its steps have
already acted on other services. Only an operation that ends, if need be by raising Terminal, is
not run again.

Calls of `recover` and new runs come at growing intervals. `recover` is called at most `tries`
times, and an operation is run until it was begun `tries` times after its first, by whichever
process. Pure: no clock, no store.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from oncekey.core.late_owner import grace_left
from oncekey.core.record import Record, State
from oncekey.core.state_machine import has_ended, is_expired, state_now
from oncekey.core.step_format import ARGUMENTS

TRIES_DEFAULT: Final = 10
BACKOFF_FIRST_US: Final = 1_000_000
BACKOFF_MAX_US: Final = 3_600_000_000
# A record that is left alone is looked at now and then: its caller or an operator may have come.
LEFT_LOOK_US: Final = 30_000_000


class ActionKind(enum.StrEnum):
    """What a completer does next about one record."""

    FORGET = "ended"
    LEAVE = "left to its caller or an operator"
    LATER = "not yet"
    RECOVER = "ask what became of it"
    RUN = "run it again"


class Registration(NamedTuple):
    """What is registered for an operation in this process."""

    runs: bool = False
    recovers: bool = False
    tries: int = TRIES_DEFAULT
    recover_grace: int = 0


class NextAction(NamedTuple):
    """The decision about one record. `after` says in how many microseconds to look again, `why`
    is the reason for LEAVE."""

    kind: ActionKind
    after: int = 0
    why: str = ""


def next_action(
    record: Record | None,
    now: int,
    registration: Registration | None,
    *,
    recover_calls: int = 0,
    ran_here: bool = False,
) -> NextAction:
    """Decide about `record` at the store's time `now`.

    `recover_calls` counts the calls of `recover` that could not tell yet. `ran_here` is True if
    this process has run the operation again and that run failed and freed the key.
    """
    if record is None or registration is None or is_expired(record, now) or has_ended(record):
        return NextAction(ActionKind.FORGET)
    state = state_now(record, now)
    if state is State.UNKNOWN:
        return _of_unknown(record, now, registration, recover_calls)
    if state is State.ABSENT:
        if not (ran_here or has_begun_steps(record)):
            return NextAction(ActionKind.FORGET)  # a new claim of it is listed again
    elif now < record.lease_until:
        return NextAction(ActionKind.LATER, record.lease_until - now)
    return _of_abandoned(record, now, registration)


def backoff(tries: int) -> int:
    """How long to wait after this many tries, in microseconds."""
    return min(BACKOFF_FIRST_US << min(tries, 32), BACKOFF_MAX_US)


def _of_unknown(
    record: Record, now: int, registration: Registration, recover_calls: int
) -> NextAction:
    if not registration.recovers:
        return _leave("it is unknown, and its operation has no recover=")
    grace = grace_left(record, now, registration.recover_grace)
    if grace:
        return NextAction(ActionKind.LATER, grace)
    if recover_calls >= registration.tries:
        return _leave(f"asked {recover_calls} times what became of it, in vain")
    return NextAction(ActionKind.RECOVER)


def _of_abandoned(record: Record, now: int, registration: Registration) -> NextAction:
    if not registration.runs:
        return _leave("only its recover= is registered here, not what it does")
    if not has_arguments(record):
        return _leave("its arguments were not kept; its caller's retry goes on")
    if record.attempt > registration.tries:
        return _leave(f"it was begun {record.attempt} times and never ended")
    # Attempts and times are the store's, so a restart of this process forgets neither.
    due = record.lease_until + backoff(record.attempt - 1)
    if now < due:
        return NextAction(ActionKind.LATER, due - now)
    return NextAction(ActionKind.RUN)


def _leave(why: str) -> NextAction:
    return NextAction(ActionKind.LEAVE, LEFT_LOOK_US, why)


def has_arguments(record: Record) -> bool:
    """True if the arguments of the operation are stored with its key."""
    return any(step.name == ARGUMENTS for step in record.steps)


def has_begun_steps(record: Record) -> bool:
    """True if a step of the body has begun; the stored arguments are not one."""
    return any(step.name != ARGUMENTS for step in record.steps)
