"""The retry flow, fed with results: which effects it yields, in which order, how long it waits, and
its outcome. There is no clock and no network."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.client.fake_retry_clock import EPOCH_SECONDS, SECOND

from oncekey.client.delivery import ProgressKind
from oncekey.client.retry_effects import (
    ClockReading,
    Effect,
    EffectResult,
    EntryState,
    NoResponse,
    Notify,
    OutcomeKind,
    RequestOutcome,
    ResponseReceived,
    SendRequest,
    Sleep,
    TransportFailure,
    TryResult,
)
from oncekey.client.retry_flow import send_with_retries
from oncekey.client.retry_options import Retry
from oncekey.client.retry_rules import read_head

START = 77 * SECOND
UNREAD = ClockReading(0, 0, 0)  # FlowRun fills in the readings
LOST = TransportFailure.TIMEOUT


def response(
    status: int,
    retry_after: str | None = None,
    failure: TransportFailure | None = None,
    *,
    replayed: bool = False,
) -> ResponseReceived:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    if replayed:
        headers["Replayed"] = "true"
    return ResponseReceived(read_head(status, headers, ["Replayed"]), UNREAD, failure)


Scripted = int | TransportFailure | ResponseReceived


class FlowRun:
    """Runs a flow on scripted results. Each try takes a tenth of a second."""

    def __init__(
        self,
        *results: Scripted,
        retry: Retry | None = None,
        chance: float = 0.5,
        used: bool = False,
        oversleep: int = 0,
        without_retries: bool = False,
    ) -> None:
        self.effects: list[Effect] = []
        self._results = list(results)
        self._now = START
        self._chance = chance
        self._oversleep = oversleep
        limits = None if without_retries else (retry or Retry()).limits
        self._flow = send_with_retries(limits, START, used=used)
        self.outcome = self._run()

    def _run(self) -> RequestOutcome:
        result: EffectResult = None
        while True:
            try:
                effect = self._flow.send(result)
            except StopIteration as end:
                assert not self._results, "the flow ended before its script"
                outcome: RequestOutcome = end.value
                return outcome
            self.effects.append(effect)
            result = self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> EffectResult:
        if isinstance(effect, SendRequest):
            return self._try()
        if isinstance(effect, Sleep):
            self._now += effect.us + self._oversleep
            return self._now
        return None

    def _try(self) -> TryResult:
        self._now += SECOND // 10
        reading = ClockReading(self._now, EPOCH_SECONDS * SECOND, self._chance)
        result = self._results.pop(0)
        if isinstance(result, TransportFailure):
            return NoResponse(result, reading)
        received = response(result) if isinstance(result, int) else result
        return received._replace(reading=reading)

    def waits(self) -> list[int]:
        return [effect.us for effect in self.effects if isinstance(effect, Sleep)]

    def deadlines(self) -> list[int | None]:
        return [effect.deadline for effect in self.effects if isinstance(effect, SendRequest)]

    def notified(self) -> list[tuple[str, int]]:
        effects = [effect for effect in self.effects if isinstance(effect, Notify)]
        return [(effect.kind.value, effect.attempt) for effect in effects]


# --- effects and outcomes -------------------------------------------------------------------------


def test_flow_of_a_request_that_succeeds_at_once() -> None:
    run = FlowRun(201)
    assert run.effects == [
        Notify(ProgressKind.SENDING, 1),
        SendRequest(1, START + 60 * SECOND),
        Notify(ProgressKind.ANSWERED, 1, status=201),
    ]
    assert run.outcome == RequestOutcome(
        OutcomeKind.RESPONSE,
        attempts=1,
        waited=0,
        elapsed=SECOND // 10,
        entry=EntryState.DONE,
        maybe_carried_out=False,
        conclusive=True,
    )


def test_flow_of_a_request_that_never_gets_through() -> None:
    run = FlowRun(*[503] * 10, chance=0.5)
    waits_ms = [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]
    assert run.waits() == [ms * 1_000 for ms in waits_ms]
    assert run.deadlines() == [START + 60 * SECOND] * 10
    assert run.outcome == RequestOutcome(
        OutcomeKind.EXHAUSTED,
        attempts=10,
        waited=sum(run.waits()),
        elapsed=sum(run.waits()) + SECOND,
        entry=EntryState.OPEN,
        maybe_carried_out=True,
        why="10 tries were all there were",
        last="status 503",
    )


@pytest.mark.parametrize(
    "result", [425, 429, 502, 503, 504, response(409, "1"), LOST, TransportFailure.CONNECT]
)
def test_flow_tries_again_until_a_response_is_final(result: Scripted) -> None:
    outcome = FlowRun(result, 200).outcome
    assert (outcome.kind, outcome.attempts, outcome.conclusive) == (OutcomeKind.RESPONSE, 2, True)


@pytest.mark.parametrize("status", [100, 200, 301, 400, 401, 403, 404, 409, 422, 500, 501, 505])
def test_flow_gives_any_other_response_to_the_caller(status: int) -> None:
    run = FlowRun(status)
    assert (run.outcome.kind, run.outcome.attempts) == (OutcomeKind.RESPONSE, 1)
    assert run.waits() == []


def test_flow_fetches_a_response_that_broke_off_again() -> None:
    run = FlowRun(response(201, failure=TransportFailure.CLOSED), 201)
    assert (run.outcome.kind, run.outcome.attempts) == (OutcomeKind.RESPONSE, 2)
    assert run.notified()[:2] == [("sending", 1), ("failed", 1)]


# --- the deadline ---------------------------------------------------------------------------------


def test_retry_after_is_a_lower_bound_of_the_wait() -> None:
    run = FlowRun(response(429, "7"), response(503, "3"), 200, chance=0.5)
    assert run.waits() == [7_050_000, 3_100_000]


@pytest.mark.parametrize(
    ("deadline", "begun"), [("1s200ms", True), ("1s100ms1us", True), ("1s100ms", False)]
)
def test_a_wait_that_ends_at_the_deadline_or_after_is_not_begun(deadline: str, begun: bool) -> None:
    """The try takes 100 ms and the wait would take a second."""
    retry = Retry(deadline=deadline)
    results = (response(503, "1"), 200) if begun else (response(503, "1"),)
    run = FlowRun(*results, retry=retry, chance=0.0)
    assert run.waits() == ([SECOND] if begun else [])
    assert run.outcome.kind is (OutcomeKind.RESPONSE if begun else OutcomeKind.EXHAUSTED)
    if not begun:
        assert run.outcome.elapsed == SECOND // 10
        assert run.outcome.why == (
            "the next try would begin in 1.0 s, after the deadline: 1.0 s are left of 1.1 s"
        )


def test_a_retry_after_beyond_the_deadline_is_not_waited_for() -> None:
    run = FlowRun(response(503, "3600"), chance=0.0)
    assert run.waits() == []
    assert run.outcome.kind is OutcomeKind.EXHAUSTED
    assert "3600.0 s, after the deadline: 59.9 s are left of 60.0 s" in run.outcome.why


def test_jitter_alone_never_ends_a_request_whose_retry_after_fits() -> None:
    retry = Retry(deadline="26s", base="10s")
    run = FlowRun(response(503, "25"), 200, retry=retry, chance=0.999)
    assert run.outcome.kind is OutcomeKind.RESPONSE
    (wait,) = run.waits()
    assert 25 * SECOND <= wait < 25 * SECOND + 900_000


def test_the_reason_for_giving_up_counts_one_try_in_the_singular() -> None:
    assert FlowRun(503, retry=Retry(attempts=1)).outcome.why == "1 try was all there was"


def test_a_try_that_outlasts_the_deadline_is_the_last() -> None:
    outcome = FlowRun(LOST, retry=Retry(deadline="50ms"), chance=0.0).outcome
    assert outcome.kind is OutcomeKind.EXHAUSTED
    assert "0.0 s are left" in outcome.why


def test_flow_that_wakes_after_the_deadline_sends_nothing_more() -> None:
    run = FlowRun(LOST, oversleep=60 * SECOND)
    assert run.outcome.kind is OutcomeKind.EXHAUSTED
    assert run.outcome.why == "the deadline passed while waiting"
    assert len(run.deadlines()) == 1
    assert run.outcome.waited == 50_000 + 60 * SECOND


def test_oversleeping_does_not_move_the_deadline() -> None:
    run = FlowRun(LOST, 200, oversleep=SECOND)
    assert run.deadlines() == [START + 60 * SECOND] * 2
    assert run.outcome.waited == 50_000 + SECOND


def test_a_response_counts_however_late() -> None:
    outcome = FlowRun(200, retry=Retry(deadline="50ms")).outcome
    assert outcome.kind is OutcomeKind.RESPONSE


def test_attempts_is_the_number_of_tries() -> None:
    assert len(FlowRun(503, retry=Retry(attempts=1)).deadlines()) == 1
    assert len(FlowRun(503, 503, 503, retry=Retry(attempts=3)).deadlines()) == 3


# --- whether a new key is safe --------------------------------------------------------------------

HARMLESS: list[Scripted] = [
    TransportFailure.CONNECT,
    TransportFailure.CONNECT_TIMEOUT,
    TransportFailure.POOL_TIMEOUT,
    425,
    429,
]
HARMFUL: list[Scripted] = [
    LOST,
    TransportFailure.NETWORK,
    TransportFailure.CLOSED,
    502,
    503,
    504,
    response(409, "1"),
]


@pytest.mark.parametrize("result", HARMLESS)
def test_harmless_tries_leave_the_key_unsent(result: Scripted) -> None:
    outcome = FlowRun(result, result, retry=Retry(attempts=2)).outcome
    assert not outcome.maybe_carried_out
    assert outcome.entry is EntryState.UNSENT


@pytest.mark.parametrize("result", HARMFUL)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_try_that_may_have_had_an_effect_is_enough(result: Scripted, place: int) -> None:
    results: list[Scripted] = [TransportFailure.CONNECT, 429, TransportFailure.POOL_TIMEOUT]
    results[place] = result
    outcome = FlowRun(*results, retry=Retry(attempts=3)).outcome
    assert outcome.maybe_carried_out
    assert outcome.entry is EntryState.OPEN


def test_a_key_that_was_used_before_may_have_been_carried_out() -> None:
    results = [TransportFailure.CONNECT] * 2
    outcome = FlowRun(*results, retry=Retry(attempts=2), used=True).outcome
    assert outcome.maybe_carried_out
    assert outcome.entry is EntryState.OPEN


# --- what becomes of the journal's entry ----------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "entry"),
    [
        (201, EntryState.DONE),
        (303, EntryState.DONE),
        (422, EntryState.REFUSED),
        (500, EntryState.OPEN),
        (response(500, replayed=True), EntryState.OPEN),
        (401, EntryState.OPEN),
        (TransportFailure.CERTIFICATE, EntryState.UNSENT),
        (TransportFailure.OTHER, EntryState.OPEN),
    ],
)
def test_a_single_try_decides_the_entry(result: Scripted, entry: EntryState) -> None:
    assert FlowRun(result).outcome.entry is entry


@pytest.mark.parametrize("status", [402, 403, 404, 409, 410])
def test_a_refusal_after_a_lost_try_leaves_the_entry_open(status: int) -> None:
    outcome = FlowRun(LOST, status).outcome
    assert (outcome.kind, outcome.conclusive) == (OutcomeKind.RESPONSE, False)
    assert outcome.entry is EntryState.OPEN
    replayed = FlowRun(LOST, response(status, replayed=True)).outcome
    assert replayed.conclusive
    assert replayed.entry is EntryState.REFUSED


def test_a_refusal_is_conclusive_only_for_a_key_that_was_not_used_before() -> None:
    assert FlowRun(403).outcome.conclusive
    assert not FlowRun(403, used=True).outcome.conclusive


# --- what is not tried again ----------------------------------------------------------------------


@pytest.mark.parametrize("failure", [TransportFailure.CERTIFICATE, TransportFailure.OTHER])
def test_an_error_that_does_not_pass_is_raised_as_it_is(failure: TransportFailure) -> None:
    outcome = FlowRun(failure).outcome
    assert (outcome.kind, outcome.attempts) == (OutcomeKind.ERROR, 1)
    assert FlowRun(TransportFailure.CONNECT, failure).outcome.kind is OutcomeKind.ERROR


def test_an_error_that_does_not_pass_gives_up_after_a_lost_try() -> None:
    run = FlowRun(LOST, TransportFailure.CERTIFICATE)
    assert run.outcome.kind is OutcomeKind.EXHAUSTED
    assert run.outcome.maybe_carried_out
    assert run.outcome.last == "the server's certificate was not accepted"
    assert run.notified()[-1] == ("gave_up", 2)


@pytest.mark.parametrize("status", [200, 503, 429])
def test_without_retries_the_caller_gets_every_response(status: int) -> None:
    run = FlowRun(status, without_retries=True)
    assert run.outcome.kind is OutcomeKind.RESPONSE
    assert run.deadlines() == [None]


@pytest.mark.parametrize("failure", [LOST, TransportFailure.CONNECT])
def test_without_retries_the_caller_gets_every_error(failure: TransportFailure) -> None:
    assert FlowRun(failure, without_retries=True).outcome.kind is OutcomeKind.ERROR


# --- progress -------------------------------------------------------------------------------------


def test_progress_is_notified_before_each_try_and_wait() -> None:
    run = FlowRun(LOST, response(409, "2"), retry=Retry(attempts=2))
    assert run.notified() == [
        ("sending", 1),
        ("failed", 1),
        ("waiting", 1),
        ("sending", 2),
        ("answered", 2),
        ("gave_up", 2),
    ]
    for before, after in pairwise(run.effects):
        if isinstance(after, SendRequest):
            assert before == Notify(ProgressKind.SENDING, after.attempt)
        if isinstance(after, Sleep):
            assert before == Notify(ProgressKind.WAITING, 1, us=after.us, why="no answer in time")
