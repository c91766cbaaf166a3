"""The checker itself: each rule fires on the history it is there for, and on no clean one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.hammer.checker import RULES, check
from tests.support.hammer.command_log import BODY, NOT_STARTED, RAISED, RESULT, Entry
from tests.support.hammer.lost_replies import resolve_failures

from oncekey.core.record import State

KEEP = 1_000_000
LEASE = 100_000
S, F, U, FREE = State.SUCCEEDED, State.FAILED, State.UNKNOWN, State.ABSENT


def claim(at: int, owner: str, reply: str, fence: int = 0, **more: Any) -> Entry:
    values = {"fingerprint": "usual", "lease": LEASE, "given_fence": fence, **more}
    return Entry("key", "Claim", at, at + 10, reply, owner=owner, **values)


def granted(at: int, owner: str, fence: int, attempt: int = 1, **more: Any) -> Entry:
    return claim(at, owner, "Claimed", fence, given_attempt=attempt, **more)


def replayed(at: int, fence: int, body: str = "out", **more: Any) -> Entry:
    return claim(at, "reader", "Replay", fence, given_state=S, given_body=body, **more)


def owner_command(
    at: int, verb: str, owner: str, fence: int, reply: str = "Done", **more: Any
) -> Entry:
    return Entry("key", verb, at, at + 10, reply, owner=owner, fence=fence, **more)


def finished(at: int, owner: str, fence: int, reply: str = "Done", **more: Any) -> Entry:
    values = {"state": S, "body": "out", **more}
    return owner_command(at, "Finish", owner, fence, reply, **values)


def body(at: int, fence: int, ended: str = "Returned", **more: Any) -> Entry:
    return Entry("key", BODY, at, at + 10, ended, fence=fence, **more)


def result(at: int, fence: int) -> Entry:
    return Entry("key", RESULT, at, at, "", fence=fence)


def looked(at: int, note: str) -> Entry:
    return Entry("key", "Look", at, at + 10, "Seen", given_note=note)


def resolved(at: int, fence: int, note: str, state: State = S) -> Entry:
    return Entry("key", "Resolve", at, at + 10, "Done", fence=fence, state=state, note=note)


SAFE = {"retry_safe": True}
CLEAN = [
    granted(0, "a", 1),
    claim(50, "b", "Busy"),
    claim(60, "b", "Mismatched", fingerprint="other"),
    granted(70, "a", 1),
    owner_command(80, "Renew", "a", 1, lease=LEASE),
    body(85, 1, deadline=80 + LEASE),
    finished(100, "a", 1),
    result(105, 1),  # of a caller that was faster than the reply to the finish
    finished(200, "a", 1),
    replayed(300, 1),
    looked(310, ""),
    granted(100 + KEEP, "c", 2, **SAFE),
    granted(200 + KEEP + LEASE, "d", 3, 2, taken_over=True, **SAFE),
    finished(300 + KEEP + LEASE, "c", 2, "Lost"),
    owner_command(400 + KEEP + LEASE, "Release", "d", 3),
    granted(500 + KEEP + LEASE, "e", 4, 3),
    claim(600 + KEEP + LEASE * 2, "f", "Unknown", 4, given_fingerprint="usual"),
    resolved(700 + KEEP + LEASE * 2, 4, "by hand"),
    looked(800 + KEEP + LEASE * 2, "hand\nby hand; its late owner then reported: failed"),
]

BROKEN = {
    "i6_fences_are_unique_and_grow": [granted(0, "a", 1), granted(50, "b", 1)],
    "i6_fences_are_unique_and_grow (order)": [granted(0, "a", 5), granted(KEEP * 2, "b", 4)],
    "i2_one_outcome_per_generation": [
        granted(0, "a", 1), finished(20, "a", 1), finished(40, "b", 1, body="other")
    ],
    "i2_one_outcome_per_generation (not the last)": [
        granted(0, "a", 1, **SAFE), granted(LEASE, "b", 2, 2, taken_over=True, **SAFE),
        finished(LEASE + 5, "a", 1),
    ],
    "i2_the_overtaken_are_refused": [
        granted(0, "a", 1, **SAFE), granted(LEASE, "b", 2, 2, taken_over=True, **SAFE),
        owner_command(LEASE + 50, "Renew", "a", 1, lease=LEASE),
    ],
    "i5_leases_never_overlap": [
        granted(0, "a", 1, **SAFE), granted(LEASE // 2, "b", 2, 2, taken_over=True, **SAFE)
    ],
    "i5_leases_never_overlap (renewed)": [
        granted(0, "a", 1, **SAFE), owner_command(LEASE // 2, "Renew", "a", 1, lease=LEASE),
        granted(LEASE, "b", 2, 2, taken_over=True, **SAFE),
    ],
    "i1_every_run_has_its_reason": [
        granted(0, "a", 1), granted(LEASE, "b", 2, 2, taken_over=True, **SAFE)
    ],
    "i1_every_run_has_its_reason (nobody freed it)": [
        granted(0, "a", 1), granted(LEASE, "b", 2, 2)
    ],
    "i1_an_error_frees_only_what_is_retry_safe": [
        granted(0, "a", 1), body(20, 1, RAISED), owner_command(40, "Release", "a", 1)
    ],
    "i5_owners_count_from_the_sending": [granted(0, "a", 1), body(20, 1, deadline=LEASE + 10)],
    "i7_rejections_leave_no_note": [
        granted(0, "a", 1), claim(20, "b", "Mismatched", fingerprint="other"),
        looked(40, "mismatch"),
    ],
    "i13_results_are_stored_first": [granted(0, "a", 1), result(40, 1), finished(50, "a", 1)],
    "i13_results_are_stored_first (never)": [granted(0, "a", 1), result(40, 1)],
    "i12_a_fresh_start_only_after_expiry": [granted(0, "a", 1), granted(LEASE * 2, "b", 2)],
    "i12_a_fresh_start_only_after_expiry (freed)": [
        granted(0, "a", 1), owner_command(50, "Release", "a", 1), granted(LEASE * 2, "b", 2)
    ],
    "i3_replays_are_what_was_stored": [
        granted(0, "a", 1), finished(20, "a", 1), replayed(40, 1, "other")
    ],
    "i3_replays_are_what_was_stored (to another request)": [
        granted(0, "a", 1), finished(20, "a", 1), replayed(40, 1, fingerprint="other")
    ],
    "i4_what_was_stored_stays": [
        granted(0, "a", 1), finished(20, "a", 1), claim(40, "b", "Busy")
    ],
    "i7_mismatch_exactly_when_it_differs": [granted(0, "a", 1), claim(40, "b", "Mismatched")],
    "i7_mismatch_exactly_when_it_differs (busy)": [
        granted(0, "a", 1), claim(40, "b", "Busy", fingerprint="other")
    ],
    "i7_mismatch_exactly_when_it_differs (unknown)": [
        granted(0, "a", 1),
        claim(LEASE, "b", "Unknown", 1, fingerprint="other", given_fingerprint="usual"),
    ],
    "i9_repeats_get_the_same_reply": [granted(0, "a", 1), claim(40, "a", "Busy")],
    "i9_repeats_get_the_same_reply (finish)": [
        granted(0, "a", 1), finished(20, "a", 1), finished(40, "a", 1, "Lost")
    ],
    "i14_a_living_owner_is_accepted": [granted(0, "a", 1), finished(50, "a", 1, "Lost")],
    "i14_a_living_owner_is_accepted (renewed)": [
        granted(0, "a", 1), owner_command(LEASE // 2, "Renew", "a", 1, lease=LEASE),
        owner_command(LEASE + 50, "Release", "a", 1, "Lost"),
    ],
}  # fmt: skip


def rules_fired(entries: list[Entry]) -> set[str]:
    return {words.split()[0] for words in check(entries, {}, KEEP).violations}


def test_a_clean_history_has_no_violations() -> None:
    assert check(CLEAN, {}, KEEP).violations == []


@pytest.mark.parametrize("name", BROKEN)
def test_each_rule_finds_what_it_is_for(name: str) -> None:
    assert name.split()[0] in rules_fired(BROKEN[name])


def test_every_rule_has_a_broken_history() -> None:
    assert {rule.__name__ for rule in RULES} == {name.split()[0] for name in BROKEN}


@pytest.mark.parametrize("ended", [body(20, 1, NOT_STARTED), body(20, 1, RAISED, **SAFE)])
def test_a_body_that_was_not_started_or_is_retry_safe_may_free_its_key(ended: Entry) -> None:
    freed = owner_command(40, "Release", "a", 1)
    assert rules_fired([granted(0, "a", 1), ended, freed]) == set()


def test_a_release_without_a_fence_frees_the_last_grant_of_its_owner() -> None:
    """Its owner's first claim had expired, so the repeated one started a new generation (I12)."""
    entries = [
        granted(0, "a", 1),
        granted(LEASE + KEEP, "a", 2),
        owner_command(LEASE + KEEP + 50, "Release", "a", 0),
        granted(LEASE + KEEP + 100, "b", 3, 2),
    ]
    assert rules_fired(entries) == set()


