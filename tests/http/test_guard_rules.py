"""Rules, outcomes, stored responses and problems: the pure side of an exchange."""

from __future__ import annotations

import json
import struct
from dataclasses import fields
from typing import Any

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
from oncekey.core.policy import OPTION_NAMES
from oncekey.http import problem as problems
from oncekey.http.exchange import Exchange, RequestKey
from oncekey.http.message import Response, first_header
from oncekey.http.outcomes import NEVER_STORED_STATUSES, is_stored, stored_headers, stored_response
from oncekey.http.response_codec import CODEC
from oncekey.http.rules import Rule, Rules

# --- rules --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*", "/anything/at/all", True),
        ("/charges", "/charges", True),
        ("/charges", "/charges/", True),
        ("/charges", "/charges/1", False),
        ("/charges", "/chargesx", False),
        ("/charges/{id}/refunds", "/charges/ch_1/refunds", True),
        ("/charges/{id}/refunds", "/charges/ch_1/x/refunds", False),
        ("/charges/{id}/refunds", "/charges//refunds", False),
        ("/api/*", "/api/a/b", True),
        ("/api/*", "/other", False),
        ("/a.b", "/aXb", False),
    ],
)
def test_paths(pattern: str, path: str, fits: bool) -> None:
    assert (Rules([Rule(pattern)]).find("POST", path) is not None) is fits


def test_the_first_rule_that_fits_counts_and_none_means_pass() -> None:
    hook, charge = Rule("/hooks/*", guarded=False), Rule("/charges", methods=["POST", "PUT"])
    rules = Rules([hook, charge])
    assert rules.find("POST", "/hooks/x") is None
    assert rules.find("PUT", "/charges") is charge
    assert rules.find("PATCH", "/charges") is None
    assert rules.find("POST", "/elsewhere") is None
    for method in ("GET", "HEAD", "OPTIONS", "TRACE"):
        assert Rules().find(method, "/charges") is None
    for method in ("POST", "PATCH"):
        assert Rules().find(method, "/x") is not None


def test_a_client_does_not_choose_its_rule_by_the_way_it_spells_a_path() -> None:
    hooks, pay = Rule("/hooks/*", guarded=False), Rule("/pay", methods=["*"])
    rest = Rule("*", required=False, methods=["*"])
    rules = Rules([hooks, rest, pay])
    assert rules.find("POST", "/pay") is rest  # the first that fits, where there is one reading
    rules = Rules([hooks, pay, rest])
    for path in ("/pay", "//pay", "/hooks/../pay", "/x/../pay/", "http://x/pay", "/pay\n"):
        assert rules.find("PUT", path) is pay
    loose, strict = Rule("/a/*", required=False), Rule("/pay")
    assert Rules([loose, strict]).find("POST", "/a/../pay") is strict
    assert rules.find("POST", "/hooks/x") is None
    assert rules.excludes("POST", "/hooks/x")
    assert not rules.excludes("POST", "/pay")
    for method in ("PUT", "DELETE", "charge"):
        assert rules.find(method, "/x") is rest
    for method in ("GET", "head", "OPTIONS", "TRACE"):
        assert rules.find(method, "/x") is None


@pytest.mark.parametrize(
    "options",
    [
        {"methods": ["GET"]},
        {"methods": []},
        {"methods": ["PO ST"]},
        {"methods": "POST"},
        {"path": "charges"},
        {"path": "/a*b"},
        {"ignore": ["a"], "only": ["b"]},
        {"ignore": "a"},
        {"only": []},
        {"max_request": 0},
        {"max_response": 10**12},
        {"store_down": "maybe"},
        {"lease": "soon"},
        {"keep": "0s"},
        {"retry_safe": "yes"},
        {"require": "certain"},
    ],
)
def test_mistakes_are_found_when_a_rule_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Rule(**options)


def test_a_rule_takes_every_option_of_a_policy() -> None:
    """All but max_bytes, which follows from max_response."""
    rule_options = {item.name for item in fields(Rule) if item.init}
    assert set(OPTION_NAMES) - {"max_bytes"} <= rule_options
    given: dict[str, Any] = {"keep_unknown": "9d", "store_timeout": "3s", "recover_grace": "2m"}
    assert given.items() <= Rule(**given).options.items()


def test_only_what_was_given_goes_to_the_engine() -> None:
    assert set(Rule().options) == {"max_bytes"}
    given = Rule(lease="5s", retry_safe=False, wait="1s").options
    assert {name: given[name] for name in ("lease", "retry_safe", "wait")} == {
        "lease": "5s",
        "retry_safe": False,
        "wait": "1s",
    }


# --- outcomes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204, 301, 304, 400, 404, 409, 410, 422, 451])
def test_answers_are_stored(status: int) -> None:
    assert is_stored(status, (), retry_safe=False)
    assert is_stored(status, (), retry_safe=True)


@pytest.mark.parametrize("status", sorted(NEVER_STORED_STATUSES))
def test_refusals_that_say_nothing_about_the_operation_are_not(status: int) -> None:
    assert not is_stored(status, (), retry_safe=False)


def test_failures_of_the_server_follow_retry_safe() -> None:
    for status in (500, 502, 503, 504):
        assert is_stored(status, (), retry_safe=False)
        assert not is_stored(status, (), retry_safe=True)
    assert not is_stored(503, ((b"retry-after", b"5"),), retry_safe=False)


