"""The flow where its owner is late: bodies not begun, and the heartbeat beside a body."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.making import FENCE, ID, ME, NOW, OTHER, record
from tests.core.scripted import LEASE, MAYBE, REFUSED, SECOND, Script, grant, running, task

from oncekey.core.attempt_flow import attempt
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
    ApplyCommand,
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


def test_a_body_begins_only_with_some_of_its_lease_left() -> None:
    assert not starts_too_late(grant(), LEASE - LEASE // LATE_PART)
    assert starts_too_late(grant(), LEASE - LEASE // LATE_PART + 1)


def test_a_late_start_renews_first_and_counts_from_there() -> None:
    script = running()
    script.now = LEASE
    script.send(StartedTooLate(FRESH))
    assert script.command(Renew) == Renew(ID, ME, FENCE, LEASE)
    script.reply(Done(), took=SECOND)
    assert script.grant().deadline == 2 * LEASE, "from when the renewal was sent"
    script.send(Returned(b"answer", 2 * LEASE))
    assert script.command(Finish).owner == ME


def test_a_late_start_whose_claim_is_gone_claims_anew_and_never_runs_beside_the_other() -> None:
    """Given up as unknown, it is freed first: nobody else ran, and nothing happened here."""
    script = running()
    script.send(StartedTooLate(FRESH))
    script.reply(Lost())
    assert script.command(Release) == Release(ID, ME, FENCE)
    script.reply(Lost())
    assert script.command(Claim).owner == FRESH
    script.reply(Busy(7))
    assert script.verdict() == AttemptOutcome(EventKind.IN_FLIGHT, retry_after=7)


@pytest.mark.parametrize("how", [Done(), Lost(), REFUSED], ids=str)
def test_a_store_too_slow_to_begin_anything_ends_with_nothing_run(how: Any) -> None:
    script = running()
    bodies = 0
    while not script.ended:
        if isinstance(script.ask, ApplyCommand) and isinstance(script.ask.command, Renew):
            script.reply(how)
        elif isinstance(script.ask, ApplyCommand) and isinstance(script.ask.command, Claim):
            script.reply(Claimed(FENCE + bodies, 1, ()))
        elif isinstance(script.ask, ApplyCommand):
            script.reply(Done())
        else:
            script.grant()
            bodies += 1
            script.send(StartedTooLate(FRESH))
    assert bodies == (1 if how is REFUSED else LATE_TRIES)
    verdict = script.verdict()
    assert verdict.kind is EventKind.UNAVAILABLE
    assert isinstance(verdict.error, StoreUnavailable)
    assert not verdict.error.ambiguous


# --- what is owed to the key where the body did not begin -----------------------------------------


def test_a_claim_that_cannot_be_given_back_is_left_to_be_offered_on() -> None:
    """Else the key ends unknown although its caller was told that nothing ran."""
    script = running()
    script.send(StartedTooLate(FRESH))
    script.reply(REFUSED)
    release = script.command(Release)
    script.reply(REFUSED)
    assert script.verdict().deferred == release
    gone = running()
    gone.send(StartedTooLate(FRESH))
    gone.reply(Lost())
    gone.reply(REFUSED)
    assert gone.verdict().deferred == release, "not claimed anew: the old one must be freed first"
    unkept = Script(attempt(task()._replace(arguments=b"request")))
    unkept.reply(Claimed(FENCE, 1, ()))
    unkept.command(SaveStep)
    unkept.now = LEASE
    unkept.reply(REFUSED)
    unkept.reply(REFUSED)
    assert unkept.verdict().deferred == release


@pytest.mark.parametrize("reply", [Done(), Lost(), MAYBE], ids=str)
def test_arguments_that_come_too_late_free_a_key_that_was_given_up(reply: Any) -> None:
    """The body has not begun: its owner is the witness that nothing happened."""
    script = Script(attempt(task()._replace(arguments=b"request")))
    script.reply(Claimed(FENCE, 1, ()))
    script.command(SaveStep)
    script.reply(Lost())
    release = script.command(Release)
    script.reply(reply)
    if reply == Lost():  # taken over: the other one's outcome
        script.reply(Seen(record(SUCCEEDED, owner=OTHER, fence=FENCE + 1), NOW))
        assert script.verdict().kind is EventKind.REPLAYED
    else:
        assert script.verdict().kind is EventKind.UNAVAILABLE
        assert script.verdict().deferred == (release if reply is MAYBE else None)


def test_a_claim_whose_reply_was_lost_until_it_was_given_up_is_freed() -> None:
    script = Script(attempt(task(recoverable=True)))
    script.reply(MAYBE)
    script.sleep()
    script.reply(Unknown(record(UNKNOWN, owner=ME), NOW))
    assert script.command(Release) == Release(ID, ME, FENCE)
    script.reply(Done())
    assert script.verdict().kind is EventKind.UNAVAILABLE


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
def test_an_outcome_refused_while_the_key_is_still_its_owners_is_offered_on(
    seen: Any, offered: bool
) -> None:
    """A transaction that was deciding the key stood in the way, and may yet roll back."""
    script = running()
    script.send(Returned(b"answer", LEASE))
    finish = script.command(Finish)
    script.reply(Lost())
    script.command(Look)
    script.reply(Seen(seen, NOW))
    verdict = script.verdict()
    assert (verdict.kind, verdict.unrecorded) == (EventKind.LOST, True)
    assert verdict.deferred == (finish if offered else None)


# --- heartbeat ----------------------------------------------------------------------------------

BEAT = LEASE // RENEWALS_PER_LEASE


def test_a_heartbeat_renews_at_a_third_of_the_lease() -> None:
    script = Script(heartbeat(grant()))
    for number in (1, 2, 3):
        assert script.sleep().us == BEAT
        assert script.command(Renew) == Renew(ID, ME, FENCE, LEASE)
        sent_at = script.now
        script.reply(Done(), took=number)
        assert script.expect(DeadlineExtended).deadline == sent_at + LEASE, "from the sending (I5)"
        script.send(None)
    assert not script.ended


def test_a_lost_claim_ends_the_heartbeat_of_what_may_be_taken_over() -> None:
    script = Script(heartbeat(grant(retry_safe=True)))
    script.sleep()
    script.reply(Lost())
    assert script.ended


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
def test_a_claim_nobody_may_take_over_is_lost_only_where_somebody_decided(
    seen: Any, ends: bool
) -> None:
    """Else its body is the only witness of what it does, and must not be stopped half-way."""
    script = Script(heartbeat(grant()))
    script.sleep()
    script.reply(Lost())
    script.sleep()
    assert script.command(Look) == Look(ID)
    script.reply(seen)
    assert script.ended is ends
    if not ends:
        assert script.sleep().us == BEAT
        script.command(Renew)


def test_the_heartbeat_of_what_nobody_may_take_over_outlasts_its_store() -> None:
    script = Script(heartbeat(grant()))
    script.sleep()
    while script.now < 10 * LEASE:
        script.reply(MAYBE)
        assert script.sleep().us >= 1
    script.reply(Done())
    assert script.expect(DeadlineExtended).deadline == script.now + LEASE


def test_a_failing_renewal_is_repeated_sooner_until_the_deadline() -> None:
    script = Script(heartbeat(grant(retry_safe=True)))
    script.sleep()
    pauses = []
    while True:
        script.reply(MAYBE)
        if script.ended:
            break
        pauses.append(script.sleep().us)
    assert script.now == LEASE
    assert set(pauses) == {BEAT // 4}


def test_after_a_failure_and_a_success_the_beat_is_regular_again() -> None:
    script = Script(heartbeat(grant()))
    script.sleep()
    script.reply(MAYBE)
    script.sleep()
    script.reply(Done())
    assert script.expect(DeadlineExtended).deadline == BEAT + BEAT // 4 + LEASE
    script.send(None)
    assert script.sleep().us == BEAT


def test_the_last_pause_ends_at_the_deadline_and_is_never_nothing() -> None:
    script = Script(heartbeat(grant()))
    script.sleep()
    script.reply(MAYBE, took=LEASE - BEAT - 3)
    assert script.expect(Sleep).us == 3
    tiny = Script(heartbeat(grant(lease=3, deadline=3)))
    tiny.sleep()
    tiny.reply(MAYBE)
    assert tiny.expect(Sleep).us == 1
