"""What is done about a record that nobody finishes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.making import NOW, record

from oncekey.core.abandoned import (
    BACKOFF_FIRST_US,
    BACKOFF_MAX_US,
    LEFT_LOOK_US,
    Known,
    Next,
    Todo,
    backoff,
    decide,
)
from oncekey.core.record import Record, State, Step
from oncekey.core.step_format import ARGUMENTS

KEPT = Step(ARGUMENTS, True, b"arguments", NOW)
BEGUN = Step("pay", False, b"intent", NOW)
BOTH = Known(runs=True, recovers=True)
RUNS, ASKS = Known(runs=True), Known(recovers=True)


def dead(**changes: Any) -> Record:
    """A retry-safe owner's whose lease is over, and the pause after it."""
    values = {
        "retry_safe": True,
        "lease_until": NOW - BACKOFF_FIRST_US,
        "keep": 10**12,
        "steps": (KEPT,),
    }
    return record(**{**values, **changes})


@pytest.mark.parametrize(
    "ended",
    [
        None,
        record(State.SUCCEEDED),
        record(State.FAILED),
        record(State.ABSENT),
        dead(keep=1),
        record(State.UNKNOWN, keep_unknown=1),
    ],
    ids=["gone", "succeeded", "failed", "freed", "expired", "expired unknown"],
)
def test_what_has_ended_is_forgotten(ended: Record | None) -> None:
    assert decide(ended, NOW, BOTH).todo is Todo.FORGET


@pytest.mark.parametrize("left", [dead(), record(State.UNKNOWN)], ids=["dead", "unknown"])
def test_what_is_not_registered_is_forgotten(left: Record) -> None:
    assert decide(left, NOW, None).todo is Todo.FORGET


def test_i5_an_owner_who_is_alive_has_until_its_lease_is_over() -> None:
    assert decide(dead(lease_until=NOW + 7), NOW, BOTH) == Next(Todo.LATER, 7)
    assert decide(record(lease_until=NOW + 7), NOW, BOTH) == Next(Todo.LATER, 7)


@pytest.mark.parametrize(
    "unknown",
    [record(State.UNKNOWN), record(lease_until=NOW - 1)],
    ids=["unknown", "not met yet"],
)
def test_i1_an_unknown_one_is_asked_about_and_never_run(unknown: Record) -> None:
    assert decide(unknown, NOW, BOTH).todo is Todo.ASK
    assert decide(unknown, NOW, ASKS).todo is Todo.ASK
    assert decide(unknown, NOW, RUNS).todo is Todo.LEAVE


def test_i11_asking_ends() -> None:
    unknown, known = record(State.UNKNOWN), Known(recovers=True, tries=3)
    assert [decide(unknown, NOW, known, asked=n).todo for n in (2, 3)] == [Todo.ASK, Todo.LEAVE]


def test_i10_a_dead_owners_is_run_again_after_a_pause() -> None:
    assert decide(dead(), NOW, RUNS).todo is Todo.RUN
    late = dead(lease_until=NOW - BACKOFF_FIRST_US + 5)
    assert decide(late, NOW, RUNS) == Next(Todo.LATER, 5)


def test_the_pause_grows_with_the_attempts_the_store_has_counted() -> None:
    third = dead(attempt=3, lease_until=NOW)
    assert decide(third, NOW, RUNS) == Next(Todo.LATER, 4 * BACKOFF_FIRST_US)


def test_i11_running_again_ends() -> None:
    known = Known(runs=True, tries=3)
    many = [dead(attempt=n, lease_until=NOW - BACKOFF_MAX_US) for n in (3, 4)]
    assert [decide(each, NOW, known).todo for each in many] == [Todo.RUN, Todo.LEAVE]


@pytest.mark.parametrize(
    ("left", "known", "why"),
    [
        (dead(steps=()), RUNS, "arguments were not kept"),
        (dead(), ASKS, "only its recover="),
        (record(State.UNKNOWN), RUNS, "no recover="),
    ],
)
def test_what_is_left_is_looked_at_now_and_then_and_says_why(
    left: Record, known: Known, why: str
) -> None:
    todo, after, said = decide(left, NOW, known)
    assert (todo, after) == (Todo.LEAVE, LEFT_LOOK_US)
    assert why in said


def test_one_freed_halfway_is_run_again() -> None:
    freed = dead(state=State.ABSENT, steps=(KEPT, BEGUN))
    assert decide(freed, NOW, RUNS).todo is Todo.RUN


def test_one_freed_before_any_step_is_its_callers_unless_it_was_run_here() -> None:
    freed = dead(state=State.ABSENT)
    assert decide(freed, NOW, RUNS).todo is Todo.FORGET
    assert decide(freed, NOW, RUNS, driven=True).todo is Todo.RUN


def test_pauses_double_up_to_an_hour() -> None:
    pauses = [backoff(n) for n in range(100)]
    assert pauses[:3] == [BACKOFF_FIRST_US, 2 * BACKOFF_FIRST_US, 4 * BACKOFF_FIRST_US]
    assert pauses == sorted(pauses)
    assert pauses[-1] == BACKOFF_MAX_US
