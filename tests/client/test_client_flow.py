"""The life of one logical request, fed with facts: which asks come, in which order, how long it
waits, and what it comes to. No clock, no network."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.client.fake_time import EPOCH_SECONDS, SECOND

from oncekey.client.delivery import ProgressKind
from oncekey.client.retry import Retry
from oncekey.client.retry_effects import (
    Answer,
    Answered,
    Ask,
    Begin,
    Begun,
    Broke,
    Ending,
    Leave,
    Moment,
    Send,
    Tell,
    Trouble,
    Verdict,
    Wait,
)
from oncekey.client.retry_flow import deliver

START = 77 * SECOND


class Play:
    """Runs a flow on scripted facts. Each try takes a tenth of a second."""

    def __init__(
        self,
        *facts: int | Trouble | Answered,
        retry: Retry | None = None,
        chance: float = 0.5,
        used: bool = False,
        oversleep: int = 0,
        once: bool = False,
    ) -> None:
        self.asks: list[Ask] = []
        self._facts = list(facts)
        self._at = START
        self._chance = chance
        self._used = used
        self._oversleep = oversleep
        self.verdict = self._run(None if once else retry or Retry())

    def _run(self, retry: Retry | None) -> Verdict:
        flow = deliver(None if retry is None else retry.terms)
        answer: Answer = None
        while True:
            try:
                ask = flow.send(answer)
            except StopIteration as end:
                assert not self._facts, "it ended before its script"
                verdict: Verdict = end.value
                return verdict
            self.asks.append(ask)
            answer = self._answer(ask)

    def _answer(self, ask: Ask) -> Answer:
        if isinstance(ask, Begin):
            return Begun(START, self._used)
        if isinstance(ask, Send):
            self._at += SECOND // 10
            moment = Moment(self._at, EPOCH_SECONDS * SECOND, self._chance)
            fact = self._facts.pop(0)
            if isinstance(fact, Trouble):
                return Broke(fact, moment)
            if isinstance(fact, int):
                return Answered(fact, moment)
            return fact._replace(moment=moment)
        if isinstance(ask, Wait):
            self._at += ask.us + self._oversleep
            return self._at
        return None

    def waits(self) -> list[int]:
        return [ask.us for ask in self.asks if isinstance(ask, Wait)]

    def lefts(self) -> list[int | None]:
        return [ask.left for ask in self.asks if isinstance(ask, Send)]

    def told(self) -> list[tuple[str, int]]:
        return [(ask.kind.value, ask.attempt) for ask in self.asks if isinstance(ask, Tell)]


def head(status: int, retry_after: str | None = None, broke: Trouble | None = None) -> Answered:
    return Answered(status, Moment(0, 0, 0), retry_after, broke=broke)


LOST = Trouble.TIMEOUT


def test_the_plain_case_asks_for_the_key_first_and_lets_go_of_it_last() -> None:
    play = Play(201)
    assert play.asks == [
        Begin(),
        Tell(ProgressKind.SENDING, 1),
        Send(1, 60 * SECOND),
        Tell(ProgressKind.ANSWERED, 1, status=201),
        Leave(settled=True),
    ]
    assert play.verdict == Verdict(Ending.ANSWERED, 1, 0, SECOND // 10, settled=True)


def test_the_whole_schedule_of_a_request_that_never_gets_through() -> None:
    play = Play(*[503] * 10, chance=0.5)
    waits_ms = [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]
    assert play.waits() == [ms * 1_000 for ms in waits_ms]
    spent = [0]
    for wait in play.waits():
        spent.append(spent[-1] + 100_000 + wait)
    assert play.lefts() == [60 * SECOND - us for us in spent]
    assert play.verdict == Verdict(
        Ending.EXHAUSTED,
        10,
        sum(play.waits()),
        spent[-1] + 100_000,
        settled=False,
        safe_new_key=False,
        why="10 tries were all there were",
        last="status 503",
    )
    assert play.asks[-1] == Leave(settled=False)


@pytest.mark.parametrize("fact", [425, 429, 502, 503, 504, head(409, "1"), LOST, Trouble.CONNECT])
def test_what_is_tried_again_and_then_answered(fact: int | Trouble | Answered) -> None:
    play = Play(fact, 200)
    assert (play.verdict.ending, play.verdict.attempts) == (Ending.ANSWERED, 2)
    assert play.verdict.settled


@pytest.mark.parametrize("status", [100, 200, 301, 400, 401, 403, 404, 409, 422, 500, 501, 505])
def test_what_is_given_to_the_caller_as_it_is(status: int) -> None:
    play = Play(status)
    assert (play.verdict.ending, play.verdict.attempts) == (Ending.ANSWERED, 1)
    assert play.waits() == []


def test_an_answer_that_broke_off_is_fetched_again() -> None:
    play = Play(head(201, broke=Trouble.CLOSED), 201)
    assert (play.verdict.ending, play.verdict.attempts) == (Ending.ANSWERED, 2)
    assert play.told()[:2] == [("sending", 1), ("broke", 1)]


# --- the deadline ---------------------------------------------------------------------------------


def test_retry_after_is_a_lower_bound() -> None:
    play = Play(head(429, "7"), head(503, "3"), 200, chance=0.5)
    assert play.waits() == [7_050_000, 3_100_000]


@pytest.mark.parametrize(
    ("deadline", "begun"), [("1s200ms", True), ("1s100ms1us", True), ("1s100ms", False)]
)
def test_a_wait_that_ends_at_the_deadline_or_after_is_not_begun(deadline: str, begun: bool) -> None:
    """The try takes 100 ms and the wait would take a second."""
    retry = Retry(deadline=deadline)
    facts = (head(503, "1"), 200) if begun else (head(503, "1"),)
    play = Play(*facts, retry=retry, chance=0.0)
    assert play.waits() == ([SECOND] if begun else [])
    assert play.verdict.ending is (Ending.ANSWERED if begun else Ending.EXHAUSTED)
    if not begun:
        assert play.verdict.elapsed == SECOND // 10
        assert play.verdict.why == (
            "the next try would begin in 1.0 s, after the deadline: 1.0 s are left of 1.1 s"
        )


def test_what_a_server_asks_for_beyond_the_deadline_is_not_waited_for() -> None:
    play = Play(head(503, "3600"), chance=0.0)
    assert play.waits() == []
    assert play.verdict.ending is Ending.EXHAUSTED
    assert "3600.0 s, after the deadline: 59.9 s are left of 60.0 s" in play.verdict.why


def test_jitter_alone_never_makes_it_give_up_what_the_server_asked_for() -> None:
    retry = Retry(deadline="26s", base="10s")
    play = Play(head(503, "25"), 200, retry=retry, chance=0.999)
    assert play.verdict.ending is Ending.ANSWERED
    (wait,) = play.waits()
    assert 25 * SECOND <= wait < 25 * SECOND + 900_000


def test_one_try_is_said_to_be_one() -> None:
    assert Play(503, retry=Retry(attempts=1)).verdict.why == "1 try was all there was"


@pytest.mark.parametrize("status", [402, 404, 409, 410])
def test_a_refusal_after_a_lost_try_keeps_the_key(status: int) -> None:
    play = Play(LOST, status)
    assert (play.verdict.ending, play.verdict.settled) == (Ending.ANSWERED, False)
    assert play.asks[-1] == Leave(settled=False)
    assert Play(LOST, head(status)._replace(replayed=True)).verdict.settled


def test_a_try_that_outlasts_the_deadline_is_the_last() -> None:
    play = Play(LOST, retry=Retry(deadline="50ms"), chance=0.0)
    assert play.verdict.ending is Ending.EXHAUSTED
    assert "0.0 s are left" in play.verdict.why


def test_who_wakes_after_the_deadline_sends_nothing_more() -> None:
    play = Play(LOST, oversleep=60 * SECOND)
    assert play.verdict.ending is Ending.EXHAUSTED
    assert play.verdict.why == "the deadline passed while waiting"
    assert len(play.lefts()) == 1
    assert play.verdict.waited == 50_000 + 60 * SECOND


def test_time_passed_while_oversleeping_counts() -> None:
    play = Play(LOST, 200, oversleep=SECOND)
    assert play.lefts() == [60 * SECOND, 60 * SECOND - 100_000 - 50_000 - SECOND]


def test_an_answer_counts_however_late() -> None:
    play = Play(200, retry=Retry(deadline="50ms"))
    assert play.verdict.ending is Ending.ANSWERED


def test_attempts_is_how_often_it_is_sent() -> None:
    assert len(Play(503, retry=Retry(attempts=1)).lefts()) == 1
    assert len(Play(503, 503, 503, retry=Retry(attempts=3)).lefts()) == 3


# --- a new key or not -----------------------------------------------------------------------------

UNSENT = [Trouble.CONNECT, Trouble.CONNECT_TIMEOUT, Trouble.POOL_TIMEOUT, 425, 429]
PERHAPS = [LOST, Trouble.NETWORK, Trouble.CLOSED, 502, 503, 504, head(409, "1")]


@pytest.mark.parametrize("fact", UNSENT)
def test_a_new_key_is_safe_where_no_try_can_have_had_an_effect(fact: int | Trouble) -> None:
    assert Play(fact, fact, retry=Retry(attempts=2)).verdict.safe_new_key


@pytest.mark.parametrize("fact", PERHAPS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_try_that_may_have_had_one_is_enough_to_warn(
    fact: int | Trouble | Answered, place: int
) -> None:
    facts: list[int | Trouble | Answered] = [Trouble.CONNECT, 429, Trouble.POOL_TIMEOUT]
    facts[place] = fact
    assert not Play(*facts, retry=Retry(attempts=3)).verdict.safe_new_key


def test_a_key_from_elsewhere_may_have_been_sent_before() -> None:
    refused = [Trouble.CONNECT] * 2
    assert not Play(*refused, retry=Retry(attempts=2), used=True).verdict.safe_new_key


# --- what is not tried again ----------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [Trouble.CERTIFICATE, Trouble.OTHER])
def test_an_error_that_does_not_pass_is_raised_as_it_is(trouble: Trouble) -> None:
    play = Play(trouble)
    assert (play.verdict.ending, play.verdict.attempts) == (Ending.FAILED, 1)
    assert Play(Trouble.CONNECT, trouble).verdict.ending is Ending.FAILED


def test_but_not_where_an_earlier_try_may_have_had_an_effect() -> None:
    play = Play(LOST, Trouble.CERTIFICATE)
    assert play.verdict.ending is Ending.EXHAUSTED
    assert not play.verdict.safe_new_key
    assert play.verdict.last == "the server's certificate was not accepted"
    assert play.told()[-1] == ("gave_up", 2)


def test_a_refusal_of_the_caller_after_a_lost_answer_settles_nothing() -> None:
    assert Play(403).verdict.settled
    lost = Play(LOST, 403)
    assert (lost.verdict.ending, lost.verdict.settled) == (Ending.ANSWERED, False)
    assert lost.asks[-1] == Leave(settled=False)
    assert not Play(403, used=True).verdict.settled


@pytest.mark.parametrize("fact", [200, 503, 429])
def test_without_retries_every_answer_is_the_callers(fact: int) -> None:
    play = Play(fact, once=True)
    assert play.verdict.ending is Ending.ANSWERED
    assert play.lefts() == [None]


@pytest.mark.parametrize("trouble", [LOST, Trouble.CONNECT])
def test_without_retries_every_error_is_the_callers(trouble: Trouble) -> None:
    assert Play(trouble, once=True).verdict.ending is Ending.FAILED


# --- what is told ---------------------------------------------------------------------------------


def test_every_step_is_told_before_it_is_taken() -> None:
    play = Play(LOST, head(409, "2"), retry=Retry(attempts=2))
    assert play.told() == [
        ("sending", 1),
        ("broke", 1),
        ("waiting", 1),
        ("sending", 2),
        ("answered", 2),
        ("gave_up", 2),
    ]
    for before, after in pairwise(play.asks):
        if isinstance(after, Send):
            assert before == Tell(ProgressKind.SENDING, after.attempt)
        if isinstance(after, Wait):
            assert before == Tell(ProgressKind.WAITING, 1, us=after.us, why="no answer in time")
