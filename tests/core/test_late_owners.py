"""Late owners: bodies that must not start any more, and the heartbeat of a running body."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.sample_records import FENCE, ID, ME, NOW, OTHER, record
from tests.core.scripted_driver import (
    LEASE,
    MAYBE,
    REFUSED,
    SECOND,
    FlowDriver,
    grant,
    my_attempt,
    running,
)

from oncekey.core.commands import (
    Busy,
    Claim,
    Claimed,
    Done,
    Finish,
    Look,
    Lost,
    Release,
    Renew,
    SaveStep,
    Seen,
    Unknown,
)
from oncekey.core.effects import (
    AttemptOutcome,
    DeadlineExtended,
    Returned,
    Sleep,
    StartedTooLate,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.events import EventKind
from oncekey.core.heartbeat_flow import RENEWALS_PER_LEASE, heartbeat
from oncekey.core.late_owner import LATE_PART, LATE_TRIES, starts_too_late
from oncekey.core.record import State

SUCCEEDED, FAILED, UNKNOWN = State.SUCCEEDED, State.FAILED, State.UNKNOWN


# --- too late to begin --------------------------------------------------------------------------

FRESH = b"fresh" + bytes(11)


def test_a_body_starts_only_if_a_third_of_its_lease_is_left() -> None:
    assert not starts_too_late(grant(), LEASE - LEASE // LATE_PART)
    assert starts_too_late(grant(), LEASE - LEASE // LATE_PART + 1)


def test_a_late_start_renews_the_lease_and_counts_from_there() -> None:
    driver = running()
    driver.now = LEASE
    driver.send(StartedTooLate(FRESH))
    assert driver.command(Renew) == Renew(ID, ME, FENCE, LEASE)
    driver.reply(Done(), took=SECOND)
    assert driver.grant().deadline == 2 * LEASE, "from when the renewal was sent"
    driver.send(Returned(b"answer", 2 * LEASE))
    assert driver.command(Finish).owner == ME


def test_a_late_start_whose_claim_is_lost_claims_again() -> None:
    """If it was given up as unknown it is freed first: nobody ran."""
    driver = running()
    driver.send(StartedTooLate(FRESH))
    driver.reply(Lost())
    assert driver.command(Release) == Release(ID, ME, FENCE)
    driver.reply(Lost())
    assert driver.command(Claim).owner == FRESH
    driver.reply(Busy(7))
    assert driver.outcome() == AttemptOutcome(EventKind.IN_FLIGHT, retry_after=7)


@pytest.mark.parametrize("how", [Done(), Lost(), REFUSED], ids=str)
def test_with_a_store_too_slow_to_start_in_time_nothing_runs(how: Any) -> None:
    driver = running()
    bodies = 0
    while not driver.ended:
        if isinstance(driver.effect, Renew):
            driver.reply(how)
        elif isinstance(driver.effect, Claim):
            driver.reply(Claimed(FENCE + bodies, 1, ()))
        elif isinstance(driver.effect, Release):
            driver.reply(Done())
        else:
            driver.grant()
            bodies += 1
            driver.send(StartedTooLate(FRESH))
    assert bodies == (1 if how is REFUSED else LATE_TRIES)
    verdict = driver.outcome()
    assert verdict.kind is EventKind.UNAVAILABLE
    assert isinstance(verdict.error, StoreUnavailable)
    assert not verdict.error.ambiguous


# --- what is owed to the key where the body did not begin -----------------------------------------


def test_a_release_that_the_store_does_not_take_is_deferred() -> None:
    """Otherwise the key becomes unknown although nothing ran."""
    driver = running()
    driver.send(StartedTooLate(FRESH))
    driver.reply(REFUSED)
    release = driver.command(Release)
    driver.reply(REFUSED)
    assert driver.outcome().deferred == release
    gone = running()
    gone.send(StartedTooLate(FRESH))
    gone.reply(Lost())
    gone.reply(REFUSED)
    assert gone.outcome().deferred == release, "not claimed anew: the old one must be freed first"
    unkept = FlowDriver(my_attempt(arguments=b"request"))
    unkept.reply(Claimed(FENCE, 1, ()))
    unkept.command(SaveStep)
    unkept.now = LEASE
    unkept.reply(REFUSED)
    unkept.reply(REFUSED)
    assert unkept.outcome().deferred == release


@pytest.mark.parametrize("reply", [Done(), Lost(), MAYBE], ids=str)
def test_a_key_given_up_before_its_arguments_were_stored_is_freed(reply: Any) -> None:
    """The body has not started, and only its owner knows that."""
    driver = FlowDriver(my_attempt(arguments=b"request"))
    driver.reply(Claimed(FENCE, 1, ()))
    driver.command(SaveStep)
    driver.reply(Lost())
    release = driver.command(Release)
    driver.reply(reply)
    if reply == Lost():  # taken over: the other one's outcome
        driver.reply(Seen(record(SUCCEEDED, owner=OTHER, fence=FENCE + 1), NOW))
        assert driver.outcome().kind is EventKind.REPLAYED
    else:
        assert driver.outcome().kind is EventKind.UNAVAILABLE
        assert driver.outcome().deferred == (release if reply is MAYBE else None)


def test_a_claim_whose_reply_was_lost_until_it_was_given_up_is_freed() -> None:
    driver = FlowDriver(my_attempt(recoverable=True))
    driver.reply(MAYBE)
    driver.sleep()
    driver.reply(Unknown(record(UNKNOWN, owner=ME), NOW))
    assert driver.command(Release) == Release(ID, ME, FENCE)
    driver.reply(Done())
    assert driver.outcome().kind is EventKind.UNAVAILABLE


@pytest.mark.parametrize(
    ("seen", "offered"),
    [
        (record(UNKNOWN, owner=ME), True),
        (record(owner=ME), True),
        (record(State.ABSENT, owner=ME), False),
        (record(owner=OTHER, fence=FENCE + 1), False),
    ],
    ids=["given up", "pending", "freed", "another's"],
)
def test_a_finish_refused_while_the_key_is_still_its_owners_is_deferred(
    seen: Any, offered: bool
) -> None:
    """A caller's transaction that decides the key is open, and may yet roll back."""
    driver = running()
    driver.send(Returned(b"answer", LEASE))
    finish = driver.command(Finish)
    driver.reply(Lost())
    driver.command(Look)
    driver.reply(Seen(seen, NOW))
    verdict = driver.outcome()
    assert (verdict.kind, verdict.unrecorded) == (EventKind.LOST, True)
    assert verdict.deferred == (finish if offered else None)