def test_with_a_failed_command_only_rules_that_need_no_complete_log_apply() -> None:
    gap = Entry("key", "Claim", 5, 15, "error", owner="x")
    assert rules_fired([granted(0, "a", 1), granted(LEASE * 2, "b", 2), gap]) == set()
    assert "i5_leases_never_overlap" in rules_fired([*BROKEN["i5_leases_never_overlap"], gap])


# --- replies that never came --------------------------------------------------------------------


def failed(what: Entry) -> Entry:
    return replace(what, reply="error", seen=False, given_fence=0, given_attempt=0)


def test_a_repeat_in_time_shows_that_the_first_took_effect() -> None:
    first, second = failed(granted(0, "a", 1)), granted(50, "a", 1)
    assert resolve_failures([first, second], KEEP) == ([replace(second, sent=0)], True)
    ended, again = failed(finished(100, "a", 1)), finished(200, "a", 1)
    assert resolve_failures([ended, again], KEEP) == ([ended, replace(again, sent=100)], True)


def test_a_refused_repeat_in_time_shows_that_the_first_had_no_effect() -> None:
    first, second = failed(claim(0, "a", "?")), claim(50, "a", "Busy")
    assert resolve_failures([first, second], KEEP) == ([second], True)
    ended, again = failed(finished(100, "a", 1)), finished(200, "a", 1, "Lost")
    assert resolve_failures([ended, again], KEEP) == ([ended, again], True)


