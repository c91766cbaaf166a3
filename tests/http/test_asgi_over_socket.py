"""The ASGI middleware over a real socket: replays, callers, headers and bodies, time."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from tests.http.app_server import BOB, ServedApp, serve_app
from tests.http.socket_client import Response
from tests.support.servers import require
from tests.support.servers.http_servers import Uvicorn
from tests.support.servers.processes import wait_until

from oncekey import AsyncOnce, ConfigurationError, Once
from oncekey.http.asgi import IdempotencyMiddleware

LEASE_SECONDS = 60  # of the app


@pytest.fixture(scope="module")
def running() -> Iterator[ServedApp]:
    require(lambda: Uvicorn("x:y"))  # skips by name where it is not installed
    with serve_app(Uvicorn) as made:
        yield made


@pytest.fixture
def app(running: ServedApp) -> ServedApp:
    running.reset()
    return running


def replayed(response: Response) -> bool:
    return response.one("X-Idempotency-Replayed") == "true"


def problem_of(response: Response) -> str:
    assert response.one("Content-Type") == "application/problem+json"
    problem = json.loads(response.body)
    assert problem["status"] == response.status
    return str(problem["type"]).removeprefix("/policy#")


# --- replays ------------------------------------------------------------------------------------


def test_i3_a_retry_gets_the_same_bytes_and_headers(app: ServedApp) -> None:
    key = app.fresh_key()
    first, again = (app.post("/charges", key, {"cents": 5}) for _ in range(2))
    assert (first.status, again.status) == (201, 201)
    assert first.body == again.body
    assert not replayed(first)
    assert replayed(again)
    for name in ("Location", "ETag", "X-Cost", "Content-Type", "Content-Length"):
        assert first.one(name) == again.one(name) is not None
    assert again.one("X-No") is None, "only what was chosen is kept"
    assert first.one("X-Idempotency-Retention") == "86400"
    assert 86_000 < int(again.one("X-Idempotency-Retention") or 0) <= 86_400
    assert app.effects() == 1


def test_i7_another_body_is_refused_and_a_reordered_one_replayed(app: ServedApp) -> None:
    key = app.fresh_key()
    app.post("/charges", key, b'{"a":1,"b":2}')
    again = app.post("/charges", f'"{key}"', b'{ "b":2, "a":1 }')
    assert replayed(again)
    other = app.post("/charges", key, b'{"a":1,"b":3}')
    assert (other.status, problem_of(other)) == (422, "key-reused")
    assert app.effects() == 1


def test_the_same_key_on_another_path_or_method_is_refused(app: ServedApp) -> None:
    key = app.fresh_key()
    app.post("/charges", key, {})
    assert app.post("/other", key, {}).status == 422
    assert app.post("/charges?dry=1", key, {}).status == 422
    assert app.effects() == 1


def test_i1_twenty_concurrent_requests_run_once(app: ServedApp) -> None:
    key = app.fresh_key()
    start = threading.Barrier(20)

    def post(_: int) -> Response:
        with app.connect() as connection:
            start.wait()
            return app.request_on(connection, "/waiting", key, {})

    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(post, number) for number in range(20)]
        app.wait_at_gate("gated")
        app.open_gate("gated")
        answers = [one.result() for one in asked]
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body for answer in answers}) == 1
    assert sum(map(replayed, answers)) == 19
    assert app.effects() == 1


def test_while_the_handler_runs_a_retry_gets_409_and_another_body_422(
    app: ServedApp,
) -> None:
    key = app.fresh_key()
    with app.connect() as connection:
        connection.send_request("POST", "/gated", app.headers(key), b"{}")
        app.wait_at_gate("gated")
        busy = app.post("/gated", key, {})
        assert (busy.status, problem_of(busy)) == (409, "in-flight")
        assert int(busy.one("Retry-After") or 0) >= 1
        other = app.post("/gated", key, {"other": 1})
        assert (other.status, problem_of(other)) == (422, "key-reused")
        app.open_gate("gated")
        assert connection.read_response().status == 200
    assert replayed(app.post("/gated", key, {}))
    assert app.effects() == 1


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/status/204", 204),
        ("/status/400", 400),
        ("/status/404", 404),
        ("/status/500", 500),
        ("/status/302", 302),
        ("/refuses", 409),
        ("/binary", 200),
        ("/blocking", 200),
        ("/large/2000000", 200),
        ("/stream", 200),
    ],
)
def test_any_response_is_replayed(app: ServedApp, path: str, status: int) -> None:
    key = app.fresh_key()
    first, again = app.post(path, key, {}), app.post(path, key, {})
    assert (first.status, again.status) == (status, status)
    assert first.body == again.body
    assert replayed(again)
    assert app.effects() == 1
    assert bool(first.body) is (status != 204)


@pytest.mark.parametrize("status", [401, 403, 408, 425, 429])
def test_401_403_408_425_and_429_free_the_key(app: ServedApp, status: int) -> None:
    key = app.fresh_key()
    for runs in (1, 2):
        answer = app.post(f"/status/{status}", key, {})
        assert (answer.status, replayed(answer)) == (status, False)
        assert app.effects() == runs


def test_a_500_of_a_retry_safe_route_frees_the_key(app: ServedApp) -> None:
    key = app.fresh_key()
    for runs in (1, 2):
        assert app.post("/safe/500", key, {}).status == 500
        assert app.effects() == runs


def test_a_handler_that_raises_is_not_run_again(app: ServedApp) -> None:
    key = app.fresh_key()
    assert app.post("/raises", key, {}).status == 500
    again = app.post("/raises", key, {})
    assert (again.status, problem_of(again)) == (500, "failed")
    assert b"s3cret" not in again.body
    assert app.effects() == 1


def test_a_replay_sets_no_cookies_even_if_a_rule_keeps_them(app: ServedApp) -> None:
    key = app.fresh_key()
    assert len(app.post("/cookies", key, {}).all("Set-Cookie")) == 2
    again = app.post("/cookies", key, {})
    assert replayed(again)
    assert again.all("Set-Cookie") == []


def test_a_response_too_large_to_store_is_sent_once(app: ServedApp) -> None:
    key = app.fresh_key()
    first = app.post("/large/4000000", key, {})
    assert len(first.body) == 4_000_000
    again = app.post("/large/4000000", key, {})
    assert (again.status, problem_of(again)) == (409, "not-replayable")
    assert app.effects() == 1


def test_a_response_too_long_to_hold_passes_through(app: ServedApp) -> None:
    """Its key ends when it is known that it cannot be stored; the rest is sent as it is made."""
    key = app.fresh_key()
    with app.connect() as connection:
        connection.send_request("POST", "/long", app.headers(key), b"{}")
        app.wait_at_gate("long")
        assert connection.wait_for_bytes(), (
            "the first part is on its way, though the handler has not ended"
        )
        again = app.post("/long", key, {})
        assert (again.status, problem_of(again)) == (409, "not-replayable")
        app.open_gate("long")
        assert len(connection.read_response().body) == 6_000_000
    assert app.effects() == 1


# --- callers ------------------------------------------------------------------------------------


def test_i15_without_a_caller_nothing_is_claimed_and_nothing_replayed(app: ServedApp) -> None:
    key = app.fresh_key()
    stranger = app.post("/charges", key, {}, who=("Authorization", "Bearer mallory"))
    assert (stranger.status, problem_of(stranger)) == (401, "unknown-caller")
    assert stranger.one("WWW-Authenticate") == "Bearer"
    assert app.effects() == 0
    assert not replayed(app.post("/charges", key, {})), "the stranger has claimed nothing"
    again = app.post("/charges", key, {}, who=None)
    assert again.status == 401
    assert b"number" not in again.body


def test_i8_two_callers_with_one_key_have_two_records(app: ServedApp) -> None:
    key = app.fresh_key()
    mine = app.post("/charges", key, {"cents": 1})
    theirs = app.post("/charges", key, {"cents": 2}, who=BOB)
    assert (mine.status, theirs.status) == (201, 201)
    assert mine.body != theirs.body
    assert app.effects() == 2


async def _app(scope: object, receive: object, send: object) -> None:
    raise AssertionError


def test_a_middleware_without_a_caller_function_is_refused() -> None:
    with pytest.raises(TypeError, match="caller"):
        IdempotencyMiddleware(_app, AsyncOnce("memory://"))  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="caller"):
        IdempotencyMiddleware(_app, AsyncOnce("memory://"), caller=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="AsyncOnce"):
        IdempotencyMiddleware(_app, Once("memory://"), caller=str)  # type: ignore[arg-type]


# --- headers and bodies -------------------------------------------------------------------------


def test_invalid_keys_are_refused_and_the_connection_stays_open(app: ServedApp) -> None:
    with app.connect() as connection:
        for key in (None, "", '"', "a b", "a,b", "x" * 256):
            answer = app.request_on(connection, "/charges", key, {"cents": 1})
            assert answer.status == 400, key
            assert problem_of(answer) == ("missing-key" if key is None else "invalid-key")
            assert answer.one("Link") == '</policy>; rel="describedby"; type="text/html"'
        two = [("Idempotency-Key", '"a"'), ("Idempotency-Key", '"a"')]
        assert app.request_on(connection, "/charges", None, {}, headers=two).status == 400
        stranger = app.request_on(connection, "/charges", "k", {}, who=None)
        assert stranger.status == 401
        bad = app.request_on(
            connection, "/upload", app.fresh_key(), b"x", headers=[("Content-Encoding", "gzip")]
        )
        assert (bad.status, problem_of(bad)) == (400, "unreadable-body")
        assert app.effects() == 0
        assert app.request_on(connection, "/charges", app.fresh_key(), {}).status == 201


def test_a_body_too_large_is_refused_before_its_key_is_claimed(app: ServedApp) -> None:
    key = app.fresh_key()
    large = app.post("/upload", key, b"x" * 10_001)
    assert (large.status, problem_of(large)) == (413, "request-too-large")
    with app.connect() as connection:
        head = app.headers(key, more=[("Transfer-Encoding", "chunked")])
        connection.send(
            connection.request_head("POST", "/upload", head), b"2711\r\n", b"x" * 10_001
        )
        assert connection.read_response().status == 413
    bomb = gzip.compress(bytes(1_000_000))
    packed = [("Content-Encoding", "gzip")]
    assert app.post("/upload", key, bomb, headers=packed).status == 413
    assert app.effects() == 0
    assert app.post("/upload", key, b"x" * 10_000).status == 200


def test_compressed_bodies_are_compared_decompressed(app: ServedApp) -> None:
    key = app.fresh_key()
    packed = [("Content-Encoding", "gzip")]
    one, other = (gzip.compress(b'{"a":1}', mtime=time) for time in (1, 2))
    assert app.post("/upload", key, one, headers=packed).status == 200
    assert replayed(app.post("/upload", key, other, headers=packed))
    assert app.effects() == 1


def test_chunked_and_whole_bodies_are_the_same_request(app: ServedApp) -> None:
    key = app.fresh_key()
    app.post("/charges", key, b'{"a":1}')
    with app.connect() as connection:
        head = [*app.headers(key), ("Transfer-Encoding", "chunked")]
        connection.send(
            connection.request_head("POST", "/charges", head),
            b'3\r\n{"a\r\n',
            b'4\r\n":1}\r\n0\r\n\r\n',
        )
        assert replayed(connection.read_response())


def test_an_optional_key_guards_only_requests_that_have_one(app: ServedApp) -> None:
    for _ in range(2):
        assert app.post("/optional", None, {}, who=None).status == 201
    assert app.effects() == 2
    assert app.post("/optional", '"', {}).status == 400, "a malformed one is never ignored"
    key = app.fresh_key()
    assert [replayed(app.post("/optional", key, {})) for _ in range(2)] == [False, True]


def test_requests_that_no_rule_guards_reach_the_app_unchanged(app: ServedApp) -> None:
    with app.connect() as connection:
        answer = connection.request("GET", "/read", [("Idempotency-Key", '"')])
        assert (answer.status, answer.body) == (200, b"0\n1\n2\n3\n4\n")
        assert answer.one("X-Idempotency-Retention") is None
        head = connection.request("HEAD", "/read")
        assert head.status == 200
    assert app.post("/charges", None, {}, method="PUT", who=None).status == 201, "not guarded"


# --- time ---------------------------------------------------------------------------------------


def test_i5_a_handler_longer_than_its_lease_runs_once(app: ServedApp) -> None:
    key = app.fresh_key()
    with app.connect() as connection:
        connection.send_request("POST", "/gated", app.headers(key), b"{}")
        app.wait_at_gate("gated")
        for _ in range(3):  # each time heartbeats are due, and less than the lease has passed
            before = app.lease_end()
            app.move_clock(LEASE_SECONDS / 2)
            renewed = before + LEASE_SECONDS / 2 * 1_000_000
            wait_until(partial(leased_until, app, renewed), "a heartbeat has renewed the lease")
            assert problem_of(app.post("/gated", key, {})) == "in-flight"
        app.open_gate("gated")
        assert connection.read_response().status == 200
    assert app.effects() == 1


def leased_until(app: ServedApp, moment: float) -> bool:
    return app.lease_end() >= moment


def test_a_key_runs_again_after_its_retention(app: ServedApp) -> None:
    key = app.fresh_key()
    app.post("/short", key, {})
    assert replayed(app.post("/short", key, {}))
    app.move_clock(3_600)
    assert not replayed(app.post("/short", key, {}))
    assert app.effects() == 2


def test_background_tasks_run_after_the_outcome_is_stored(app: ServedApp) -> None:
    """The answer and its record are there while the task still runs."""
    key = app.fresh_key()
    with app.connect() as connection:
        answer = app.request_on(connection, "/background", key, {})
        assert answer.status == 200
        app.wait_at_gate("afterwards")
        assert replayed(app.post("/background", key, {}))
        assert app.effects("afterwards") == 0
        app.open_gate("afterwards")
        wait_until(lambda: app.effects("afterwards") == 1, "the task has run")
    assert app.effects("background") == 1


def test_attempt_of_gives_the_handler_its_attempt(app: ServedApp) -> None:
    attempt = json.loads(app.post("/attempt", app.fresh_key(), {}).body)
    assert attempt["fence"] > 0
    assert attempt["child"].startswith("ok1-")
