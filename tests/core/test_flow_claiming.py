"""The flow up to the body: claiming, waiting, recovering."""

from __future__ import annotations

import pytest
from tests.core.making import ASKED, FENCE, ID, ME, record
from tests.core.scripted import KEEP, LEASE, MAYBE, REFUSED, SECOND, Script, task

from oncekey.core.attempt_flow import (
    CLAIM_TRIES,
    POLL_FIRST_US,
    POLL_GROWTH_PERCENT,
    POLL_MAX_US,
    attempt,
)
from oncekey.core.commands import (
    Busy,
    Claim,
    Claimed,
    Done,
    Lost,
    Mismatched,
    Release,
    Replay,
    Reply,
    Resolve,
    Unknown,
)
from oncekey.core.effects import (
    ApplyCommand,
    AttemptOutcome,
    CommandResult,
    Grant,
    Recover,
    Recovered,
    Sleep,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.events import EventKind
from oncekey.core.record import State, Step
from oncekey.core.step_flow import RETRY_FIRST_US

CLAIMED = Claimed(FENCE, 1, ())
REPLAY = Replay(State.SUCCEEDED, b"stored", 2, FENCE, 77)


def test_a_claim_says_all_the_store_needs() -> None:
    script = Script(attempt(task(retry_safe=True)))
    assert script.command(Claim) == Claim(ID, ME, ASKED, LEASE, KEEP, 0, True, "acct", "charge", "")


def test_a_claimed_key_is_granted_to_the_body() -> None:
    steps = (Step("a", True, b"", 1),)
    script = Script(attempt(task()))
    script.reply(Claimed(FENCE, 3, steps, taken_over=True))
    assert script.grant() == Grant(ID, ME, FENCE, 3, LEASE, LEASE, steps, True)


def test_i5_the_deadline_counts_from_the_sending_of_the_claim() -> None:
    script = Script(attempt(task()))
    script.now = 1_000
    script.reply(CLAIMED, took=5 * SECOND)
    assert script.grant().deadline == 1_000 + LEASE


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (REPLAY, AttemptOutcome(EventKind.REPLAYED, b"stored", State.SUCCEEDED, 2, FENCE, 77)),
        (Mismatched(1), AttemptOutcome(EventKind.MISMATCH, version=1)),
        (Mismatched(9), AttemptOutcome(EventKind.MISMATCH, version=9)),
        (Unknown(record(State.UNKNOWN)), AttemptOutcome(EventKind.UNKNOWN, fence=FENCE)),
        (Busy(4_000), AttemptOutcome(EventKind.IN_FLIGHT, retry_after=4_000)),
        (Lost(), AttemptOutcome(EventKind.LOST)),
        (REFUSED, AttemptOutcome(EventKind.UNAVAILABLE, error=REFUSED)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_each_reply_comes_to_without_running_anything(
    reply: Reply | StoreUnavailable, verdict: AttemptOutcome
) -> None:
    script = Script(attempt(task()))
    script.reply(reply)
    assert script.verdict() == verdict


# --- lost replies (I9) ------------------------------------------------------------------------


def test_i9_an_ambiguous_failure_is_claimed_again_with_the_same_owner() -> None:
    script = Script(attempt(task()))
    first = script.command(Claim)
    script.reply(MAYBE, took=SECOND)
    assert script.sleep().us == RETRY_FIRST_US
    assert script.command(Claim) == first
    script.reply(CLAIMED, took=SECOND)
    assert script.grant().deadline == SECOND + RETRY_FIRST_US + LEASE, "from the last sending (I5)"


def test_i9_the_pauses_between_claims_grow_and_nobody_is_watched() -> None:
    script = Script(attempt(task()))
    slept = []
    for _ in range(CLAIM_TRIES - 1):
        script.reply(MAYBE)
        slept.append(script.sleep())
    assert slept == [Sleep(RETRY_FIRST_US), Sleep(2 * RETRY_FIRST_US)]


def test_i9_only_a_claim_that_was_sent_must_have_a_reply_of_its_own() -> None:
    """A failure that was another claim's leaves nothing behind; one's own may have been applied."""
    script = Script(attempt(task()))
    script.send(CommandResult(MAYBE, 0, 0, shared=True))
    script.sleep()
    assert script.expect(ApplyCommand).repeated is False
    script.reply(MAYBE)
    script.sleep()
    assert script.expect(ApplyCommand).repeated is True
    nothing_sent = Script(attempt(task()))
    for tries in range(CLAIM_TRIES):
        nothing_sent.send(CommandResult(MAYBE, 0, 0, shared=True))
        if tries < CLAIM_TRIES - 1:
            nothing_sent.sleep()
    assert nothing_sent.verdict() == AttemptOutcome(EventKind.UNAVAILABLE, error=MAYBE), (
        "nothing to give back"
    )


@pytest.mark.parametrize("reply", [Done(), Lost(), MAYBE, REFUSED], ids=str)
def test_a_claim_that_never_was_answered_is_given_back(reply: Reply | StoreUnavailable) -> None:
    script = Script(attempt(task()))
    for _ in range(CLAIM_TRIES - 1):
        script.reply(MAYBE)
        script.sleep()
    script.reply(MAYBE)
    assert script.command(Release) == Release(ID, ME, None)
    script.reply(reply)
    deferred = Release(ID, ME, None) if isinstance(reply, StoreUnavailable) else None
    assert script.verdict() == AttemptOutcome(EventKind.UNAVAILABLE, error=MAYBE, deferred=deferred)


@pytest.mark.parametrize("unclear", range(1, CLAIM_TRIES))
def test_a_clear_failure_after_an_unclear_one_gives_the_claim_back_too(unclear: int) -> None:
    """The first claim may be there although the second was refused."""
    script = Script(attempt(task()))
    for _ in range(unclear):
        script.reply(MAYBE)
        script.sleep()
    script.reply(REFUSED)
    assert script.command(Release) == Release(ID, ME, None)
    script.reply(Done())
    assert script.verdict() == AttemptOutcome(EventKind.UNAVAILABLE, error=REFUSED)


# --- waiting ----------------------------------------------------------------------------------


def test_waiting_pauses_grow_to_a_limit_and_watch_the_key() -> None:
    script = Script(attempt(task(wait=10 * SECOND)))
    pauses = []
    for _ in range(8):
        script.reply(Busy(LEASE))
        ask = script.sleep()
        assert ask.watch == ID
        pauses.append(ask.us)
    expected = [POLL_FIRST_US]
    while len(expected) < 8:
        expected.append(min(expected[-1] * POLL_GROWTH_PERCENT // 100, POLL_MAX_US))
    assert pauses == expected
    assert pauses[-1] == POLL_MAX_US


def test_waiting_ends_exactly_with_wait() -> None:
    script = Script(attempt(task(wait=SECOND)))
    while not script.ended:
        script.reply(Busy(123))
        if not script.ended:
            script.sleep()
    assert script.now == SECOND
    assert script.verdict() == AttemptOutcome(EventKind.WAIT_TIMEOUT, retry_after=123)


def test_the_wait_counts_from_the_first_sending() -> None:
    script = Script(attempt(task(wait=SECOND)))
    script.reply(Busy(5), took=SECOND - 1)
    assert script.sleep().us == 1
    script.reply(Busy(5))
    assert script.verdict().kind is EventKind.WAIT_TIMEOUT


def test_who_waited_gets_the_outcome() -> None:
    script = Script(attempt(task(wait=SECOND)))
    script.reply(Busy(5))
    script.sleep()
    script.reply(REPLAY)
    assert script.verdict().kind is EventKind.REPLAYED


def test_i5_who_waited_and_got_the_key_counts_from_its_last_claim() -> None:
    script = Script(attempt(task(wait=SECOND)))
    script.reply(Busy(5))
    script.sleep()
    script.reply(CLAIMED, took=7)
    assert script.grant().deadline == POLL_FIRST_US + LEASE


# --- recovery ---------------------------------------------------------------------------------

UNKNOWN_REPLY = Unknown(record(State.UNKNOWN))
FOUND = Recovered(State.SUCCEEDED, b"found", "asked the bank")


def recovering() -> Script:
    script = Script(attempt(task(recoverable=True)))
    script.reply(UNKNOWN_REPLY)
    assert script.expect(Recover).record == UNKNOWN_REPLY.record
    return script


def test_what_recovery_finds_is_resolved_and_claimed_again() -> None:
    script = recovering()
    script.send(FOUND)
    assert script.command(Resolve) == Resolve(
        ID, FENCE, State.SUCCEEDED, b"found", "asked the bank"
    )
    script.reply(Done())
    script.command(Claim)
    script.reply(REPLAY)
    assert script.verdict().kind is EventKind.REPLAYED


def test_a_key_decided_by_somebody_else_meanwhile_is_claimed_again_too() -> None:
    script = recovering()
    script.send(FOUND)
    script.reply(Lost())
    script.command(Claim)


def test_recovery_that_finds_nothing_leaves_it_unknown() -> None:
    script = recovering()
    script.send(None)
    assert script.verdict() == AttemptOutcome(EventKind.UNKNOWN, fence=FENCE)


def test_recovery_is_asked_once_only() -> None:
    script = recovering()
    script.send(FOUND)
    script.reply(Done())
    script.reply(UNKNOWN_REPLY)
    assert script.verdict() == AttemptOutcome(EventKind.UNKNOWN, fence=FENCE)


def test_without_recover_nobody_is_asked() -> None:
    script = Script(attempt(task(recoverable=False)))
    script.reply(UNKNOWN_REPLY)
    assert script.verdict().kind is EventKind.UNKNOWN


def test_resolving_is_repeated_and_then_given_up() -> None:
    script = recovering()
    script.send(FOUND)
    for _ in range(CLAIM_TRIES):
        script.command(Resolve)
        script.reply(MAYBE)
        script.sleep()
    assert script.verdict() == AttemptOutcome(EventKind.UNKNOWN, fence=FENCE)


def test_i9_a_lost_reply_to_resolve_is_asked_for_again() -> None:
    script = recovering()
    script.send(FOUND)
    script.reply(MAYBE)
    script.sleep()
    script.reply(Done())
    script.command(Claim)