# --- heartbeat ----------------------------------------------------------------------------------

BEAT = LEASE // RENEWALS_PER_LEASE


def test_a_heartbeat_renews_at_a_third_of_the_lease() -> None:
    driver = FlowDriver(heartbeat(grant()))
    for number in (1, 2, 3):
        assert driver.sleep().us == BEAT
        assert driver.command(Renew) == Renew(ID, ME, FENCE, LEASE)
        sent_at = driver.now
        driver.reply(Done(), took=number)
        assert driver.expect(DeadlineExtended).deadline == sent_at + LEASE, "from the sending (I5)"
        driver.send(None)
    assert not driver.ended


def test_a_lost_claim_ends_the_heartbeat_of_a_retry_safe_body() -> None:
    driver = FlowDriver(heartbeat(grant(retry_safe=True)))
    driver.sleep()
    driver.reply(Lost())
    assert driver.ended


@pytest.mark.parametrize(
    ("seen", "ends"),
    [
        (Seen(record(UNKNOWN, owner=ME), NOW), False),
        (Seen(record(owner=ME), NOW), False),
        (MAYBE, False),
        (Seen(record(State.ABSENT, owner=ME), NOW), True),
        (Seen(record(SUCCEEDED, owner=ME), NOW), True),
        (Seen(record(fence=FENCE + 1), NOW), True),
        (Seen(None, NOW), True),
    ],
    ids=["given up", "renewed after all", "no answer", "freed", "decided", "another's", "gone"],
)
def test_a_claim_that_is_not_retry_safe_is_lost_only_if_the_key_was_decided(
    seen: Any, ends: bool
) -> None:
    """Until then only its body knows what it does, and it must not be stopped halfway."""
    driver = FlowDriver(heartbeat(grant()))
    driver.sleep()
    driver.reply(Lost())
    driver.sleep()
    assert driver.command(Look) == Look(ID)
    driver.reply(seen)
    assert driver.ended is ends
    if not ends:
        assert driver.sleep().us == BEAT
        driver.command(Renew)


def test_the_heartbeat_of_a_body_that_is_not_retry_safe_goes_on_while_the_store_is_away() -> None:
    driver = FlowDriver(heartbeat(grant()))
    driver.sleep()
    while driver.now < 10 * LEASE:
        driver.reply(MAYBE)
        assert driver.sleep().us >= 1
    driver.reply(Done())
    assert driver.expect(DeadlineExtended).deadline == driver.now + LEASE


def test_a_failing_renewal_is_repeated_sooner_until_the_deadline() -> None:
    driver = FlowDriver(heartbeat(grant(retry_safe=True)))
    driver.sleep()
    pauses = []
    while True:
        driver.reply(MAYBE)
        if driver.ended:
            break
        pauses.append(driver.sleep().us)
    assert driver.now == LEASE
    assert set(pauses) == {BEAT // 4}


def test_after_a_failed_renewal_and_a_success_the_heartbeat_is_regular_again() -> None:
    driver = FlowDriver(heartbeat(grant()))
    driver.sleep()
    driver.reply(MAYBE)
    driver.sleep()
    driver.reply(Done())
    assert driver.expect(DeadlineExtended).deadline == BEAT + BEAT // 4 + LEASE
    driver.send(None)
    assert driver.sleep().us == BEAT


def test_the_last_pause_ends_at_the_deadline_and_is_never_zero() -> None:
    driver = FlowDriver(heartbeat(grant()))
    driver.sleep()
    driver.reply(MAYBE, took=LEASE - BEAT - 3)
    assert driver.expect(Sleep).us == 3
    tiny = FlowDriver(heartbeat(grant(lease=3, deadline=3)))
    tiny.sleep()
    tiny.reply(MAYBE)
    assert tiny.expect(Sleep).us == 1