def test_a_repeat_that_gets_unknown_may_have_been_the_one_to_give_up() -> None:
    """Then the record's time counts from the first, whose reply never came."""
    gave_up, later = claim(LEASE, "b", "Unknown", 1, given_fingerprint="usual"), LEASE + 50_000
    repeat = replace(gave_up, sent=later, came=later + 10)
    assert resolve_failures([failed(gave_up), repeat], KEEP) == (
        [replace(repeat, sent=LEASE)],
        True,
    )
    fresh = granted(LEASE + KEEP, "c", 2)
    history = [granted(0, "a", 1), failed(gave_up), repeat]
    assert rules_fired([*history, fresh]) == set()
    early = replace(fresh, sent=fresh.sent - 2_000, came=fresh.came - 2_000)
    assert rules_fired([*history, early]) == {"i12_a_fresh_start_only_after_expiry"}


@pytest.mark.parametrize(
    ("first", "repeats"),
    [
        (claim(0, "a", "?"), []),  # no repeat
        (claim(0, "a", "?"), [granted(LEASE, "a", 2)]),  # somebody may have come in between
        (claim(0, "a", "?"), [claim(LEASE, "a", "Busy")]),
        (claim(0, "a", "?"), [claim(LEASE, "a", "Unknown", 1)]),
        (claim(0, "a", "?"), [granted(50, "a", 2, 2)]),  # taken over, or freed before?
        (owner_command(0, "Release", "a", 1), [owner_command(50, "Release", "a", 1, "Lost")]),
        (finished(0, "a", 1), [finished(KEEP, "a", 1, "Lost")]),
        (finished(0, "a", 1), [finished(50, "a", 2)]),  # of another fence
    ],
)
def test_otherwise_it_stays_unknown_whether_the_first_took_effect(
    first: Entry, repeats: list[Entry]
) -> None:
    assert resolve_failures([failed(first), *repeats], KEEP)[1] is False


def test_whether_a_lost_renewal_took_effect_does_not_matter() -> None:
    assert resolve_failures([failed(owner_command(0, "Renew", "a", 1, lease=LEASE))], KEEP) == (
        [],
        True,
    )
