"""Blocking apps over real sockets, whatever guards them: which responses are stored and replayed.

The same tests run on plain WSGI, Flask and Django, on Gunicorn's threads; the last one on its
single-threaded workers too.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.http.app_server import BOB, ServedApp, is_replay, problem_code
from tests.http.socket_client import Response
from tests.http.wsgi_server import WSGI_APPS, serve_wsgi
from tests.support.servers.processes import wait_until


@pytest.fixture(scope="module", params=WSGI_APPS)
def running(request: pytest.FixtureRequest) -> Iterator[ServedApp]:
    with serve_wsgi(request.param) as served:
        yield served


@pytest.fixture
def app(running: ServedApp) -> ServedApp:
    running.reset()
    return running


# --- replays ------------------------------------------------------------------------------------


def test_i3_retry_gets_the_same_bytes_and_headers(app: ServedApp) -> None:
    key = app.fresh_key()
    first, again = (app.post("/charges", key, {"cents": 5}) for _ in range(2))
    assert (first.status, again.status) == (201, 201)
    assert first.body == again.body
    assert (is_replay(first), is_replay(again)) == (False, True)
    for name in ("Location", "ETag", "X-Cost", "Content-Type"):
        assert first.one(name) == again.one(name) is not None
    assert again.one("X-No") is None, "only the headers named by the rule are stored"
    assert first.one("X-Idempotency-Retention") == "86400"
    assert 86_000 < int(again.one("X-Idempotency-Retention") or 0) <= 86_400
    assert app.effects() == 1


def test_i7_another_body_is_refused_and_reordered_members_are_not(app: ServedApp) -> None:
    key = app.fresh_key()
    app.post("/charges", key, b'{"a":1,"b":2}')
    assert is_replay(app.post("/charges", f'"{key}"', b'{ "b":2, "a":1 }'))
    other = app.post("/charges", key, b'{"a":1,"b":3}')
    assert (other.status, problem_code(other)) == (422, "key-reused")
    assert app.effects() == 1


def test_key_reused_on_another_path_or_query_is_refused(app: ServedApp) -> None:
    key = app.fresh_key()
    app.post("/charges", key, {})
    assert app.post("/other", key, {}).status == 422
    assert app.post("/charges?dry=1", key, {}).status == 422
    assert app.effects() == 1


def test_i1_twenty_concurrent_duplicates_run_once(app: ServedApp) -> None:
    key = app.fresh_key()
    start = threading.Barrier(20)

    def send(_: int) -> Response:
        with app.connect() as connection:
            start.wait()
            return app.request_on(connection, "/waiting", key, {})

    with ThreadPoolExecutor(20) as pool:
        pending = [pool.submit(send, number) for number in range(20)]
        app.wait_at_gate("gated")
        app.open_gate("gated")
        responses = [one.result() for one in pending]
    assert {response.status for response in responses} == {200}
    assert len({response.body for response in responses}) == 1
    assert sum(map(is_replay, responses)) == 19
    assert app.effects() == 1


def test_duplicate_in_flight_gets_409_and_another_request_422(
    app: ServedApp,
) -> None:
    key = app.fresh_key()
    with app.connect() as connection:
        connection.send_request("POST", "/gated", app.headers(key), b"{}")
        app.wait_at_gate("gated")
        busy = app.post("/gated", key, {})
        assert (busy.status, problem_code(busy)) == (409, "in-flight")
        assert int(busy.one("Retry-After") or 0) >= 1
        assert app.post("/gated", key, {"other": 1}).status == 422
        app.open_gate("gated")
        assert connection.read_response().status == 200
    assert is_replay(app.post("/gated", key, {}))
    assert app.effects() == 1


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/status/204", 204),
        ("/status/400", 400),
        ("/status/404", 404),
        ("/status/500", 500),
        ("/status/302", 302),
        ("/binary", 200),
        ("/large/2000000", 200),
        ("/stream", 200),
    ],
)
def test_response_is_replayed_with_its_status_and_body(
    app: ServedApp, path: str, status: int
) -> None:
    key = app.fresh_key()
    first, again = app.post(path, key, {}), app.post(path, key, {})
    assert (first.status, again.status) == (status, status)
    assert first.body == again.body
    assert first.one("Content-Type") == again.one("Content-Type")
    assert is_replay(again)
    assert app.effects() == 1
    assert bool(first.body) is (status != 204)


@pytest.mark.parametrize("status", [401, 403, 408, 425, 429])
def test_status_that_says_nothing_about_the_operation_is_never_stored(
    app: ServedApp, status: int
) -> None:
    key = app.fresh_key()
    for runs in (1, 2):
        response = app.post(f"/status/{status}", key, {})
        assert (response.status, is_replay(response)) == (status, False)
        assert response.body == b"so be it"
        assert app.effects() == runs


def test_500_of_a_retry_safe_handler_frees_the_key(app: ServedApp) -> None:
    key = app.fresh_key()
    for runs in (1, 2):
        assert app.post("/safe/500", key, {}).status == 500
        assert app.effects() == runs


def test_handler_that_raises_is_not_run_again(app: ServedApp) -> None:
    key = app.fresh_key()
    for _ in range(2):
        response = app.post("/raises", key, {})
        assert response.status == 500
        assert b"s3cret" not in response.body
    assert app.effects() == 1


def test_cookies_are_not_replayed_even_if_a_rule_names_them(app: ServedApp) -> None:
    key = app.fresh_key()
    assert len(app.post("/cookies", key, {}).all("Set-Cookie")) == 2
    again = app.post("/cookies", key, {})
    assert is_replay(again)
    assert again.all("Set-Cookie") == []


def test_response_too_large_to_store_reaches_the_first_caller_only(app: ServedApp) -> None:
    key = app.fresh_key()
    first = app.post("/large/3500000", key, {})
    assert first.body == b"x" * 3_500_000
    again = app.post("/large/3500000", key, {})
    assert (again.status, problem_code(again)) == (409, "not-replayable")
    assert app.effects() == 1


def test_response_too_long_to_buffer_is_streamed(app: ServedApp) -> None:
    """Its key ends when it is clear that it cannot be kept; the rest leaves as it is served."""
    key = app.fresh_key()
    with app.connect() as connection:
        connection.send_request("POST", "/long", app.headers(key), b"{}")
        wait_until(lambda: app.effects("long") == 1, "the first request runs")

        def has_ended() -> bool:
            return problem_code(app.post("/long", key, {})) == "not-replayable"

        wait_until(has_ended, "the key has ended before the handler has")
        assert app.effects("closed") == 0
        app.open_gate("long")
        assert len(connection.read_response().body) == 6_000_000
    assert app.effects("long") == 1
    wait_until(lambda: app.effects("closed") == 1, "its stream is closed")


# --- callers ------------------------------------------------------------------------------------


def test_i15_unknown_caller_claims_nothing_and_gets_no_replay(app: ServedApp) -> None:
    key = app.fresh_key()
    stranger = app.post("/charges", key, {}, who=("Authorization", "Bearer mallory"))
    assert (stranger.status, problem_code(stranger)) == (401, "unknown-caller")
    assert stranger.one("WWW-Authenticate") == "Bearer"
    assert app.effects() == 0
    assert not is_replay(app.post("/charges", key, {})), "the stranger has claimed nothing"
    again = app.post("/charges", key, {}, who=None)
    assert again.status == 401
    assert b"number" not in again.body


def test_i8_two_callers_with_the_same_key_are_independent(app: ServedApp) -> None:
    key = app.fresh_key()
    mine = app.post("/charges", key, {"cents": 1})
    theirs = app.post("/charges", key, {"cents": 2}, who=BOB)
    assert (mine.status, theirs.status) == (201, 201)
    assert mine.body != theirs.body
    assert app.effects() == 2


# --- keys and attempts ------------------------------------------------------------------------


def test_key_can_be_used_again_after_its_keep(app: ServedApp) -> None:
    key = app.fresh_key()
    app.post("/short", key, {})
    assert is_replay(app.post("/short", key, {}))
    app.move_clock(3_600)
    assert not is_replay(app.post("/short", key, {}))
    assert app.effects() == 2


def test_handler_finds_its_attempt(app: ServedApp) -> None:
    body = json.loads(app.post("/attempt", app.fresh_key(), {}).body)
    assert body["fence"] > 0
    assert body["child"].startswith("ok1-")


# --- shutdown --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wsgi", "flask", "django"])
@pytest.mark.parametrize("worker", ["sync", "gthread"])
def test_i14_shutdown_waits_for_the_result_of_a_running_handler(name: str, worker: str) -> None:
    """After SIGTERM in the middle of a handler, its effect, response and record are there."""
    threads = 1 if worker == "sync" else 4
    options = [f"--worker-class={worker}"]
    with serve_wsgi(name, threads=threads, options=options, graceful=60) as served:
        first, again = (served.post("/charges", "k", {}) for _ in range(2))
        assert (is_replay(first), is_replay(again), served.effects()) == (False, True, 1)
        with served.connect() as connection:
            connection.send_request("POST", "/gated", served.headers("key"), b"{}")
            served.wait_at_gate("gated")
            served.server.signal(signal.SIGTERM)
            wait_until(lambda: "Handling signal: term" in served.server.log, "it was body")
            served.open_gate("gated")
            assert connection.read_response().status == 200
        assert served.server.wait() == 0
        served.server.start()
        assert is_replay(served.post("/gated", "key", {}))
        assert served.effects("gated") == 1
