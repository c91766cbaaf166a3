"""The flow from the body on: closing the key, being overtaken; and what happens beside the body."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.core.making import ELSE, FENCE, ID, ME, NOW, record
from tests.core.scripted import KEEP, LEASE, MAYBE, REFUSED, SECOND, Script, grant, running, task

from oncekey.core.attempt_flow import (
    attempt,
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
    ApplyCommand,
    AttemptOutcome,
    Overtaken,
    Raised,
    Returned,
    Sleep,
)
from oncekey.core.errors import LeaseLost, NotStarted, StoreUnavailable, Terminal
from oncekey.core.events import EventKind
from oncekey.core.policy import STORE_TIMEOUT_DEFAULT_US
from oncekey.core.record import State, Step
from oncekey.core.step_flow import RETRY_FIRST_US, RETRY_MAX_US
from oncekey.core.step_format import ARGUMENTS

SUCCEEDED, FAILED, UNKNOWN = State.SUCCEEDED, State.FAILED, State.UNKNOWN


# --- returning ----------------------------------------------------------------------------------


def test_i13_the_outcome_is_stored_before_there_is_a_verdict() -> None:
    script = running()
    script.send(Returned(b"answer", LEASE))
    assert script.command(Finish) == Finish(ID, ME, FENCE, SUCCEEDED, b"answer")
    assert not script.ended
    script.reply(Done())
    assert script.verdict() == AttemptOutcome(
        EventKind.FINISHED, b"answer", SUCCEEDED, 2, FENCE, KEEP
    )


def test_what_was_not_kept_goes_along_raw() -> None:
    script = running()
    raw = object()
    script.send(Returned(b"stone", LEASE, raw, kept=False))
    script.reply(Done())
    verdict = script.verdict()
    assert verdict.raw is raw
    assert not verdict.kept


@pytest.mark.parametrize("failure", [MAYBE, REFUSED], ids=str)
@pytest.mark.parametrize(
    "deadline", [LEASE, 0, -LEASE], ids=["in time", "at its deadline", "long after it"]
)
def test_i4_finish_is_repeated_for_the_stores_timeout_whatever_the_deadline(
    failure: StoreUnavailable, deadline: int
) -> None:
    """It is compare-and-set: offering it late can do no harm, and mostly does good."""
    script = running()
    raw = object()
    script.send(Returned(b"answer", deadline, raw))
    first = script.command(Finish)
    pauses = []
    while not script.ended:
        assert script.command(Finish) == first
        script.reply(failure)
        if not script.ended:
            pauses.append(script.sleep().us)
    assert script.now == STORE_TIMEOUT_DEFAULT_US
    assert pauses[:3] == [RETRY_FIRST_US, 2 * RETRY_FIRST_US, 4 * RETRY_FIRST_US]
    assert max(pauses) <= RETRY_MAX_US
    assert script.verdict() == AttemptOutcome(
        EventKind.UNAVAILABLE, b"answer", raw=raw, error=failure, deferred=first, unrecorded=True
    )


def test_a_caller_waits_no_longer_for_a_store_than_its_terms_say() -> None:
    script = running(store_timeout=SECOND)
    script.send(Returned(b"answer", 5 * SECOND))
    finish = script.command(Finish)
    begun = script.now
    while not script.ended:
        script.reply(MAYBE)
        if not script.ended:
            script.sleep()
    assert SECOND <= script.now - begun < SECOND + RETRY_MAX_US
    assert script.verdict().deferred == finish


def test_i9_a_finish_whose_reply_was_lost_is_done_when_repeated() -> None:
    script = running()
    script.send(Returned(b"answer", LEASE))
    script.reply(MAYBE)
    script.sleep()
    script.reply(Done())
    assert script.verdict().kind is EventKind.FINISHED


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
def test_what_a_raising_body_leaves_behind(
    error: BaseException, retry_safe: bool, state: State | None
) -> None:
    """None: the key is freed. Otherwise the failure is stored in this state."""
    closing = closing_command(task(retry_safe=retry_safe), grant(), error)
    if state is None:
        assert closing == Release(ID, ME, FENCE)
        return
    assert isinstance(closing, Finish)
    assert closing[:4] == (ID, ME, FENCE, state)
    assert unpack(closing.body) == StoredError(type(error).__name__, str(error))


@pytest.mark.parametrize(
    ("error", "command", "kind"),
    [
        (PLAIN, Finish, EventKind.FINISHED),
        (STOP, Finish, EventKind.FINISHED),
        (EARLY, Release, EventKind.RELEASED),
    ],
    ids=repr,
)
def test_the_bodys_own_error_is_raised_again(
    error: BaseException, command: type[Any], kind: EventKind
) -> None:
    script = running()
    script.send(Raised(error, LEASE))
    script.command(command)
    script.reply(Done())
    assert script.verdict() == AttemptOutcome(kind, b"", FAILED, 2, FENCE, error=error)


def test_the_bodys_own_error_says_more_than_the_stores() -> None:
    script = running()
    script.send(Raised(PLAIN, deadline=0))
    script.reply(MAYBE, took=STORE_TIMEOUT_DEFAULT_US)
    verdict = script.verdict()
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
        (Seen(WON._replace(fingerprint=ELSE), NOW), AttemptOutcome(EventKind.LOST)),
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
def test_i2_who_lost_gets_the_winners_outcome_if_there_is_one(
    how: str, seen: Reply | StoreUnavailable, verdict: AttemptOutcome
) -> None:
    script = running()
    if how == "heartbeat":
        script.send(Overtaken())
    else:
        script.send(Returned(b"mine", LEASE) if how == "finish" else Raised(EARLY, LEASE))
        script.reply(Lost())
    assert script.command(Look) == Look(ID)
    script.reply(seen)
    if how == "finish":  # its own answer goes along where there is no other
        verdict = verdict._replace(unrecorded=True)
        if verdict.kind in (EventKind.LOST, EventKind.UNKNOWN):
            verdict = AttemptOutcome(EventKind.LOST, b"mine", unrecorded=True)
    assert script.verdict() == verdict


@pytest.mark.parametrize("how", ["finish", "heartbeat"])
def test_an_interruption_reaches_the_caller_whoever_won(how: str) -> None:
    script = running()
    if how == "heartbeat":
        script.send(Overtaken(STOP))
    else:
        script.send(Raised(STOP, LEASE))
        script.reply(Lost())
    assert script.verdict() == AttemptOutcome(EventKind.LOST, error=STOP)


def test_an_error_of_an_overtaken_body_gives_way_to_the_winners_outcome() -> None:
    script = running()
    script.send(Overtaken(PLAIN))
    script.reply(Seen(WON, NOW))
    assert script.verdict().kind is EventKind.REPLAYED


def test_i7_the_winners_outcome_is_given_up_to_its_last_microsecond() -> None:
    script = running()
    script.send(Overtaken())
    script.reply(Seen(WON, WON.expires_at - 1))
    assert script.verdict().expires_in == 1


# --- the arguments of an operation that may be finished without its caller ------------------------


def with_arguments(*steps: Step) -> Script:
    script = Script(attempt(task()._replace(arguments=b"arguments")))
    script.reply(Claimed(FENCE, 1, steps))
    return script


def test_arguments_are_on_record_before_the_body_begins() -> None:
    script = with_arguments()
    assert script.command(SaveStep) == SaveStep(ID, ME, FENCE, ARGUMENTS, True, b"arguments")
    script.reply(MAYBE)
    script.sleep()
    script.reply(Done())
    script.grant()


def test_arguments_on_record_are_not_written_again() -> None:
    with_arguments(Step(ARGUMENTS, True, b"arguments", NOW)).grant()


def test_without_its_arguments_on_record_nothing_runs_and_the_key_is_free() -> None:
    script = with_arguments()
    while not isinstance(script.expect(ApplyCommand).command, Release):
        script.reply(MAYBE)
        if isinstance(script.ask, Sleep):
            script.sleep()
    assert script.command(Release) == Release(ID, ME, FENCE)
    script.reply(Done())
    assert script.verdict() == AttemptOutcome(EventKind.UNAVAILABLE, error=MAYBE)


def test_who_is_overtaken_before_its_arguments_are_on_record_gets_the_winners_outcome() -> None:
    script = with_arguments()
    script.reply(Lost())
    script.command(Release)  # had it been given up as unknown: nothing happened
    script.reply(Lost())
    script.reply(Seen(record(SUCCEEDED, fingerprint=task().fingerprint), NOW))
    assert (script.verdict().kind, script.verdict().body) == (EventKind.REPLAYED, b"stored")


def test_an_abandoned_flow_asks_for_nothing_more() -> None:
    """A crash is a generator nobody sends to: closing it sends no command."""
    flow = attempt(task())
    flow.send(None)
    flow.close()
    with pytest.raises(StopIteration):
        flow.send(None)
