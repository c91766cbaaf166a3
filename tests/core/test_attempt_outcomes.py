"""The flow of an attempt after its body: storing the outcome, or being overtaken."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.core.sample_records import FENCE, FINGERPRINT, ID, ME, NOW, OTHER_FINGERPRINT, record
from tests.core.scripted_driver import (
    KEEP,
    LEASE,
    MAYBE,
    REFUSED,
    SECOND,
    FlowDriver,
    grant,
    my_attempt,
    running,
)

from oncekey.core.attempt_flow import (
    closing_command,
)
from oncekey.core.codec import StoredError, unpack
from oncekey.core.commands import (
    Claimed,
    Done,
    Finish,
    Look,
    Lost,
    Release,
    Reply,
    SaveStep,
    Seen,
)
from oncekey.core.effects import (
    AttemptOutcome,
    Overtaken,
    Raised,
    Returned,
    Sleep,
)
from oncekey.core.errors import LeaseLost, NotStarted, StoreUnavailable, Terminal
from oncekey.core.events import EventKind
from oncekey.core.policy import STORE_TIMEOUT_DEFAULT_US, PolicyTimes
from oncekey.core.record import State, Step
from oncekey.core.step_flow import RETRY_FIRST_US, RETRY_MAX_US
from oncekey.core.step_format import ARGUMENTS

SUCCEEDED, FAILED, UNKNOWN = State.SUCCEEDED, State.FAILED, State.UNKNOWN


# --- returning ----------------------------------------------------------------------------------


def test_i13_the_outcome_is_stored_before_the_caller_gets_it() -> None:
    driver = running()
    returned = Returned(b"answer", LEASE)
    driver.send(returned)
    assert driver.command(Finish) == Finish(ID, ME, FENCE, SUCCEEDED, b"answer")
    assert not driver.ended
    driver.reply(Done())
    assert driver.outcome() == AttemptOutcome(
        EventKind.FINISHED, b"answer", SUCCEEDED, 2, FENCE, KEEP, returned
    )


def test_a_value_that_is_not_stored_is_returned_raw() -> None:
    driver = running()
    raw = object()
    driver.send(Returned(b"stone", LEASE, raw, kept=False))
    driver.reply(Done())
    verdict = driver.outcome()
    assert verdict.raw is raw
    assert not verdict.kept


@pytest.mark.parametrize("failure", [MAYBE, REFUSED], ids=str)
@pytest.mark.parametrize(
    "deadline", [LEASE, 0, -LEASE], ids=["in time", "at its deadline", "long after it"]
)
def test_i4_a_finish_is_repeated_until_store_timeout_also_after_the_deadline(
    failure: StoreUnavailable, deadline: int
) -> None:
    """It is compare-and-set, so sending it late does no harm."""
    driver = running()
    returned = Returned(b"answer", deadline, object())
    driver.send(returned)
    first = driver.command(Finish)
    pauses = []
    while not driver.ended:
        assert driver.command(Finish) == first
        driver.reply(failure)
        if not driver.ended:
            pauses.append(driver.sleep().us)
    assert driver.now == STORE_TIMEOUT_DEFAULT_US
    assert pauses[:3] == [RETRY_FIRST_US, 2 * RETRY_FIRST_US, 4 * RETRY_FIRST_US]
    assert max(pauses) <= RETRY_MAX_US
    assert driver.outcome() == AttemptOutcome(
        EventKind.UNAVAILABLE,
        b"answer",
        returned=returned,
        error=failure,
        deferred=first,
        unrecorded=True,
    )


def test_a_caller_waits_for_the_store_no_longer_than_store_timeout() -> None:
    driver = running(store_timeout=SECOND)
    driver.send(Returned(b"answer", 5 * SECOND))
    finish = driver.command(Finish)
    begun = driver.now
    while not driver.ended:
        driver.reply(MAYBE)
        if not driver.ended:
            driver.sleep()
    assert SECOND <= driver.now - begun < SECOND + RETRY_MAX_US
    assert driver.outcome().deferred == finish


def test_i9_a_finish_whose_reply_was_lost_is_done_when_repeated() -> None:
    driver = running()
    driver.send(Returned(b"answer", LEASE))
    driver.reply(MAYBE)
    driver.sleep()
    driver.reply(Done())
    assert driver.outcome().kind is EventKind.FINISHED


# --- raising ------------------------------------------------------------------------------------

PLAIN, STOP = ValueError("no"), KeyboardInterrupt("stop")
GONE, FINAL, EARLY = asyncio.CancelledError(), Terminal("declined"), NotStarted("no funds asked")


@pytest.mark.parametrize(
    ("error", "retry_safe", "state"),
    [
        (PLAIN, False, FAILED),
        (PLAIN, True, None),
        (FINAL, False, FAILED),
        (FINAL, True, FAILED),
        (EARLY, False, None),
        (EARLY, True, None),
        (STOP, False, UNKNOWN),
        (STOP, True, None),
        (GONE, False, UNKNOWN),
        (GONE, True, None),
        (SystemExit(1), False, UNKNOWN),
        (LeaseLost("late"), False, UNKNOWN),
        (LeaseLost("late"), True, None),
    ],
    ids=repr,
)
def test_the_error_of_a_body_decides_what_becomes_of_its_key(
    error: BaseException, retry_safe: bool, state: State | None
) -> None:
    """None: the key is freed. Otherwise the failure is stored in this state."""
    times = PolicyTimes(LEASE, KEEP, 0, 0, retry_safe)
    closing = closing_command(grant(), times, error)
    if state is None:
        assert closing == Release(ID, ME, FENCE)
        return
    assert isinstance(closing, Finish)
    assert closing[:4] == (ID, ME, FENCE, state)
    assert unpack(closing.body) == StoredError(type(error).__name__, str(error))


@pytest.mark.parametrize(
    ("error", "command", "kind", "state"),
    [
        (PLAIN, Finish, EventKind.FINISHED, FAILED),
        (STOP, Finish, EventKind.FINISHED, UNKNOWN),
        (EARLY, Release, EventKind.RELEASED, FAILED),
    ],
    ids=repr,
)
def test_the_bodys_own_error_is_raised_again(
    error: BaseException, command: type[Any], kind: EventKind, state: State
) -> None:
    driver = running()
    driver.send(Raised(error, LEASE))
    driver.command(command)
    driver.reply(Done())
    assert driver.outcome() == AttemptOutcome(kind, b"", state, 2, FENCE, error=error)


def test_the_error_of_the_body_is_raised_rather_than_that_of_the_store() -> None:
    driver = running()
    driver.send(Raised(PLAIN, deadline=0))
    driver.reply(MAYBE, took=STORE_TIMEOUT_DEFAULT_US)
    verdict = driver.outcome()
    assert (verdict.kind, verdict.error) == (EventKind.UNAVAILABLE, PLAIN)


# --- overtaken ----------------------------------------------------------------------------------

WON = record(SUCCEEDED, owner=b"winner", fence=FENCE + 1, attempt=3)


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (
            Seen(WON, NOW),
            AttemptOutcome(EventKind.REPLAYED, b"stored", SUCCEEDED, 3, FENCE + 1, 990),
        ),
        (
            Seen(WON._replace(state=FAILED), NOW),
            AttemptOutcome(EventKind.REPLAYED, b"stored", FAILED, 3, FENCE + 1, 990),
        ),
        (
            Seen(WON._replace(state=UNKNOWN), NOW),
            AttemptOutcome(EventKind.UNKNOWN, fence=FENCE + 1),
        ),
        (Seen(record(), NOW), AttemptOutcome(EventKind.LOST)),
        (Seen(record(State.ABSENT), NOW), AttemptOutcome(EventKind.LOST)),
        (Seen(WON._replace(fingerprint=OTHER_FINGERPRINT), NOW), AttemptOutcome(EventKind.LOST)),
        (Seen(WON, WON.expires_at), AttemptOutcome(EventKind.LOST)),
        (Seen(None, NOW), AttemptOutcome(EventKind.LOST)),
        (MAYBE, AttemptOutcome(EventKind.LOST)),
    ],
    ids=[
        "winner succeeded",
        "winner failed",
        "unknown",
        "still held",
        "freed",
        "another request",
        "expired",
        "swept",
        "store down",
    ],
)
@pytest.mark.parametrize("how", ["finish", "release", "heartbeat"])
def test_i2_an_overtaken_caller_gets_the_outcome_of_the_winner(
    how: str, seen: Reply | StoreUnavailable, verdict: AttemptOutcome
) -> None:
    driver = running()
    mine = Returned(b"mine", LEASE)
    if how == "heartbeat":
        driver.send(Overtaken())
    else:
        driver.send(mine if how == "finish" else Raised(EARLY, LEASE))
        driver.reply(Lost())
    assert driver.command(Look) == Look(ID)
    driver.reply(seen)
    if how == "heartbeat" and seen is MAYBE:
        verdict = driver.outcome()
        assert (verdict.kind, verdict.body) == (EventKind.UNAVAILABLE, b"")
        return
    if how == "finish":  # its own answer goes along where there is no other
        verdict = replace(verdict, unrecorded=True)
        if verdict.kind in (EventKind.LOST, EventKind.UNKNOWN):
            verdict = AttemptOutcome(EventKind.LOST, b"mine", returned=mine, unrecorded=True)
    assert driver.outcome() == verdict


@pytest.mark.parametrize(
    "seen", [MAYBE, Seen(record(owner=ME), NOW)], ids=["store down", "still ours"]
)
def test_a_stopped_caller_whom_nobody_overtook_is_told_that_the_store_was_away(
    seen: Seen | StoreUnavailable,
) -> None:
    driver = running()
    driver.send(Overtaken())
    assert driver.command(Look) == Look(ID)
    driver.reply(seen)
    outcome = driver.outcome()
    assert outcome.kind is EventKind.UNAVAILABLE
    assert isinstance(outcome.error, StoreUnavailable)
    assert outcome.error.__cause__ is (MAYBE if seen is MAYBE else None)


@pytest.mark.parametrize("how", ["finish", "heartbeat"])
def test_an_interruption_reaches_the_caller_whoever_won(how: str) -> None:
    driver = running()
    if how == "heartbeat":
        driver.send(Overtaken(STOP))
    else:
        driver.send(Raised(STOP, LEASE))
        driver.reply(Lost())
    assert driver.outcome() == AttemptOutcome(EventKind.LOST, error=STOP)


def test_an_overtaken_caller_whose_body_raised_gets_the_winners_outcome() -> None:
    driver = running()
    driver.send(Overtaken(PLAIN))
    driver.reply(Seen(WON, NOW))
    assert driver.outcome().kind is EventKind.REPLAYED


def test_i7_the_winners_outcome_is_replayed_until_it_expires() -> None:
    driver = running()
    driver.send(Overtaken())
    driver.reply(Seen(WON, WON.expires_at - 1))
    assert driver.outcome().expires_in == 1


# --- the arguments of an operation that may be finished without its caller ------------------------


def with_arguments(*steps: Step) -> FlowDriver:
    driver = FlowDriver(my_attempt(arguments=b"arguments"))
    driver.reply(Claimed(FENCE, 1, steps))
    return driver


def test_arguments_are_stored_before_the_body_starts() -> None:
    driver = with_arguments()
    assert driver.command(SaveStep) == SaveStep(ID, ME, FENCE, ARGUMENTS, True, b"arguments")
    driver.reply(MAYBE)
    driver.sleep()
    driver.reply(Done())
    driver.grant()


def test_stored_arguments_are_not_written_again() -> None:
    with_arguments(Step(ARGUMENTS, True, b"arguments", NOW)).grant()


def test_if_arguments_cannot_be_stored_the_body_does_not_run_and_the_key_is_free() -> None:
    driver = with_arguments()
    while not isinstance(driver.effect, Release):
        driver.reply(MAYBE)
        if isinstance(driver.effect, Sleep):
            driver.sleep()
    assert driver.command(Release) == Release(ID, ME, FENCE)
    driver.reply(Done())
    assert driver.outcome() == AttemptOutcome(EventKind.UNAVAILABLE, error=MAYBE)


def test_a_caller_overtaken_before_its_arguments_are_stored_gets_the_winners_outcome() -> None:
    driver = with_arguments()
    driver.reply(Lost())
    driver.command(Release)  # had it been given up as unknown: nothing happened
    driver.reply(Lost())
    driver.reply(Seen(record(SUCCEEDED, fingerprint=FINGERPRINT), NOW))
    assert (driver.outcome().kind, driver.outcome().body) == (EventKind.REPLAYED, b"stored")


def test_an_abandoned_flow_yields_no_more_effects() -> None:
    """A crash is a generator that nobody sends to. Closing it yields no command."""
    flow = my_attempt()
    flow.send(None)
    flow.close()
    with pytest.raises(StopIteration):
        flow.send(None)
