"""What each outcome means: every status, every trouble, every form of Retry-After."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest
from tests.client.fake_time import EPOCH_SECONDS, SECOND

from oncekey.client import retry_rules
from oncekey.client.retry import Retry
from oncekey.client.retry_effects import Answered, Broke, Moment, Trouble

NOW = Moment(at=0, wall=EPOCH_SECONDS * SECOND, chance=0.5)
TERMS = Retry(base="100ms", cap="10s").terms
STATUSES = range(100, 600)
RETRIED = {425, 429, 502, 503, 504}


def answered(status: int, retry_after: str | None = None, **more: object) -> Answered:
    return Answered(status, NOW, retry_after)._replace(**more)  # type: ignore[arg-type]


# --- again or not ---------------------------------------------------------------------------------


def test_which_statuses_are_tried_again() -> None:
    assert {s for s in STATUSES if retry_rules.judge(answered(s)).again} == RETRIED
    assert {s for s in STATUSES if retry_rules.judge(answered(s, "1")).again} == RETRIED | {409}


def test_only_425_and_429_say_that_nothing_was_done() -> None:
    assert {s for s in STATUSES if retry_rules.judge(answered(s, "1")).harmless} == {425, 429}


@pytest.mark.parametrize("value", ["soon", "-1", "", "0.5", "1, 2"])
def test_that_a_409_has_a_retry_after_says_enough_whatever_it_says(value: str) -> None:
    assert retry_rules.judge(answered(409, value)).again


@pytest.mark.parametrize("status", [425, 429])
def test_a_refusal_whose_details_warn_of_a_new_key_may_have_had_an_effect(status: int) -> None:
    judged = retry_rules.judge(answered(status, doubtful=True))
    assert (judged.again, judged.harmless) == (True, False)


@pytest.mark.parametrize("trouble", Trouble)
def test_which_troubles_are_tried_again(trouble: Trouble) -> None:
    again = trouble not in (Trouble.CERTIFICATE, Trouble.OTHER)
    assert retry_rules.judge(Broke(trouble, NOW)).again == again


@pytest.mark.parametrize("trouble", Trouble)
def test_which_troubles_come_before_anything_is_sent(trouble: Trouble) -> None:
    unsent = {
        Trouble.CONNECT,
        Trouble.CONNECT_TIMEOUT,
        Trouble.POOL_TIMEOUT,
        Trouble.CERTIFICATE,
    }
    assert retry_rules.judge(Broke(trouble, NOW)).harmless == (trouble in unsent)


@pytest.mark.parametrize(("status", "harmless"), [(200, False), (404, False), (429, True)])
def test_an_answer_that_broke_off_is_lost_unless_its_status_says_enough(
    status: int, harmless: bool
) -> None:
    judged = retry_rules.judge(answered(status, broke=Trouble.CLOSED))
    assert (judged.again, judged.harmless) == (True, harmless)


# --- settled or not -------------------------------------------------------------------------------


SETTLING_AFTER_A_LOSS = {*range(200, 400)} - {307, 308}


def test_after_a_lost_try_only_what_must_be_its_answer_settles_it() -> None:
    settling = {s for s in STATUSES if retry_rules.settles(answered(s), unsure=True)}
    assert settling == SETTLING_AFTER_A_LOSS


def test_of_a_first_try_every_answer_about_the_request_settles_it() -> None:
    unsettled = {307, 308, 401, 407, 409, *RETRIED, *range(500, 600)}
    settling = {s for s in STATUSES if retry_rules.settles(answered(s), unsure=False)}
    assert settling == set(STATUSES) - unsettled


@pytest.mark.parametrize("unsure", [False, True])
@pytest.mark.parametrize("status", [402, 404, 409, 410, 422, 429, 500, 503])
def test_a_stored_answer_settles_it_whatever_it_is(status: int, unsure: bool) -> None:
    assert retry_rules.settles(answered(status, replayed=True), unsure=unsure)


def test_a_stored_challenge_does_not_settle_it_since_the_library_answers_it() -> None:
    assert not retry_rules.settles(answered(401, replayed=True), unsure=True)


@pytest.mark.parametrize("status", [307, 308, 401, 407, 500, 501, 599])
def test_failures_and_what_is_sent_on_by_the_library_settle_nothing(status: int) -> None:
    assert not retry_rules.settles(answered(status), unsure=False)


@pytest.mark.parametrize("status", [403, 408, 421])
def test_an_answer_about_the_caller_settles_nothing_that_may_have_happened(status: int) -> None:
    assert retry_rules.settles(answered(status), unsure=False)
    assert not retry_rules.settles(answered(status), unsure=True)


def test_an_answer_that_would_be_tried_again_settles_nothing() -> None:
    """Also where nobody tries again: `retry=None`."""
    assert not retry_rules.settles(answered(409, "1"), unsure=False)
    assert {s for s in RETRIED if retry_rules.settles(answered(s), unsure=False)} == set()


def test_a_server_that_warns_of_a_new_key_has_settled_nothing() -> None:
    assert not retry_rules.settles(answered(404, doubtful=True), unsure=False)
    assert not retry_rules.settles(answered(404, doubtful=True, replayed=True), unsure=False)


# --- how long -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "ceiling_ms"),
    [(1, 100), (2, 200), (3, 400), (7, 6_400), (8, 10_000), (9, 10_000), (100, 10_000)],
)
@pytest.mark.parametrize("chance", [0.0, 0.25, 0.999])
def test_backoff_is_full_jitter_under_a_doubling_ceiling(
    attempt: int, ceiling_ms: int, chance: float
) -> None:
    assert retry_rules.pause_us(TERMS, attempt, None, chance) == int(chance * ceiling_ms * 1_000)


def test_what_the_server_asks_for_is_a_lower_bound_under_the_jitter() -> None:
    assert retry_rules.pause_us(TERMS, 1, 3 * SECOND, 0.0) == 3 * SECOND
    assert retry_rules.pause_us(TERMS, 2, 3 * SECOND, 0.5) == 3_100_000


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999_999])
def test_what_the_server_asks_for_is_waited_for_wherever_it_fits(chance: float) -> None:
    pause = retry_rules.pause_us(TERMS, 8, 25 * SECOND, chance, left=26 * SECOND)
    assert 25 * SECOND <= pause < 26 * SECOND
    assert retry_rules.pause_us(TERMS, 8, 26 * SECOND, chance, left=26 * SECOND) == 26 * SECOND


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
def test_retry_after_in_every_form(value: str | None, seconds: int | None) -> None:
    expected = None if seconds is None else seconds * SECOND
    assert retry_rules.retry_after_us(answered(503, value)) == expected


def test_a_date_is_read_by_the_servers_own_calendar_where_it_tells() -> None:
    fact = answered(503, "Tue, 14 Nov 2000 22:13:30 GMT", date="Tue, 14 Nov 2000 22:13:20 GMT")
    assert retry_rules.retry_after_us(fact) == 10 * SECOND
    assert retry_rules.retry_after_us(fact._replace(date="yesterday")) == 0


# --- problem details ------------------------------------------------------------------------------

UNSAFE = json.dumps({"type": "urn:x", "safe_new_key": False}).encode()
SAFE = json.dumps({"type": "urn:x", "safe_new_key": True}).encode()
PROBLEM = "application/problem+json"


PROBLEMS: dict[str, tuple[str | None, str | None, bytes | None, bool]] = {
    "a warning": (PROBLEM, None, UNSAFE, True),
    "in other words": ("Application/Problem+JSON; charset=utf-8", None, UNSAFE, True),
    "not encoded": (PROBLEM, "identity", UNSAFE, True),
    "gzipped": (PROBLEM, "gzip", gzip.compress(UNSAFE, mtime=0), True),
    "deflated": (PROBLEM, "deflate", zlib.compress(SAFE), False),
    "the opposite": (PROBLEM, None, SAFE, False),
    "nothing about it": (PROBLEM, None, b'{"type": "urn:x"}', False),
    "no object": (PROBLEM, None, b"[]", False),
    "no problem": ("application/json", None, UNSAFE, False),
    "no type": (None, None, UNSAFE, False),
    # What cannot be read may have been a warning.
    "broken": (PROBLEM, None, b"{", True),
    "no text": (PROBLEM, None, b"\xff", True),
    "too deep": (PROBLEM, None, b"[" * 60_000, True),
    "encoded otherwise": (PROBLEM, "br", UNSAFE, True),
    "not held": (PROBLEM, None, None, True),
    "too long": (PROBLEM, None, b" " * 70_000, True),
}


@pytest.mark.parametrize("which", PROBLEMS)
def test_what_a_server_says_about_new_keys(which: str) -> None:
    content_type, encoding, body, warns = PROBLEMS[which]
    assert retry_rules.warns_of_new_key(content_type, encoding, body) == warns
