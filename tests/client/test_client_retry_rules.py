"""The retry rules for every status, every transport failure and every form of Retry-After."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest
from tests.client.fake_retry_clock import EPOCH_SECONDS, SECOND

from oncekey.client import retry_rules
from oncekey.client.retry_effects import (
    ClockReading,
    NoResponse,
    ResponseReceived,
    TransportFailure,
)
from oncekey.client.retry_options import Retry

WALL = EPOCH_SECONDS * SECOND
READING = ClockReading(now=0, wall=WALL, chance=0.5)
LIMITS = Retry(base="100ms", cap="10s").limits
STATUSES = range(100, 600)
RETRIED = {425, 429, 502, 503, 504}


def received(
    status: int,
    retry_after: str | None = None,
    *,
    replayed: bool = False,
    failure: TransportFailure | None = None,
    warned: bool = False,
) -> ResponseReceived:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    if replayed:
        headers["Replayed"] = "true"
    head = retry_rules.read_head(status, headers, ["Replayed"])
    return ResponseReceived(head, READING, failure, warned)


def judge(status: int, *args: Any, **more: Any) -> retry_rules.Judgement:
    return retry_rules.judge(received(status, *args, **more))


def is_conclusive(status: int, *args: Any, maybe_carried_out: bool, **more: Any) -> bool:
    result = received(status, *args, **more)
    return retry_rules.is_conclusive(result, maybe_carried_out=maybe_carried_out)


# --- what is tried again --------------------------------------------------------------------------


def test_judge_retries_passing_statuses_and_a_409_with_retry_after() -> None:
    assert {s for s in STATUSES if judge(s).retry} == RETRIED
    assert {s for s in STATUSES if judge(s, "1").retry} == RETRIED | {409}


def test_judge_takes_only_425_and_429_for_harmless() -> None:
    assert {s for s in STATUSES if judge(s, "1").harmless} == {425, 429}


@pytest.mark.parametrize("value", ["soon", "-1", "", "0.5", "1, 2"])
def test_judge_retries_a_409_whatever_its_retry_after_says(value: str) -> None:
    assert judge(409, value).retry


@pytest.mark.parametrize("status", [425, 429])
def test_judge_does_not_take_a_refusal_that_warns_of_a_new_key_for_harmless(status: int) -> None:
    judgement = judge(status, warned=True)
    assert (judgement.retry, judgement.harmless) == (True, False)


@pytest.mark.parametrize("failure", TransportFailure)
def test_judge_retries_every_failure_that_can_pass(failure: TransportFailure) -> None:
    can_pass = failure not in (TransportFailure.CERTIFICATE, TransportFailure.OTHER)
    assert retry_rules.judge(NoResponse(failure, READING)).retry == can_pass


@pytest.mark.parametrize("failure", TransportFailure)
def test_judge_takes_failures_before_sending_for_harmless(failure: TransportFailure) -> None:
    before_sending = {
        TransportFailure.CONNECT,
        TransportFailure.CONNECT_TIMEOUT,
        TransportFailure.POOL_TIMEOUT,
        TransportFailure.CERTIFICATE,
    }
    judgement = retry_rules.judge(NoResponse(failure, READING))
    assert judgement.harmless == (failure in before_sending)
    assert retry_rules.judge(NoResponse(failure, READING, unsent=True)).harmless


@pytest.mark.parametrize(("status", "harmless"), [(200, False), (404, False), (429, True)])
def test_judge_retries_a_response_whose_body_broke_off(status: int, harmless: bool) -> None:
    judgement = judge(status, failure=TransportFailure.CLOSED)
    assert (judgement.retry, judgement.harmless) == (True, harmless)


@pytest.mark.parametrize(
    ("status", "why"), [(409, "409, a request with this key is in flight"), (429, "status 429")]
)
def test_judge_retries_a_replay_only_if_its_body_broke_off(status: int, why: str) -> None:
    whole = judge(status, "1", replayed=True)
    assert (whole.retry, whole.why) == (False, f"status {status}, replayed")
    broken = judge(status, "1", replayed=True, failure=TransportFailure.CLOSED)
    assert (broken.retry, broken.why) == (True, why)


# --- what is conclusive ---------------------------------------------------------------------------


def test_after_a_lost_try_only_successes_and_redirects_are_conclusive() -> None:
    conclusive = {s for s in STATUSES if is_conclusive(s, maybe_carried_out=True)}
    assert conclusive == {*range(200, 400)} - {307, 308}


def test_for_a_first_try_every_response_about_the_request_is_conclusive() -> None:
    inconclusive = {307, 308, 401, 407, 409, *RETRIED, *range(500, 600)}
    conclusive = {s for s in STATUSES if is_conclusive(s, maybe_carried_out=False)}
    assert conclusive == set(STATUSES) - inconclusive


@pytest.mark.parametrize("maybe_carried_out", [False, True])
@pytest.mark.parametrize("status", [402, 404, 409, 410, 422, 429, 500, 503])
def test_a_replay_is_conclusive_whatever_its_status(status: int, maybe_carried_out: bool) -> None:
    assert is_conclusive(status, replayed=True, maybe_carried_out=maybe_carried_out)


def test_a_replayed_challenge_is_inconclusive_because_the_library_replies_to_it() -> None:
    assert not is_conclusive(401, replayed=True, maybe_carried_out=True)


@pytest.mark.parametrize("status", [307, 308, 401, 407, 500, 501, 599])
def test_failures_and_responses_that_are_sent_on_are_inconclusive(status: int) -> None:
    assert not is_conclusive(status, maybe_carried_out=False)


@pytest.mark.parametrize("status", [403, 408, 421])
def test_a_response_about_the_caller_is_inconclusive_after_a_lost_try(status: int) -> None:
    assert is_conclusive(status, maybe_carried_out=False)
    assert not is_conclusive(status, maybe_carried_out=True)


def test_a_response_that_calls_for_a_retry_is_inconclusive() -> None:
    """That holds with `retry=None` too, where nobody tries again."""
    assert not is_conclusive(409, "1", maybe_carried_out=False)
    assert {s for s in RETRIED if is_conclusive(s, maybe_carried_out=False)} == set()


def test_a_response_that_warns_of_a_new_key_is_inconclusive() -> None:
    assert not is_conclusive(404, warned=True, maybe_carried_out=False)
    assert not is_conclusive(404, warned=True, replayed=True, maybe_carried_out=False)


# --- how long to wait -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "ceiling_ms"),
    [(1, 100), (2, 200), (3, 400), (7, 6_400), (8, 10_000), (9, 10_000), (100, 10_000)],
)
@pytest.mark.parametrize("chance", [0.0, 0.25, 0.999])
def test_pause_without_retry_after_is_full_jitter_under_a_doubling_ceiling(
    attempt: int, ceiling_ms: int, chance: float
) -> None:
    assert retry_rules.pause_us(LIMITS, attempt, None, chance) == int(chance * ceiling_ms * 1_000)


def test_pause_is_retry_after_plus_jitter() -> None:
    assert retry_rules.pause_us(LIMITS, 1, 3 * SECOND, 0.0) == 3 * SECOND
    assert retry_rules.pause_us(LIMITS, 2, 3 * SECOND, 0.5) == 3_100_000


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999_999])
def test_jitter_does_not_push_a_retry_after_beyond_the_deadline(chance: float) -> None:
    pause = retry_rules.pause_us(LIMITS, 8, 25 * SECOND, chance, left=26 * SECOND)
    assert 25 * SECOND <= pause < 26 * SECOND
    assert retry_rules.pause_us(LIMITS, 8, 26 * SECOND, chance, left=26 * SECOND) == 26 * SECOND


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        ("7", 7),
        (" 7 ", 7),
        ("007", 7),
        ("86400", 86_400),
        ("86401", 86_400),
        ("99999999999999999999", 86_400),
        ("0" * 5_000 + "7", 7),
        ("9" * 5_000, 86_400),
        ("Tue, 14 Nov 2023 22:13:30 GMT", 10),
        ("Tuesday, 14-Nov-23 22:13:30 GMT", 10),
        ("Tue Nov 14 22:13:30 2023", 10),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0),
        ("Tue, 14 Nov 2043 22:13:00 GMT", 86_400),
        (None, None),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1.5", 2),
        ("1.0", 1),
        ("0.5", 1),
        ("3.", 3),
        (".5", None),
        ("1.5.1", None),
        ("+3", None),
        ("٣", None),
        ("3, 4", 4),
        ("4, 3", 4),
        ("soon, 4", 4),
        ("-1, never", None),
        ("5, Tue, 14 Nov 2023 22:13:30 GMT", 10),
        ("Tuesday, 14-Nov-23 22:13:30 GMT, 50", 50),
        ("Tue, 99 Nov 2023 22:13:30 GMT", None),
        ("Tue, 14 Nov 2023 22:13:30 +9999999999999", None),
    ],
    ids=lambda given: str(given)[:40],
)
def test_retry_after_is_read_in_every_form(value: str | None, seconds: int | None) -> None:
    expected = None if seconds is None else seconds * SECOND
    assert retry_rules.retry_after_us(received(503, value).head, WALL) == expected


def test_retry_after_date_is_compared_with_the_date_header() -> None:
    head = received(503, "Tue, 14 Nov 2000 22:13:30 GMT").head
    dated = head._replace(date="Tue, 14 Nov 2000 22:13:20 GMT")
    assert retry_rules.retry_after_us(dated, WALL) == 10 * SECOND
    assert retry_rules.retry_after_us(head._replace(date="yesterday"), WALL) == 0


# --- problem details ------------------------------------------------------------------------------

UNSAFE = json.dumps({"type": "urn:x", "safe_new_key": False}).encode()
SAFE = json.dumps({"type": "urn:x", "safe_new_key": True}).encode()
PROBLEM = "application/problem+json"


PROBLEMS: dict[str, tuple[str | None, str | None, bytes | None, bool]] = {
    "a warning": (PROBLEM, None, UNSAFE, True),
    "in other letters": ("Application/Problem+JSON; charset=utf-8", None, UNSAFE, True),
    "not encoded": (PROBLEM, "identity", UNSAFE, True),
    "gzipped": (PROBLEM, "gzip", gzip.compress(UNSAFE, mtime=0), True),
    "deflated": (PROBLEM, "deflate", zlib.compress(SAFE), False),
    "the opposite": (PROBLEM, None, SAFE, False),
    "nothing about it": (PROBLEM, None, b'{"type": "urn:x"}', False),
    "no object": (PROBLEM, None, b"[]", False),
    "not a problem": ("application/json", None, UNSAFE, False),
    "no type": (None, None, UNSAFE, False),
    # A body that cannot be read may have been a warning.
    "broken": (PROBLEM, None, b"{", True),
    "no text": (PROBLEM, None, b"\xff", True),
    "too deep": (PROBLEM, None, b"[" * 60_000, True),
    "encoded otherwise": (PROBLEM, "br", UNSAFE, True),
    "not held": (PROBLEM, None, None, True),
    "too long": (PROBLEM, None, b" " * 70_000, True),
}


@pytest.mark.parametrize("which", PROBLEMS)
def test_problem_details_warn_of_a_new_key(which: str) -> None:
    content_type, encoding, body, warns = PROBLEMS[which]
    headers = {"Content-Type": content_type, "Content-Encoding": encoding}
    assert retry_rules.warns_of_new_key(headers, body) == warns
