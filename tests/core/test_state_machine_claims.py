"""Claims: the rules, one by one and in their order."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.sample_records import (
    AUDIT,
    FENCE,
    FINGERPRINT,
    KEEP,
    LEASE,
    ME,
    NOW,
    OTHER,
    OTHER_FINGERPRINT,
    claim,
    record,
)

from oncekey.core.commands import Busy, Claimed, Lost, Mismatched, Replay, Unknown
from oncekey.core.fingerprint import VERSION, fingerprint
from oncekey.core.record import NOTE_KEPT_CHARS, Record, State, Step
from oncekey.core.state_machine import (
    CLAIM_RULES,
    decide,
    is_expired,
    is_garbage,
    next_fence,
    state_now,
)

ABSENT, PENDING = State.ABSENT, State.PENDING
SUCCEEDED, FAILED, UNKNOWN = State.SUCCEEDED, State.FAILED, State.UNKNOWN
DONE_STEP = Step("pay", True, b"paid", NOW - 20)


def written(before: Record | None, **fingerprint: Any) -> Record:
    write = decide(before, claim(**fingerprint), NOW).write
    assert write is not None
    return write


# --- the order -------------------------------------------------------------------------------


def test_the_claim_rules_are_in_the_order_of_the_design() -> None:
    names = [holds.__name__ for holds, _ in CLAIM_RULES]
    assert names == [
        "_expired",
        "_already_released",
        "_freed",
        "_mine",
        "_is_other_request",
        "_finished",
        "_unknown",
        "_held",
        "_both_retry_safe",
        "_otherwise",
    ]


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("owner", [ME, OTHER])
@pytest.mark.parametrize("fingerprint", [FINGERPRINT, OTHER_FINGERPRINT])
def test_an_expired_record_is_claimed_whatever_it_says(
    state: State, owner: bytes, fingerprint: bytes
) -> None:
    old = record(state, owner=owner, steps=(DONE_STEP,))
    reply = decide(old, claim(fingerprint=fingerprint), old.expires_at).reply
    assert isinstance(reply, Claimed)
    assert (reply.attempt, reply.steps, reply.taken_over) == (1, (), False)


@pytest.mark.parametrize("fingerprint", [FINGERPRINT, OTHER_FINGERPRINT])
def test_a_late_claim_of_a_released_owner_is_lost_although_the_key_is_free(
    fingerprint: bytes,
) -> None:
    assert decide(record(ABSENT, owner=ME), claim(fingerprint=fingerprint), NOW).reply == Lost()


def test_my_own_claim_comes_before_mismatch() -> None:
    before = record(owner=ME, fingerprint=OTHER_FINGERPRINT)
    assert isinstance(decide(before, claim(), NOW).reply, Claimed)


@pytest.mark.parametrize("state", [PENDING, SUCCEEDED, FAILED, UNKNOWN])
def test_i7_mismatch_comes_before_finished_unknown_and_held(state: State) -> None:
    decision = decide(record(state), claim(fingerprint=OTHER_FINGERPRINT), NOW)
    assert decision == (Mismatched(1), None, None)


@pytest.mark.parametrize("safe", [True, False])
def test_i7_mismatch_comes_before_takeover_and_giving_up(safe: bool) -> None:
    before = record(lease_until=NOW - 1, retry_safe=safe)
    decision = decide(before, claim(fingerprint=OTHER_FINGERPRINT, retry_safe=safe), NOW)
    assert decision == (Mismatched(1), None, None)


def test_a_mismatch_has_the_version_of_the_stored_fingerprint() -> None:
    stored = fingerprint({"cents": 1})
    assert decide(record(fingerprint=stored), claim(), NOW).reply == Mismatched(VERSION)
    assert decide(record(fingerprint=b"\x07later"), claim(), NOW).reply == Mismatched(7)


# --- what each rule gives ---------------------------------------------------------------------


def test_a_first_claim_writes_the_whole_record() -> None:
    made = decide(None, claim(retry_safe=True, key="raw"), NOW)
    assert made.reply == Claimed(NOW, 1, (), taken_over=False)
    assert made.archive is None
    assert made.write == Record(
        id=claim().id,
        state=PENDING,
        fingerprint=FINGERPRINT,
        owner=ME,
        fence=NOW,
        attempt=1,
        retry_safe=True,
        created_at=NOW,
        lease_until=NOW + LEASE,
        finished_at=0,
        keep=KEEP,
        audit=AUDIT,
        scope="acct",
        label="charge",
        key="raw",
        steps=(),
        body=b"",
        note="",
    )


def test_a_repeated_claim_renews_the_lease_and_nothing_else() -> None:
    before = record(owner=ME, attempt=3, steps=(DONE_STEP,), lease_until=NOW + 1)
    decision = decide(before, claim(keep=KEEP + 7), NOW)
    assert decision.reply == Claimed(FENCE, 3, (DONE_STEP,), taken_over=False)
    assert decision.write == before._replace(lease_until=NOW + LEASE)


def test_a_repeated_claim_is_granted_also_after_the_lease() -> None:
    """Nobody has taken over: the record still has this owner."""
    assert written(record(owner=ME, lease_until=NOW - 1)).lease_until == NOW + LEASE


@pytest.mark.parametrize("state", [SUCCEEDED, FAILED])
def test_a_finished_key_is_replayed_with_the_time_it_still_holds(state: State) -> None:
    before = record(state, attempt=2)
    left = before.finished_at + KEEP - NOW
    assert decide(before, claim(), NOW).reply == Replay(state, b"stored", 2, FENCE, left)


def test_my_own_finished_key_is_replayed_too() -> None:
    assert isinstance(decide(record(SUCCEEDED, owner=ME), claim(), NOW).reply, Replay)


def test_a_claim_of_an_unknown_key_gets_unknown_and_writes_nothing() -> None:
    before = record(UNKNOWN)
    assert decide(before, claim(retry_safe=True), NOW) == (Unknown(before, NOW), None, None)


def test_i5_a_live_lease_is_busy_up_to_its_last_microsecond() -> None:
    before = record(retry_safe=True)
    at = before.lease_until
    assert decide(before, claim(retry_safe=True), at - 1).reply == Busy(1)
    assert isinstance(decide(before, claim(retry_safe=True), at).reply, Claimed)


@pytest.mark.parametrize(("dead", "new"), [(True, False), (False, True), (False, False)])
def test_takeover_needs_both_to_be_retry_safe(dead: bool, new: bool) -> None:
    before = record(retry_safe=dead, lease_until=NOW, steps=(DONE_STEP,))
    decision = decide(before, claim(retry_safe=new), NOW)
    given_up = before._replace(state=UNKNOWN, finished_at=NOW)
    assert decision == (Unknown(given_up, NOW), given_up, None)


def test_a_takeover_keeps_steps_and_created_at_and_takes_the_new_times() -> None:
    before = record(retry_safe=True, lease_until=NOW, steps=(DONE_STEP,), attempt=4)
    fingerprint = claim(retry_safe=True, keep=7, audit=8)
    decision = decide(before, fingerprint, NOW)
    assert decision.reply == Claimed(NOW, 5, (DONE_STEP,), taken_over=True)
    assert decision.write == before._replace(
        owner=ME, fence=NOW, attempt=5, lease_until=NOW + LEASE, keep=7, audit=8
    )
    assert decision.archive is None, "it is the same generation"


# --- freed keys -------------------------------------------------------------------------------


def test_a_freed_key_is_free_for_any_request() -> None:
    write = written(record(ABSENT, attempt=2), fingerprint=OTHER_FINGERPRINT)
    assert (write.fingerprint, write.attempt, write.created_at) == (OTHER_FINGERPRINT, 3, NOW - 50)


def test_a_freed_key_with_steps_stays_bound_to_its_request() -> None:
    before = record(ABSENT, steps=(DONE_STEP,))
    assert decide(before, claim(fingerprint=OTHER_FINGERPRINT), NOW).reply == Mismatched(1)
    assert written(before).steps == (DONE_STEP,)


def test_a_freed_key_with_steps_is_fresh_again_once_expired() -> None:
    before = record(ABSENT, steps=(DONE_STEP,), lease_until=NOW - KEEP)
    write = written(before, fingerprint=OTHER_FINGERPRINT)
    assert (write.steps, write.attempt, write.created_at) == ((), 1, NOW)


def test_a_freed_key_remembers_who_freed_it_and_forgets_its_body() -> None:
    freed = record(ABSENT, note="ana freed it", body=b"x")
    assert written(freed)[-3:-1] == (b"", "ana freed it\n")
    long = record(ABSENT, note="n" * 9_000)
    assert len(written(long)[-2]) == NOTE_KEPT_CHARS + 1


# --- fences (I6) ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fence", "now", "expected"),
    [(5, 100, 100), (99, 100, 100), (100, 100, 101), (5_000, 100, 5_001)],
)
def test_i6_the_next_fence_is_above_the_last_and_not_below_the_clock(
    fence: int, now: int, expected: int
) -> None:
    assert next_fence(record(fence=fence), now) == expected


@pytest.mark.parametrize(("floor", "expected"), [(0, NOW), (NOW - 1, NOW), (NOW, NOW + 1)])
def test_i6_without_a_record_the_fence_is_the_clock_or_above_what_was_deleted(
    floor: int, expected: int
) -> None:
    assert next_fence(None, NOW, floor) == expected
    assert decide(None, claim(), NOW, floor).reply == Claimed(expected, 1, ())


@pytest.mark.parametrize(
    "before",
    [
        record(ABSENT, fence=NOW + 500),
        record(SUCCEEDED, fence=NOW + 500, finished_at=1, keep=1),
        record(fence=NOW + 500, retry_safe=True, lease_until=NOW),
    ],
    ids=["freed", "expired", "taken over"],
)
def test_i6_the_fence_rises_also_when_the_clock_steps_back(before: Record) -> None:
    assert written(before, retry_safe=True).fence == NOW + 501


# --- expiry and garbage, to the microsecond ----------------------------------------------------


def test_expiry_counts_from_the_end_or_else_from_the_lease() -> None:
    assert record(retry_safe=True).expires_at == NOW + 50 + KEEP
    assert record(SUCCEEDED).expires_at == NOW - 10 + KEEP
    assert record(SUCCEEDED).audit_until == NOW - 10 + KEEP + AUDIT


def test_an_undecided_record_stays_for_keep_unknown_and_by_default_for_ever() -> None:
    """A claim that is not retry-safe counts too: its owner may have died unnoticed."""
    assert record(keep_unknown=7).expires_at == NOW + 50 + 7
    assert record(UNKNOWN, keep_unknown=7).audit_until == NOW - 10 + 7 + AUDIT
    monday = NOW + 3 * 86_400_000_000
    for undecided in (record(), record(UNKNOWN), record(UNKNOWN, retry_safe=True)):
        assert undecided.is_undecided
        assert isinstance(decide(undecided, claim(retry_safe=True), monday).reply, Unknown)
        assert not is_garbage(undecided, monday + 100 * KEEP)


@pytest.mark.parametrize("state", list(State))
def test_a_sweeper_looks_at_a_claim_when_it_would_be_garbage_had_it_ended(state: State) -> None:
    old = record(state)
    due = NOW + 50 + KEEP + AUDIT if state is PENDING else old.audit_until
    assert old.sweep_at == due


@pytest.mark.parametrize("state", list(State))
def test_i12_expired_and_garbage_at_the_exact_boundary(state: State) -> None:
    old = record(state)
    assert not is_expired(old, old.expires_at - 1)
    assert is_expired(old, old.expires_at)
    assert not is_garbage(old, old.audit_until - 1)
    assert is_garbage(old, old.audit_until)


def test_without_an_audit_window_an_expired_record_is_garbage_at_once() -> None:
    old = record(SUCCEEDED, audit=0)
    assert is_garbage(old, old.expires_at)
    assert decide(old, claim(), old.expires_at).archive is None


@pytest.mark.parametrize("state", [PENDING, SUCCEEDED, FAILED, UNKNOWN])
def test_an_expired_generation_is_archived_until_its_audit_ends(state: State) -> None:
    old = record(state)
    assert decide(old, claim(), old.expires_at).archive == old
    assert decide(old, claim(), old.audit_until - 1).archive == old
    assert decide(old, claim(), old.audit_until).archive is None


def test_a_freed_record_is_never_archived() -> None:
    old = record(ABSENT)
    assert decide(old, claim(), NOW).archive is None
    assert decide(old, claim(), old.expires_at).archive is None


def test_state_now_is_unknown_for_a_dead_owner_before_any_claim() -> None:
    assert state_now(None, NOW) is ABSENT
    assert state_now(record(lease_until=NOW + 1), NOW) is PENDING
    assert state_now(record(lease_until=NOW), NOW) is UNKNOWN
    assert state_now(record(lease_until=NOW, retry_safe=True), NOW) is PENDING
    assert state_now(record(SUCCEEDED), NOW) is SUCCEEDED
