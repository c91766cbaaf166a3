"""The flow of an attempt up to its body: claims, waiting, recovery."""

from __future__ import annotations

import pytest
from tests.core.sample_records import FENCE, FINGERPRINT, ID, ME, record
from tests.core.scripted_driver import (
    KEEP,
    LEASE,
    MAYBE,
    REFUSED,
    SECOND,
    FlowDriver,
    claim,
    my_attempt,
)

from oncekey.core.attempt_flow import (
    CLAIM_TRIES,
    POLL_FIRST_US,
    POLL_GROWTH_PERCENT,
    POLL_MAX_US,
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
    AttemptOutcome,
    CommandResult,
    Grant,
    Recover,
    Recovered,
    RepeatClaim,
    Sleep,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.events import EventKind
from oncekey.core.record import State, Step
from oncekey.core.step_flow import RETRY_FIRST_US

CLAIMED = Claimed(FENCE, 1, ())
REPLAY = Replay(State.SUCCEEDED, b"stored", 2, FENCE, 77)


def test_a_claim_carries_all_that_the_store_needs() -> None:
    driver = FlowDriver(my_attempt(retry_safe=True))
    assert driver.command(Claim) == Claim(
        ID, ME, FINGERPRINT, LEASE, KEEP, 0, True, "acct", "charge", ""
    )


def test_a_claimed_key_is_granted_to_the_body() -> None:
    steps = (Step("a", True, b"", 1),)
    driver = FlowDriver(my_attempt())
    driver.reply(Claimed(FENCE, 3, steps, taken_over=True))
    assert driver.grant() == Grant(claim(), FENCE, 3, LEASE, steps, True)


def test_i5_the_deadline_counts_from_the_sending_of_the_claim() -> None:
    driver = FlowDriver(my_attempt())
    driver.now = 1_000
    driver.reply(CLAIMED, took=5 * SECOND)
    assert driver.grant().deadline == 1_000 + LEASE


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (REPLAY, AttemptOutcome(EventKind.REPLAYED, b"stored", State.SUCCEEDED, 2, FENCE, 77)),
        (Mismatched(1), AttemptOutcome(EventKind.MISMATCH, version=1)),
        (Mismatched(9), AttemptOutcome(EventKind.MISMATCH, version=9)),
        (Unknown(record(State.UNKNOWN)), AttemptOutcome(EventKind.UNKNOWN, fence=FENCE)),
        (Busy(4_000), AttemptOutcome(EventKind.IN_FLIGHT, retry_after=4_000)),
        (REFUSED, AttemptOutcome(EventKind.UNAVAILABLE, error=REFUSED)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_reply_that_does_not_grant_the_key_gives_its_outcome(
    reply: Reply | StoreUnavailable, verdict: AttemptOutcome
) -> None:
    driver = FlowDriver(my_attempt())
    driver.reply(reply)
    assert driver.outcome() == verdict


def test_a_claim_that_was_released_before_it_arrived_says_that_nothing_ran() -> None:
    driver = FlowDriver(my_attempt())
    driver.reply(Lost())
    verdict = driver.outcome()
    assert verdict.kind is EventKind.UNAVAILABLE
    assert isinstance(verdict.error, StoreUnavailable)
    assert not verdict.error.ambiguous
    assert "nothing ran" in str(verdict.error)


# --- lost replies (I9) ------------------------------------------------------------------------


def test_i9_an_ambiguous_failure_is_claimed_again_with_the_same_owner() -> None:
    driver = FlowDriver(my_attempt())
    first = driver.command(Claim)
    driver.reply(MAYBE, took=SECOND)
    assert driver.sleep().us == RETRY_FIRST_US
    assert driver.command(Claim) == first
    driver.reply(CLAIMED, took=SECOND)
    assert driver.grant().deadline == SECOND + RETRY_FIRST_US + LEASE, "from the last sending (I5)"


def test_i9_the_pauses_between_repeated_claims_grow_and_watch_no_key() -> None:
    driver = FlowDriver(my_attempt())
    slept = []
    for _ in range(CLAIM_TRIES - 1):
        driver.reply(MAYBE)
        slept.append(driver.sleep())
    assert slept == [Sleep(RETRY_FIRST_US), Sleep(2 * RETRY_FIRST_US)]


def test_i9_only_a_claim_that_was_sent_must_have_a_reply_of_its_own() -> None:
    """A failure of another claim leaves nothing behind; its own claim may have been applied."""
    driver = FlowDriver(my_attempt())
    driver.send(CommandResult(MAYBE, 0, 0, shared=True))
    driver.sleep()
    driver.expect(Claim)
    driver.reply(MAYBE)
    driver.sleep()
    driver.expect(RepeatClaim)
    nothing_sent = FlowDriver(my_attempt())
    for tries in range(CLAIM_TRIES):
        nothing_sent.send(CommandResult(MAYBE, 0, 0, shared=True))
        if tries < CLAIM_TRIES - 1:
            nothing_sent.sleep()
    assert nothing_sent.outcome() == AttemptOutcome(EventKind.UNAVAILABLE, error=MAYBE), (
        "nothing to give back"
    )


@pytest.mark.parametrize("reply", [Done(), Lost(), MAYBE, REFUSED], ids=str)
def test_a_claim_without_a_reply_is_released(reply: Reply | StoreUnavailable) -> None:
    driver = FlowDriver(my_attempt())
    for _ in range(CLAIM_TRIES - 1):
        driver.reply(MAYBE)
        driver.sleep()
    driver.reply(MAYBE)
    assert driver.command(Release) == Release(ID, ME, None)
    driver.reply(reply)
    deferred = Release(ID, ME, None) if isinstance(reply, StoreUnavailable) else None
    assert driver.outcome() == AttemptOutcome(EventKind.UNAVAILABLE, error=MAYBE, deferred=deferred)


@pytest.mark.parametrize("unclear", range(1, CLAIM_TRIES))
def test_a_definite_failure_after_an_ambiguous_one_releases_the_claim_too(unclear: int) -> None:
    """The first claim may be there although the second was refused."""
    driver = FlowDriver(my_attempt())
    for _ in range(unclear):
        driver.reply(MAYBE)
        driver.sleep()
    driver.reply(REFUSED)
    assert driver.command(Release) == Release(ID, ME, None)
    driver.reply(Done())
    assert driver.outcome() == AttemptOutcome(EventKind.UNAVAILABLE, error=REFUSED)


# --- waiting ----------------------------------------------------------------------------------


def test_waiting_pauses_grow_to_a_limit_and_watch_the_key() -> None:
    driver = FlowDriver(my_attempt(wait=10 * SECOND))
    pauses = []
    for _ in range(8):
        driver.reply(Busy(LEASE))
        ask = driver.sleep()
        assert ask.watch == ID
        pauses.append(ask.us)
    expected = [POLL_FIRST_US]
    while len(expected) < 8:
        expected.append(min(expected[-1] * POLL_GROWTH_PERCENT // 100, POLL_MAX_US))
    assert pauses == expected
    assert pauses[-1] == POLL_MAX_US


def test_waiting_ends_exactly_with_wait() -> None:
    driver = FlowDriver(my_attempt(wait=SECOND))
    while not driver.ended:
        driver.reply(Busy(123))
        if not driver.ended:
            driver.sleep()
    assert driver.now == SECOND
    assert driver.outcome() == AttemptOutcome(EventKind.WAIT_TIMEOUT, retry_after=123)


def test_the_wait_counts_from_the_first_claim_sent() -> None:
    driver = FlowDriver(my_attempt(wait=SECOND))
    driver.reply(Busy(5), took=SECOND - 1)
    assert driver.sleep().us == 1
    driver.reply(Busy(5))
    assert driver.outcome().kind is EventKind.WAIT_TIMEOUT


def test_a_waiting_caller_gets_the_outcome() -> None:
    driver = FlowDriver(my_attempt(wait=SECOND))
    driver.reply(Busy(5))
    driver.sleep()
    driver.reply(REPLAY)
    assert driver.outcome().kind is EventKind.REPLAYED


def test_i5_the_deadline_of_a_waiting_caller_counts_from_its_last_claim() -> None:
    driver = FlowDriver(my_attempt(wait=SECOND))
    driver.reply(Busy(5))
    driver.sleep()
    driver.reply(CLAIMED, took=7)
    assert driver.grant().deadline == POLL_FIRST_US + LEASE


# --- recovery ---------------------------------------------------------------------------------

UNKNOWN_REPLY = Unknown(record(State.UNKNOWN))
FOUND = Recovered(State.SUCCEEDED, b"found", "asked the bank")


def recovering() -> FlowDriver:
    driver = FlowDriver(my_attempt(recoverable=True))
    driver.reply(UNKNOWN_REPLY)
    assert driver.expect(Recover).record == UNKNOWN_REPLY.record
    return driver


def test_the_result_of_recover_is_resolved_and_the_key_claimed_again() -> None:
    driver = recovering()
    driver.send(FOUND)
    shown = UNKNOWN_REPLY.record.lease_until
    assert driver.command(Resolve) == Resolve(
        ID, FENCE, State.SUCCEEDED, b"found", "asked the bank", lease_until=shown
    )
    driver.reply(Done())
    driver.command(Claim)
    driver.reply(REPLAY)
    assert driver.outcome().kind is EventKind.REPLAYED


def test_a_key_decided_by_somebody_else_meanwhile_is_claimed_again_too() -> None:
    driver = recovering()
    driver.send(FOUND)
    driver.reply(Lost())
    driver.command(Claim)


def test_a_recover_that_cannot_tell_leaves_the_key_unknown() -> None:
    driver = recovering()
    driver.send(None)
    assert driver.outcome() == AttemptOutcome(EventKind.UNKNOWN, fence=FENCE)


def test_recover_is_called_once_only() -> None:
    driver = recovering()
    driver.send(FOUND)
    driver.reply(Done())
    driver.reply(UNKNOWN_REPLY)
    assert driver.outcome() == AttemptOutcome(EventKind.UNKNOWN, fence=FENCE)


def test_without_recover_the_outcome_is_unknown_at_once() -> None:
    driver = FlowDriver(my_attempt(recoverable=False))
    driver.reply(UNKNOWN_REPLY)
    assert driver.outcome().kind is EventKind.UNKNOWN


def test_a_resolve_is_repeated_and_then_given_up() -> None:
    driver = recovering()
    driver.send(FOUND)
    for _ in range(CLAIM_TRIES):
        driver.command(Resolve)
        driver.reply(MAYBE)
        driver.sleep()
    assert driver.outcome() == AttemptOutcome(EventKind.UNKNOWN, fence=FENCE)


def test_i9_a_resolve_whose_reply_was_lost_is_sent_again() -> None:
    driver = recovering()
    driver.send(FOUND)
    driver.reply(MAYBE)
    driver.sleep()
    driver.reply(Done())
    driver.command(Claim)