HEADERS = (
    (b"content-type", b"text/plain"),
    (b"location", b"/x/1"),
    (b"etag", b'"1"'),
    (b"x-request-cost", b"3"),
    (b"set-cookie", b"a=1"),
    (b"set-cookie", b"b=2"),
    (b"content-length", b"3"),
    (b"date", b"today"),
    (b"connection", b"close, x-hop"),
    (b"x-hop", b"1"),
    (b"transfer-encoding", b"chunked"),
    (b"www-authenticate", b"Basic"),
    (b"access-control-allow-origin", b"*"),
    (b"x-ratelimit-left", b"1"),
    (b"link", b"<a>"),
    (b"link", b"<b>"),
)


def test_headers_that_are_given_again() -> None:
    assert stored_headers(HEADERS) == (
        (b"content-type", b"text/plain"),
        (b"location", b"/x/1"),
        (b"etag", b'"1"'),
        (b"link", b"<a>"),
        (b"link", b"<b>"),
    )
    chosen = {b"x-request-cost", b"set-cookie", b"x-hop", b"access-control-allow-origin", b"date"}
    more = stored_headers(HEADERS, chosen)
    assert {name for name, _ in more} - {name for name, _ in stored_headers(HEADERS)} == {
        b"x-request-cost"
    }


def test_a_large_body_is_left_out_and_said_to_be() -> None:
    response = Response(200, HEADERS, b"x" * 11)
    assert stored_response(response, (), 11).body == b"x" * 11
    stored = stored_response(response, (), 10)
    assert (stored.body, stored.omitted, stored.status) == (b"", True, 200)


def test_stored_responses_come_back_byte_by_byte() -> None:
    response = Response(299, ((b"x", bytes(range(32, 256))), (b"x", b"")), bytes(range(256)) * 9)
    assert CODEC.load(CODEC.dump(response)) == response
    omitted = Response(200, (), b"", omitted=True)
    assert CODEC.load(CODEC.dump(omitted)) == omitted


def test_a_stored_response_that_was_cut_short_is_not_taken_for_one() -> None:
    whole = CODEC.dump(Response(200, ((b"content-type", b"text/plain"),)))
    for size in range(len(whole)):
        with pytest.raises((ValueError, struct.error)):
            CODEC.load(whole[:size])


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
def test_every_error_is_a_problem(error: OncekeyError, status: int, retryable: bool) -> None:
    response = Exchange(Rules(), policy_url="/policy").error_response(error)
    told = json.loads(response.body)
    assert (response.status, told["status"], told["retryable"]) == (status, status, retryable)
    assert first_header(response.headers, b"content-type") == b"application/problem+json"
    assert first_header(response.headers, b"content-length") == b"%d" % len(response.body)
    assert first_header(response.headers, b"cache-control") == b"no-store"
    assert first_header(response.headers, b"link").startswith(b'</policy>; rel="describedby"')
    assert bool(first_header(response.headers, b"retry-after")) is retryable
    assert told["type"].startswith("/policy#")
    assert told["title"]
    assert b"s3cret" not in response.body


def test_a_mistake_of_the_set_up_is_nobodys_refusal() -> None:
    with pytest.raises(ConfigurationError):
        Exchange(Rules()).error_response(ConfigurationError("wrong"))


def test_retry_after_is_what_requests_usually_take_and_no_longer_than_the_lease() -> None:
    rule = Rule()
    exchange = Exchange(Rules([rule]))

    def told(remaining: float) -> int:
        response = exchange.error_response(InFlight(retry_after=remaining), rule)
        return int(first_header(response.headers, b"retry-after"))

    assert told(30.0) == 2, "nothing was seen yet"
    exchange.latency.record(rule, 2.5)
    assert told(30.0) == 3
    assert told(1.2) == 2
    exchange.latency.record(rule, 0.001)
    assert told(30.0) == 3, "one quick one does not change much"
    for _ in range(100):
        exchange.latency.record(rule, 0.001)
    assert told(30.0) == 1, "never less than a second"


def test_every_problem_is_in_the_list_and_has_a_name_of_its_own() -> None:
    made = [p for p in vars(problems).values() if isinstance(p, problems.Problem)]
    assert sorted(made) == sorted(problems.ALL_PROBLEMS)
    assert len({problem.name for problem in made}) == len(made)


# --- the exchange -------------------------------------------------------------------------------


def test_a_request_has_a_key_is_refused_or_passes() -> None:
    needed, optional = Rule(), Rule(required=False)
    exchange = Exchange(Rules())
    header = (b"idempotency-key", b"k")
    assert exchange.key_of(needed, (header,)) == RequestKey(needed, "k")
    assert exchange.key_of(optional, ()) is None
    missing = exchange.key_of(needed, ())
    assert isinstance(missing, Response)
    assert missing.status == 400
    malformed = exchange.key_of(optional, ((b"idempotency-key", b'"'),))
    assert isinstance(malformed, Response), "who sends one believes to be protected"
    assert malformed.status == 400


def test_a_replay_is_marked_and_an_omitted_one_is_refused() -> None:
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
    assert not first_header(exchange.replay(Response(204, ()), 60).headers, b"content-length")
    gone = exchange.replay(Response(200, (), b"", omitted=True), 60)
    assert gone.status == 409
    assert json.loads(gone.body)["original_status"] == 200
