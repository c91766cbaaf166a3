"""The state machine as a table, and what holds for every record and every command."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from tests.core.sample_records import (
    ENDED,
    ME,
    NOW,
    OTHER_FINGERPRINT,
    claim,
    claims,
    commands,
    finish,
    record,
    records,
    release,
    renew,
    resolve,
    save_step,
    times,
)

from oncekey.core.commands import (
    Busy,
    Claim,
    Claimed,
    Command,
    Finish,
    Look,
    Lost,
    Mismatched,
    Release,
    Renew,
    Replay,
    Resolve,
    SaveStep,
    Seen,
)
from oncekey.core.record import Record, State, Step
from oncekey.core.state_machine import _next, decide, has_ended, is_expired, state_now
from oncekey.core.transitions import FINISH_TRIGGERS, RESOLVE_TRIGGERS, TRANSITIONS, Trigger

ABSENT, PENDING = State.ABSENT, State.PENDING
SUCCEEDED, FAILED, UNKNOWN = State.SUCCEEDED, State.FAILED, State.UNKNOWN

# The whole machine, written down a second time: a change of the table must be meant.
EXPECTED = {
    ABSENT: {Trigger.CLAIM: PENDING},
    PENDING: {
        Trigger.CLAIM_AGAIN: PENDING,
        Trigger.TAKE_OVER: PENDING,
        Trigger.GIVE_UP: UNKNOWN,
        Trigger.RENEW: PENDING,
        Trigger.SAVE_STEP: PENDING,
        Trigger.SUCCEED: SUCCEEDED,
        Trigger.FAIL: FAILED,
        Trigger.INTERRUPT: UNKNOWN,
        Trigger.RELEASE: ABSENT,
        Trigger.EXPIRE: ABSENT,
    },
    SUCCEEDED: {Trigger.EXPIRE: ABSENT},
    FAILED: {Trigger.EXPIRE: ABSENT, Trigger.RESOLVE_FREE: ABSENT},
    UNKNOWN: {
        Trigger.SUCCEED: SUCCEEDED,
        Trigger.FAIL: FAILED,
        Trigger.RELEASE: ABSENT,
        Trigger.RESOLVE_SUCCEEDED: SUCCEEDED,
        Trigger.RESOLVE_FAILED: FAILED,
        Trigger.RESOLVE_FREE: ABSENT,
        Trigger.EXPIRE: ABSENT,
    },
}

# Which events a command may be. Expiring is nobody's command: time does it.
EVENTS_OF: dict[type[object], set[Trigger]] = {
    Claim: {Trigger.CLAIM, Trigger.CLAIM_AGAIN, Trigger.TAKE_OVER, Trigger.GIVE_UP},
    Finish: set(FINISH_TRIGGERS.values()),
    Renew: {Trigger.RENEW},
    Release: {Trigger.RELEASE},
    SaveStep: {Trigger.SAVE_STEP},
    Resolve: set(RESOLVE_TRIGGERS.values()),
    Look: set(),
}

LAPSED: dict[str, Any] = {"lease_until": NOW}
CASES: list[tuple[Trigger, Record | None, Command]] = [
    (Trigger.CLAIM, None, claim()),
    (Trigger.CLAIM, record(ABSENT), claim()),
    (Trigger.CLAIM_AGAIN, record(owner=ME), claim()),
    (Trigger.TAKE_OVER, record(retry_safe=True, **LAPSED), claim(retry_safe=True)),
    (Trigger.GIVE_UP, record(**LAPSED), claim()),
    (Trigger.RENEW, record(), renew()),
    (Trigger.SAVE_STEP, record(), save_step()),
    (Trigger.SUCCEED, record(), finish(state=SUCCEEDED)),
    (Trigger.FAIL, record(), finish(state=FAILED)),
    (Trigger.INTERRUPT, record(), finish(state=UNKNOWN)),
    (Trigger.RELEASE, record(), release()),
    (Trigger.SUCCEED, record(UNKNOWN), finish(state=SUCCEEDED)),
    (Trigger.FAIL, record(UNKNOWN), finish(state=FAILED)),
    (Trigger.RELEASE, record(UNKNOWN, body=b""), release()),
    (Trigger.RESOLVE_SUCCEEDED, record(UNKNOWN), resolve(state=SUCCEEDED)),
    (Trigger.RESOLVE_FAILED, record(UNKNOWN), resolve(state=FAILED)),
    (Trigger.RESOLVE_FREE, record(UNKNOWN), resolve(state=ABSENT)),
    (Trigger.RESOLVE_FREE, record(FAILED), resolve(state=ABSENT, expected=FAILED)),
]


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Trigger)))
def test_every_pair_of_state_and_trigger_is_in_the_table_or_has_no_transition(
    state: State, event: Trigger
) -> None:
    expected = EXPECTED[state].get(event)
    if expected is not None:
        assert TRANSITIONS[state, event] is expected
        assert _next(state, event) is expected
    else:
        with pytest.raises(KeyError):
            _next(state, event)


def test_the_table_cannot_be_changed_at_run_time() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[SUCCEEDED, Trigger.RENEW] = PENDING  # type: ignore[index]


@pytest.mark.parametrize(("event", "before", "command"), CASES)
def test_each_trigger_leads_to_the_state_in_the_table(
    event: Trigger, before: Record | None, command: Command
) -> None:
    write = decide(before, command, NOW).write
    assert write is not None
    assert write.state is TRANSITIONS[before.state if before else ABSENT, event]


def test_each_trigger_of_the_table_has_a_case() -> None:
    assert {event for event, _, _ in CASES} == set(Trigger) - {Trigger.EXPIRE}


@pytest.mark.parametrize("state", [PENDING, SUCCEEDED, FAILED, UNKNOWN])
def test_expiry_makes_any_state_absent(state: State) -> None:
    old = record(state)
    assert state_now(old, old.expires_at - 1) is not ABSENT
    assert state_now(old, old.expires_at) is ABSENT
    write = decide(old, claim(fingerprint=OTHER_FINGERPRINT), old.expires_at).write
    assert write is not None
    assert (write.state, write.attempt, write.owner) == (PENDING, 1, ME)


# --- for every record and every command -------------------------------------------------------


def _state_met(before: Record | None, command: Command, now: int) -> State:
    """The state in which a command finds the record: a claim sees that it expired, a resolve that
    its owner is dead."""
    if before is None:
        return ABSENT
    if isinstance(command, Claim):
        return ABSENT if is_expired(before, now) else before.state
    return state_now(before, now) if isinstance(command, Resolve) else before.state


def same_but_for_the_note(before: Record, write: Record | None) -> bool:
    """The state that a late owner reports of a resolved key is added to the note, nothing else."""
    return write is None or write._replace(note=before.note) == before


@settings(max_examples=200)
@given(before=records(), command=commands, now=times)
def test_only_transitions_of_the_table_are_written(
    before: Record, command: Command, now: int
) -> None:
    write = decide(before, command, now).write
    if write is not None and not same_but_for_the_note(before, write):
        met = _state_met(before, command, now)
        moves = {
            (old, new)
            for (old, event), new in TRANSITIONS.items()
            if event in EVENTS_OF[type(command)]
        }
        assert (met, write.state) in moves


@settings(max_examples=200)
@given(before=records(), command=commands, now=times)
def test_i7_rejections_and_replays_write_nothing(
    before: Record, command: Command, now: int
) -> None:
    decision = decide(before, command, now)
    if isinstance(decision.reply, (Replay, Mismatched, Busy, Lost, Seen)):
        assert same_but_for_the_note(before, decision.write)
        assert decision.archive is None


@settings(max_examples=200)
@given(before=records(), command=commands, now=times)
def test_i2_a_finished_record_never_changes_until_it_expires(
    before: Record, command: Command, now: int
) -> None:
    if isinstance(command, Resolve) and command.expected is before.state is FAILED:
        return  # an operator may free a failed key; what it failed with is archived
    if before.state in (SUCCEEDED, FAILED) and not is_expired(before, now):
        assert same_but_for_the_note(before, decide(before, command, now).write)


@settings(max_examples=200)
@given(before=records(), command=commands, now=times)
def test_i6_the_fence_never_falls_and_rises_with_every_new_owner(
    before: Record, command: Command, now: int
) -> None:
    write = decide(before, command, now).write
    if write is not None:
        assert write.fence >= before.fence
        if write.owner != before.owner or write.attempt != before.attempt:
            assert write.fence > before.fence
    if write is not None and isinstance(command, Claim) and is_expired(before, now):
        assert write.fence > before.fence, "a new generation has a new fence, also for an old owner"


@settings(max_examples=200)
@given(before=records(), claimed=claims, now=times)
def test_i7_mismatch_exactly_if_another_request_claims_a_bound_key(
    before: Record, claimed: Claim, now: int
) -> None:
    reply = decide(before, claimed, now).reply
    mine = before.owner == claimed.owner and before.state in (PENDING, ABSENT)
    bound = not is_expired(before, now) and (before.state is not ABSENT or bool(before.steps))
    expected = bound and not mine and before.fingerprint != claimed.fingerprint
    assert isinstance(reply, Mismatched) is expected


@settings(max_examples=200)
@given(before=records(), command=commands, now=times)
def test_i9_a_repeated_command_gets_the_same_reply_and_changes_nothing_more(
    before: Record, command: Command, now: int
) -> None:
    first = decide(before, command, now)
    after = first.write if first.write is not None else before
    again = decide(after, command, now)
    assert again.write in (None, after)
    assert again.archive is None
    if isinstance(command, Look):
        assert again.reply == Seen(before, now)
    elif isinstance(first.reply, Claimed):
        assert again.reply == first.reply._replace(taken_over=False)
    else:
        assert again.reply == first.reply


@settings(max_examples=200)
@given(before=records(), claimed=claims, now=times)
def test_a_claim_archives_only_what_is_past_and_in_its_audit_window(
    before: Record, claimed: Claim, now: int
) -> None:
    archive = decide(before, claimed, now).archive
    past = is_expired(before, now) and now < before.audit_until and before.state is not ABSENT
    assert archive == (before if past else None)


@settings(max_examples=200)
@given(before=records(), command=commands, now=times)
def test_a_write_keeps_the_identity_and_the_times_make_sense(
    before: Record, command: Command, now: int
) -> None:
    write = decide(before, command, now).write
    if write is not None:
        assert write.id == before.id
        assert bool(write.finished_at) is (write.state in ENDED)
        assert write.state is not PENDING or write.lease_until >= min(before.lease_until, now)


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("steps", [(), (Step("pay", False, b"", NOW),)], ids=["bare", "steps"])
def test_a_record_decided_or_freed_before_any_step_has_ended(
    state: State, steps: tuple[Step, ...]
) -> None:
    ended = state in (SUCCEEDED, FAILED) or (state is ABSENT and not steps)
    assert has_ended(record(state, steps=steps)) is ended


@settings(max_examples=500)
@given(before=records(), command=commands, now=times)
def test_i10_a_claim_of_an_ended_record_has_a_new_fence(
    before: Record, command: Command, now: int
) -> None:
    """So a listing by fence finds it, however old the record is."""
    write = decide(before, command, now).write
    if write is not None and has_ended(before) and not has_ended(write):
        assert write.fence >= now
        assert write.fence > before.fence


def test_decisions_are_pure() -> None:
    before = record()
    assert decide(before, finish(), NOW) == decide(before, finish(), NOW)
    assert before == record()
