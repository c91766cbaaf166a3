"""What a completer does about a record that nobody finishes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.sample_records import NOW, record

from oncekey.core.abandoned import (
    BACKOFF_FIRST_US,
    BACKOFF_MAX_US,
    LEFT_LOOK_US,
    ActionKind,
    NextAction,
    Registration,
    backoff,
    next_action,
)
from oncekey.core.record import Record, State, Step
from oncekey.core.step_format import ARGUMENTS

KEPT = Step(ARGUMENTS, True, b"arguments", NOW)
BEGUN = Step("pay", False, b"intent", NOW)
BOTH = Registration(runs=True, recovers=True)
RUNS, ASKS = Registration(runs=True), Registration(recovers=True)


def dead(**changes: Any) -> Record:
    """The record of a retry-safe owner, whose lease and the pause after it are over."""
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
def test_a_record_that_has_ended_is_forgotten(ended: Record | None) -> None:
    assert next_action(ended, NOW, BOTH).kind is ActionKind.FORGET


@pytest.mark.parametrize("left", [dead(), record(State.UNKNOWN)], ids=["dead", "unknown"])
def test_a_record_whose_operation_is_not_registered_is_forgotten(left: Record) -> None:
    assert next_action(left, NOW, None).kind is ActionKind.FORGET


def test_i5_a_record_with_a_living_owner_waits_until_its_lease_is_over() -> None:
    assert next_action(dead(lease_until=NOW + 7), NOW, BOTH) == NextAction(ActionKind.LATER, 7)
    assert next_action(record(lease_until=NOW + 7), NOW, BOTH) == NextAction(ActionKind.LATER, 7)


@pytest.mark.parametrize(
    "unknown",
    [record(State.UNKNOWN), record(lease_until=NOW - 1)],
    ids=["unknown", "not met yet"],
)
def test_i1_an_unknown_record_is_recovered_and_never_run(unknown: Record) -> None:
    assert next_action(unknown, NOW, BOTH).kind is ActionKind.RECOVER
    assert next_action(unknown, NOW, ASKS).kind is ActionKind.RECOVER
    assert next_action(unknown, NOW, RUNS).kind is ActionKind.LEAVE


def test_i11_calls_of_recover_end_after_the_tries() -> None:
    unknown, known = record(State.UNKNOWN), Registration(recovers=True, tries=3)
    assert [next_action(unknown, NOW, known, recover_calls=n).kind for n in (2, 3)] == [
        ActionKind.RECOVER,
        ActionKind.LEAVE,
    ]


def test_i10_the_record_of_a_dead_owner_is_run_again_after_a_pause() -> None:
    assert next_action(dead(), NOW, RUNS).kind is ActionKind.RUN
    late = dead(lease_until=NOW - BACKOFF_FIRST_US + 5)
    assert next_action(late, NOW, RUNS) == NextAction(ActionKind.LATER, 5)


def test_the_pause_grows_with_the_attempts_the_store_has_counted() -> None:
    third = dead(attempt=3, lease_until=NOW)
    assert next_action(third, NOW, RUNS) == NextAction(ActionKind.LATER, 4 * BACKOFF_FIRST_US)


def test_i11_runs_end_after_the_tries() -> None:
    known = Registration(runs=True, tries=3)
    many = [dead(attempt=n, lease_until=NOW - BACKOFF_MAX_US) for n in (3, 4)]
    assert [next_action(each, NOW, known).kind for each in many] == [
        ActionKind.RUN,
        ActionKind.LEAVE,
    ]


@pytest.mark.parametrize(
    ("left", "known", "why"),
    [
        (dead(steps=()), RUNS, "arguments were not kept"),
        (dead(), ASKS, "only its recover="),
        (record(State.UNKNOWN), RUNS, "no recover="),
    ],
)
def test_a_record_that_is_left_has_a_reason_and_is_looked_at_again(
    left: Record, known: Registration, why: str
) -> None:
    kind, after, said = next_action(left, NOW, known)
    assert (kind, after) == (ActionKind.LEAVE, LEFT_LOOK_US)
    assert why in said


def test_a_record_freed_after_a_step_is_run_again() -> None:
    freed = dead(state=State.ABSENT, steps=(KEPT, BEGUN))
    assert next_action(freed, NOW, RUNS).kind is ActionKind.RUN


def test_a_record_freed_before_any_step_is_forgotten_unless_it_ran_here() -> None:
    freed = dead(state=State.ABSENT)
    assert next_action(freed, NOW, RUNS).kind is ActionKind.FORGET
    assert next_action(freed, NOW, RUNS, ran_here=True).kind is ActionKind.RUN


def test_pauses_double_up_to_an_hour() -> None:
    pauses = [backoff(n) for n in range(100)]
    assert pauses[:3] == [BACKOFF_FIRST_US, 2 * BACKOFF_FIRST_US, 4 * BACKOFF_FIRST_US]
    assert pauses == sorted(pauses)
    assert pauses[-1] == BACKOFF_MAX_US
