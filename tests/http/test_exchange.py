"""The exchange: errors as problems, the key of a request, and replays."""

from __future__ import annotations

import json

import pytest

from oncekey.core.errors import (
    ConfigurationError,
    InFlight,
    InvalidKey,
    LeaseLost,
    Mismatch,
    MissingKey,
    NotReplayable,
    OncekeyError,
    OperationFailed,
    OutcomeUnknown,
    StoreUnavailable,
    WaitTimeout,
)
from oncekey.http import problem as problems
from oncekey.http.exchange import Exchange
from oncekey.http.message import Response, headers_by_name
from oncekey.http.rules import Rule, Rules

# --- problems -----------------------------------------------------------------------------------

ERRORS: list[tuple[OncekeyError, int, bool]] = [
    (InvalidKey("the key is odd"), 400, False),
    (MissingKey(), 400, False),
    (Mismatch(), 422, False),
    (InFlight(retry_after=2.2), 409, True),
    (WaitTimeout(retry_after=2.2), 409, True),
    (OutcomeUnknown(), 409, False),
    (OperationFailed(error_type="ValueError", error_message="s3cret"), 500, False),
    (LeaseLost(), 409, True),
    (NotReplayable(), 409, False),
    (StoreUnavailable("host s3cret is down"), 503, True),
]


@pytest.mark.parametrize(("error", "status", "retryable"), ERRORS)
def test_error_of_the_engine_becomes_a_problem(
    error: OncekeyError, status: int, retryable: bool
) -> None:
    response = Exchange(Rules(), policy_url="/policy").error_response(error)
    details = json.loads(response.body)
    assert (response.status, details["status"], details["retryable"]) == (status, status, retryable)
    headers = dict(response.headers)
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"content-length"] == b"%d" % len(response.body)
    assert headers[b"cache-control"] == b"no-store"
    assert headers[b"link"].startswith(b'</policy>; rel="describedby"')
    assert (b"retry-after" in headers) is retryable
    assert details["type"].startswith("/policy#")
    assert details["title"]
    assert b"s3cret" not in response.body


def test_configuration_error_is_raised_and_not_sent() -> None:
    with pytest.raises(ConfigurationError):
        Exchange(Rules()).error_response(ConfigurationError("wrong"))


def test_retry_after_is_the_average_latency_but_not_more_than_the_lease() -> None:
    rule = Rule()
    exchange = Exchange(Rules([rule]))

    def retry_after(remaining: float) -> int:
        response = exchange.error_response(InFlight(retry_after=remaining), rule)
        return int(dict(response.headers)[b"retry-after"])

    assert retry_after(30.0) == 2, "the latency is unknown"
    exchange.latency.record(rule, 2.5)
    assert retry_after(30.0) == 3
    assert retry_after(1.2) == 2
    exchange.latency.record(rule, 0.001)
    assert retry_after(30.0) == 3, "one quick request changes the average little"
    for _ in range(100):
        exchange.latency.record(rule, 0.001)
    assert retry_after(30.0) == 1, "never less than a second"


def test_problems_have_unique_names_and_are_all_listed() -> None:
    defined = [p for p in vars(problems).values() if isinstance(p, problems.Problem)]
    assert sorted(defined) == sorted(problems.ALL_PROBLEMS)
    assert len({problem.name for problem in defined}) == len(defined)


# --- the exchange -------------------------------------------------------------------------------


def test_missing_or_malformed_key_is_refused_unless_optional_and_missing() -> None:
    required, optional = Rule(), Rule(required=False)
    exchange = Exchange(Rules())
    header = (b"idempotency-key", b"k")
    assert exchange.key_of(required, headers_by_name([header])) == "k"
    assert exchange.key_of(optional, {}) is None
    missing = exchange.key_of(required, {})
    assert isinstance(missing, Response)
    assert missing.status == 400
    malformed = exchange.key_of(optional, {b"idempotency-key": [b'"']})
    assert isinstance(malformed, Response), "its sender believes to be protected"
    assert malformed.status == 400


def test_replay_is_marked_and_refused_if_its_body_was_omitted() -> None:
    exchange = Exchange(Rules())
    stored = Response(201, ((b"location", b"/x"),), b"body")
    again = exchange.replay(stored, 60)
    assert (again.status, again.body) == (201, b"body")
    assert dict(again.headers) == {
        b"location": b"/x",
        b"x-idempotency-replayed": b"true",
        b"x-idempotency-retention": b"60",
        b"content-length": b"4",
    }
    assert b"content-length" not in dict(exchange.replay(Response(204, ()), 60).headers)
    gone = exchange.replay(Response(200, (), b"", omitted=True), 60)
    assert gone.status == 409
    assert json.loads(gone.body)["original_status"] == 200
