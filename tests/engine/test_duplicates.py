"""Duplicates of a key share a claim in flight, a poller, and the end of an attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.engine.engine_parts import parts_with

from oncekey.core.commands import Busy, Claim, Claimed, Finish, Mismatched, Replay, Unknown
from oncekey.core.errors import StoreUnavailable
from oncekey.core.policy import Policy
from oncekey.core.record import State
from oncekey.core.state_machine import decide
from oncekey.engine.attempts.runner_base import Progress
from oncekey.engine.batches.duplicates import Duplicates, Waiter
from oncekey.engine.batches.shared_claims import outcome_of

ID = b"i" * 16
OUTCOME = Replay(State.SUCCEEDED, b"body", 1, 7, 100)
DEAD = decide(None, Claim(ID, b"dead", b"\x01f", 10, 100, 100, False), 1_000).write
assert DEAD is not None
UNKNOWN_REPLY = Unknown(DEAD)


class One(Waiter):
    """A waiter that counts how often it is woken."""

    def __init__(self, owner: bytes, fingerprint: bytes = b"\x01f", id: bytes = ID) -> None:
        super().__init__(Claim(id, owner, fingerprint, 10, 100, 100, False), self._count)
        self.woken = 0

    def _count(self) -> None:
        self.woken += 1


def waiters_of(count: int) -> list[One]:
    return [One(b"%d" % number) for number in range(count)]


def empty(duplicates: Duplicates) -> bool:
    return not duplicates._leaders and not duplicates._waiting


# --- a claim in flight ----------------------------------------------------------------------------


def test_a_leader_without_followers_leaves_no_entry_behind() -> None:
    duplicates, one = Duplicates(), One(b"a")
    assert duplicates.lead(one.claim)
    duplicates.replied(one.claim, Claimed(1, 1, ()))
    assert empty(duplicates)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [(Claimed(7, 1, ()), Busy(10)), (OUTCOME, OUTCOME)],
    ids=["claimed", "ended"],
)
def test_waiters_get_a_reply_to_the_leader_that_cannot_change(
    reply: Claimed | Replay, expected: object
) -> None:
    duplicates, (first, *others) = Duplicates(), waiters_of(5)
    assert duplicates.lead(first.claim)
    assert not any(duplicates.lead(one.claim) or duplicates.lead_or_wait(one) for one in others)
    duplicates.replied(first.claim, reply)
    assert [(one.reply, one.leads, one.woken) for one in others] == [(expected, False, 1)] * 4
    assert empty(duplicates)


@pytest.mark.parametrize("reply", [Busy(5), UNKNOWN_REPLY, Mismatched(1), StoreUnavailable("gone")])
def test_a_reply_that_may_have_been_decided_before_a_waiter_came_makes_it_the_next_leader(
    reply: Busy,
) -> None:
    """One of them sends the next claim, whose reply is then a reply to all of them."""
    duplicates, (first, second, *others) = Duplicates(), waiters_of(5)
    duplicates.lead(first.claim)
    for one in (second, *others):
        duplicates.lead_or_wait(one)
    duplicates.replied(first.claim, reply)
    assert (second.leads, second.reply, second.woken) == (True, None, 1)
    assert [one.woken for one in others] == [0, 0, 0]
    duplicates.replied(second.claim, reply)
    assert [one.reply for one in others] == [reply] * 3
    assert empty(duplicates)


def test_i7_a_waiter_with_another_request_gets_a_mismatch_or_leads_itself() -> None:
    duplicates, first = Duplicates(), One(b"a")
    same, other = One(b"b"), One(b"c", b"\x01other")
    duplicates.lead(first.claim)
    duplicates.lead_or_wait(same)
    duplicates.lead_or_wait(other)
    duplicates.replied(first.claim, OUTCOME)
    assert (same.reply, other.reply) == (OUTCOME, Mismatched(1))
    duplicates.lead(first.claim)
    duplicates.lead_or_wait(same)
    duplicates.lead_or_wait(other)
    duplicates.replied(first.claim, Busy(5))
    duplicates.replied(same.claim, Busy(5))
    assert other.leads, "a caller's transaction may hold a key whose request nobody has seen"


def test_i8_claims_of_one_key_do_not_affect_another_key() -> None:
    duplicates, one, other = Duplicates(), One(b"a"), One(b"b", id=b"j" * 16)
    assert duplicates.lead(one.claim)
    assert duplicates.lead(other.claim)
    duplicates.replied(one.claim, OUTCOME)
    assert duplicates._leaders == {other.claim.id: other.claim}


def test_i11_a_leader_that_leaves_passes_the_lead_on() -> None:
    duplicates, (first, second, third) = Duplicates(), waiters_of(3)
    duplicates.lead(first.claim)
    duplicates.lead_or_wait(second)
    duplicates.lead_or_wait(third)
    duplicates.leave(first.claim, first)
    assert (second.leads, second.woken) == (True, 1)
    duplicates.leave(second.claim, second)
    assert (third.leads, third.woken) == (True, 1)
    duplicates.leave(third.claim, third)
    duplicates.leave(third.claim, third)
    assert empty(duplicates)


def test_i11_a_waiter_can_take_the_lead_from_a_leader_that_does_not_come_back() -> None:
    duplicates, (first, second, third) = Duplicates(), waiters_of(3)
    duplicates.lead(first.claim)
    duplicates.lead_or_wait(second)
    duplicates.lead_or_wait(third)
    duplicates.take_lead(second)
    assert second.leads
    duplicates.replied(first.claim, OUTCOME)  # it came back after all
    assert third.woken == 0
    duplicates.replied(second.claim, OUTCOME)
    assert third.reply == OUTCOME
    assert empty(duplicates)


# --- waiting for an attempt's end -----------------------------------------------------------------


def asleep(count: int) -> tuple[Duplicates, list[One]]:
    duplicates, waiters = Duplicates(), waiters_of(count)
    assert [duplicates.start_sleep(one) for one in waiters] == [True] + [False] * (count - 1)
    return duplicates, waiters


def test_one_waiter_polls_and_the_others_sleep_until_it_gets_an_outcome() -> None:
    duplicates, (poller, *others) = asleep(4)
    for reply in (Busy(5), OUTCOME):
        duplicates.leave(poller.claim, poller)
        assert duplicates.lead(poller.claim)
        duplicates.replied(poller.claim, reply)
        assert [one.woken for one in others] == [int(reply is OUTCOME)] * 3
    assert [one.reply for one in others] == [OUTCOME] * 3
    duplicates.poller_left(ID, poller.claim.owner)
    assert empty(duplicates)


def test_sleeping_waiters_get_the_failure_of_the_poller() -> None:
    duplicates, (poller, *others) = asleep(4)
    duplicates.leave(poller.claim, poller)
    duplicates.lead(poller.claim)
    duplicates.replied(poller.claim, gone := StoreUnavailable("gone"))
    assert [one.reply for one in others] == [gone] * 3


def test_another_waiter_polls_after_the_poller_has_left() -> None:
    duplicates, (poller, second, third) = asleep(3)
    duplicates.leave(poller.claim, poller)
    duplicates.poller_left(ID, poller.claim.owner)
    assert [(second.woken, second.reply), (third.woken, third.reply)] == [(1, None), (0, None)]
    assert duplicates.start_sleep(second), "it polls from now on"
    duplicates.leave(second.claim, second)
    duplicates.poller_left(ID, second.claim.owner)
    assert third.woken == 1
    duplicates.leave(third.claim, third)
    duplicates.poller_left(ID, third.claim.owner)
    assert empty(duplicates)


def test_a_poller_that_claims_the_key_keeps_the_others_asleep_until_it_ends() -> None:
    duplicates, (poller, *others) = asleep(3)
    duplicates.leave(poller.claim, poller)
    duplicates.lead(poller.claim)
    duplicates.replied(poller.claim, Claimed(7, 2, (), taken_over=True))
    assert [one.woken for one in others] == [0, 0]
    duplicates.key_ended(poller.claim, OUTCOME)
    assert [one.reply for one in others] == [OUTCOME] * 2


def test_the_end_of_an_attempt_gives_its_outcome_to_all_waiters() -> None:
    duplicates, sleepers = asleep(3)
    leader, asking = One(b"x"), One(b"y")
    duplicates.lead(leader.claim)
    duplicates.lead_or_wait(asking)
    duplicates.key_ended(leader.claim, OUTCOME)
    assert [one.reply for one in (*sleepers, asking)] == [OUTCOME] * 4
    duplicates.replied(leader.claim, Busy(1))
    duplicates.poller_left(ID, sleepers[0].claim.owner)
    assert empty(duplicates)


def test_the_end_of_an_attempt_without_an_outcome_wakes_one_waiter() -> None:
    """The key was freed or is unknown: the first to ask the store gets a reply for all."""
    duplicates, (poller, *others) = asleep(3)
    duplicates.key_ended(One(b"owner").claim, None)
    assert (poller.woken, poller.reply, [one.woken for one in others]) == (1, None, [0, 0])


def test_a_waiter_that_begins_to_sleep_during_a_claim_does_not_get_its_reply() -> None:
    duplicates, (poller, other) = asleep(2)
    duplicates.leave(poller.claim, poller)
    duplicates.lead(poller.claim)
    late = One(b"late")
    duplicates.start_sleep(late)
    duplicates.replied(poller.claim, UNKNOWN_REPLY)
    assert (other.reply, late.reply) == (UNKNOWN_REPLY, None)
    duplicates.poller_left(ID, poller.claim.owner)
    assert late.woken == 1, "it asks for itself"


# --- how an attempt ended -------------------------------------------------------------------------


def held(number: int) -> Progress:
    """An attempt that holds its key, so far."""
    job = parts_with(policy=Policy(keep="1s")).jobs.make("op", "k", "", None, None, {})
    progress = Progress(job, None)
    progress.reply = Claimed(7, number, ())
    return progress


def test_i3_the_outcome_for_duplicates_is_the_stored_one_and_never_outlives_its_record() -> None:
    progress = held(2)
    assert outcome_of(progress, 5) is None
    progress.stored = Finish(ID, b"a", 7, State.FAILED, b"error"), 10
    assert outcome_of(progress, 40) == Replay(State.FAILED, b"error", 2, 7, 1_000_000 - 30)


def test_an_attempt_that_ended_unknown_has_no_outcome_for_its_duplicates() -> None:
    progress = held(1)
    progress.stored = Finish(ID, b"a", 7, State.UNKNOWN, b""), 0
    assert outcome_of(progress, 0) is None


# --- between two steps of another thread ----------------------------------------------------------


class _BetweenSteps(dict[bytes, Any]):
    """A registry that lets somebody act just before an entry is looked for or taken out."""

    def __init__(self) -> None:
        self.acts: list[Callable[[], object]] = []

    def pop(self, *args: Any) -> Any:
        found = super().pop(*args)
        if self.acts:
            self.acts.pop(0)()
        return found


@pytest.mark.parametrize("reply", [Claimed(7, 1, ()), Busy(5)])
def test_i11_a_waiter_that_comes_while_the_leader_leaves_is_not_forgotten(
    reply: Claimed | Busy,
) -> None:
    """Whoever comes after the leader was taken out leads; whoever came before gets the reply, or
    leads if it may have been decided earlier."""
    for before in (True, False):
        duplicates, (first, second) = Duplicates(), waiters_of(2)
        leaders = _BetweenSteps()
        duplicates._leaders = leaders
        assert duplicates.lead(first.claim)
        if before:
            duplicates.lead_or_wait(second)
            duplicates.replied(first.claim, reply)
            assert second.woken == 1
        else:
            leaders.acts = [lambda d=duplicates, w=second: d.lead_or_wait(w)]  # type: ignore[misc]
            duplicates.replied(first.claim, reply)
            assert second.leads
            duplicates.replied(second.claim, reply)
        if second.leads and before:
            duplicates.replied(second.claim, reply)
        assert empty(duplicates)
