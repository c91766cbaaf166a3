"""Blocking apps over real sockets, whatever guards them: plain WSGI, Flask and Django.

Each line of what a payment company would ask, on Gunicorn's threads; one by one on its plain
workers too.
"""

from __future__ import annotations

import gzip
import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.http.app_server import BOB, ServedApp, serve_app
from tests.http.socket_client import Response
from tests.support.servers import require
from tests.support.servers.http import Gunicorn
from tests.support.servers.processes import wait_until

APPS = {
    "wsgi": ("plain_app:app", ""),
    "flask": ("flask_app:app", ""),
    "flask-rules": ("flask_app:app", "rules"),
    "django": ("django_app:app", "views"),
    "django-middleware": ("django_app:app", "middleware"),
}
THREADS = 24


@pytest.fixture(scope="module", params=APPS)
def running(request: pytest.FixtureRequest) -> Iterator[ServedApp]:
    require(lambda: Gunicorn("x:y"))  # skips by name where it is not installed
    app, kind = APPS[request.param]
    env = {"GUARDED_KIND": kind}
    with serve_app(Gunicorn, f"tests.http.wsgi_apps.{app}", threads=THREADS, env=env) as made:
        yield made


@pytest.fixture
def app(running: ServedApp) -> ServedApp:
    running.reset()
    return running


def replayed(response: Response) -> bool:
    return response.one("X-Idempotency-Replayed") == "true"


def kind_of(response: Response) -> str:
    assert response.one("Content-Type") == "application/problem+json"
    told = json.loads(response.body)
    assert told["status"] == response.status
    return str(told["type"]).removeprefix("/policy#")


def reads_chunks(app: ServedApp) -> bool:
    """Django does not behind WSGI: views would see an empty body, so such requests are refused."""
    return "django" not in app.server.app


# --- replays ------------------------------------------------------------------------------------


def test_i3_a_retry_gets_the_same_bytes_and_headers(app: ServedApp) -> None:
    key = app.fresh_key()
    first, again = (app.post("/charges", key, {"cents": 5}) for _ in range(2))
    assert (first.status, again.status) == (201, 201)
    assert first.body == again.body
    assert (replayed(first), replayed(again)) == (False, True)
    for name in ("Location", "ETag", "X-Cost", "Content-Type"):
        assert first.one(name) == again.one(name) is not None
    assert again.one("X-No") is None, "only what was chosen is kept"
    assert first.one("X-Idempotency-Retention") == "86400"
    assert 86_000 < int(again.one("X-Idempotency-Retention") or 0) <= 86_400
    assert app.effects() == 1


def test_i7_another_body_is_refused_and_reordered_members_are_no_other_body(app: ServedApp) -> None:
    key = app.fresh_key()
    app.post("/charges", key, b'{"a":1,"b":2}')
    assert replayed(app.post("/charges", f'"{key}"', b'{ "b":2, "a":1 }'))
    other = app.post("/charges", key, b'{"a":1,"b":3}')
    assert (other.status, kind_of(other)) == (422, "key-reused")
    assert app.effects() == 1


def test_the_same_key_on_another_path_or_query_is_refused(app: ServedApp) -> None:
    key = app.fresh_key()
    app.post("/charges", key, {})
    assert app.post("/other", key, {}).status == 422
    assert app.post("/charges?dry=1", key, {}).status == 422
    assert app.effects() == 1


def test_i1_twenty_at_once_run_once(app: ServedApp) -> None:
    key = app.fresh_key()
    start = threading.Barrier(20)

    def ask(_: int) -> Response:
        with app.connect() as connection:
            start.wait()
            return app.request_on(connection, "/waiting", key, {})

    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(ask, number) for number in range(20)]
        app.wait_at_gate("gated")
        app.open_gate("gated")
        answers = [one.result() for one in asked]
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body for answer in answers}) == 1
    assert sum(map(replayed, answers)) == 19
    assert app.effects() == 1


def test_while_it_runs_a_retry_is_told_to_come_back_and_another_request_is_refused(
    app: ServedApp,
) -> None:
    key = app.fresh_key()
    with app.connect() as connection:
        connection.send_request("POST", "/gated", app.headers(key), b"{}")
        app.wait_at_gate("gated")
        busy = app.post("/gated", key, {})
        assert (busy.status, kind_of(busy)) == (409, "in-flight")
        assert int(busy.one("Retry-After") or 0) >= 1
        assert app.post("/gated", key, {"other": 1}).status == 422
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
        ("/binary", 200),
        ("/large/2000000", 200),
        ("/stream", 200),
    ],
)
def test_whatever_was_answered_is_answered_again(app: ServedApp, path: str, status: int) -> None:
    key = app.fresh_key()
    first, again = app.post(path, key, {}), app.post(path, key, {})
    assert (first.status, again.status) == (status, status)
    assert first.body == again.body
    assert first.one("Content-Type") == again.one("Content-Type")
    assert replayed(again)
    assert app.effects() == 1
    assert bool(first.body) is (status != 204)


@pytest.mark.parametrize("status", [401, 403, 408, 425, 429])
def test_refusals_that_are_not_about_the_operation_are_never_stored(
    app: ServedApp, status: int
) -> None:
    key = app.fresh_key()
    for runs in (1, 2):
        answer = app.post(f"/status/{status}", key, {})
        assert (answer.status, replayed(answer)) == (status, False)
        assert answer.body == b"so be it"
        assert app.effects() == runs


def test_failures_follow_retry_safe(app: ServedApp) -> None:
    key = app.fresh_key()
    for runs in (1, 2):
        assert app.post("/safe/500", key, {}).status == 500
        assert app.effects() == runs


def test_a_handler_that_raises_is_not_run_again(app: ServedApp) -> None:
    key = app.fresh_key()
    for _ in range(2):
        answer = app.post("/raises", key, {})
        assert answer.status == 500
        assert b"s3cret" not in answer.body
    assert app.effects() == 1


def test_cookies_are_set_once_and_never_again_whatever_is_chosen(app: ServedApp) -> None:
    key = app.fresh_key()
    assert len(app.post("/cookies", key, {}).all("Set-Cookie")) == 2
    again = app.post("/cookies", key, {})
    assert replayed(again)
    assert again.all("Set-Cookie") == []


def test_an_answer_too_large_to_keep_is_given_once(app: ServedApp) -> None:
    key = app.fresh_key()
    first = app.post("/large/3500000", key, {})
    assert first.body == b"x" * 3_500_000
    again = app.post("/large/3500000", key, {})
    assert (again.status, kind_of(again)) == (409, "not-replayable")
    assert app.effects() == 1


def test_what_is_longer_than_anything_we_hold_flows_through(app: ServedApp) -> None:
    """Its key ends when it is clear that it cannot be kept; the rest leaves as it is made."""
    key = app.fresh_key()
    with app.connect() as connection:
        connection.send_request("POST", "/long", app.headers(key), b"{}")
        wait_until(lambda: app.effects("long") == 1, "it runs: the others come second")

        def is_over() -> bool:
            return kind_of(app.post("/long", key, {})) == "not-replayable"

        wait_until(is_over, "its key has ended though its handler has not")
        assert app.effects("closed") == 0
        app.open_gate("long")
        assert len(connection.read_response().body) == 6_000_000
    assert app.effects("long") == 1
    wait_until(lambda: app.effects("closed") == 1, "its stream is closed")


# --- callers ------------------------------------------------------------------------------------


def test_i15_without_a_caller_nothing_is_claimed_and_nothing_replayed(app: ServedApp) -> None:
    key = app.fresh_key()
    stranger = app.post("/charges", key, {}, who=("Authorization", "Bearer mallory"))
    assert (stranger.status, kind_of(stranger)) == (401, "unknown-caller")
    assert stranger.one("WWW-Authenticate") == "Bearer"
    assert app.effects() == 0
    assert not replayed(app.post("/charges", key, {})), "the stranger has claimed nothing"
    again = app.post("/charges", key, {}, who=None)
    assert again.status == 401
    assert b"number" not in again.body


def test_i8_two_callers_with_one_key_do_not_meet(app: ServedApp) -> None:
    key = app.fresh_key()
    mine = app.post("/charges", key, {"cents": 1})
    theirs = app.post("/charges", key, {"cents": 2}, who=BOB)
    assert (mine.status, theirs.status) == (201, 201)
    assert mine.body != theirs.body
    assert app.effects() == 2


# --- headers and bodies -------------------------------------------------------------------------


def test_bad_keys_are_refused_and_the_connection_lives_on(app: ServedApp) -> None:
    with app.connect() as connection:
        for key in (None, "", '"', "a b", "a,b", "x" * 256):
            answer = app.request_on(connection, "/charges", key, {"cents": 1})
            assert answer.status == 400, key
            assert kind_of(answer) == ("missing-key" if key is None else "invalid-key")
            assert answer.one("Link") == '</policy>; rel="describedby"; type="text/html"'
        stranger = app.request_on(connection, "/charges", "k", {"cents": 2}, who=None)
        assert stranger.status == 401
        bad = app.request_on(
            connection, "/upload", app.fresh_key(), b"x", headers=[("Content-Encoding", "gzip")]
        )
        assert (bad.status, kind_of(bad)) == (400, "unreadable-body")
        large = app.request_on(connection, "/upload", app.fresh_key(), b"x" * 10_001)
        assert large.status == 413
        assert app.effects() == 0
        key = app.fresh_key()
        assert app.request_on(connection, "/charges", key, {}).status == 201
        assert app.request_on(connection, "/charges", key, {"other": 1}).status == 422
        assert replayed(app.request_on(connection, "/charges", key, {}))


@pytest.mark.parametrize("keys", [('"a"', '"a"'), ("a", "a"), ('"a"', "b"), ("a", '"b"')])
def test_two_lines_are_no_key_though_the_server_joins_them(
    app: ServedApp, keys: tuple[str, str]
) -> None:
    two = [("Idempotency-Key", keys[0]), ("idempotency-key", keys[1])]
    answer = app.post("/charges", None, {}, headers=two)
    assert (answer.status, kind_of(answer)) == (400, "invalid-key")
    assert app.effects() == 0


def test_a_name_with_an_underscore_is_the_same_name_where_the_server_lets_it_in() -> None:
    """By itself Gunicorn drops such lines."""
    options = ["--header-map=dangerous"]
    with serve_app(Gunicorn, "tests.http.wsgi_apps.plain_app:app", options=options) as made:
        other = [("Idempotency_Key", "b")]
        assert made.post("/charges", "a", {}, headers=other).status == 400
        assert made.effects() == 0
        assert made.post("/charges", None, {}, headers=other).status == 201
        assert replayed(made.post("/charges", "b", {}))


def test_too_large_a_body_is_refused_before_anything_is_claimed(app: ServedApp) -> None:
    key = app.fresh_key()
    large = app.post("/upload", key, b"x" * 10_001)
    assert (large.status, kind_of(large)) == (413, "request-too-large")
    with app.connect() as connection:
        head = [*app.headers(key), ("Transfer-Encoding", "chunked")]
        connection.send(
            connection.request_head("POST", "/upload", head),
            b"2711\r\n",
            b"x" * 10_001,
            b"\r\n0\r\n\r\n",
        )
        assert connection.read_response().status == (413 if reads_chunks(app) else 400)
    packed = [("Content-Encoding", "gzip")]
    bomb = gzip.compress(bytes(1_000_000))
    assert app.post("/upload", key, bomb, headers=packed).status == 413
    assert app.effects() == 0
    assert app.post("/upload", key, b"x" * 10_000).status == 200


def test_chunked_and_whole_bodies_are_the_same_request(app: ServedApp) -> None:
    """And a handler sees all of it either way. Where chunks cannot be read, they are refused: an
    empty body would pass for another request."""
    key, fresh = app.fresh_key(), app.fresh_key()
    app.post("/charges", key, b'{"a":1}')
    for used, again in ((key, True), (fresh, False)):
        with app.connect() as connection:
            head = [*app.headers(used), ("Transfer-Encoding", "chunked")]
            connection.send(
                connection.request_head("POST", "/charges", head),
                b'3\r\n{"a\r\n4\r\n":1}\r\n0\r\n\r\n',
            )
            answer = connection.read_response()
            if not reads_chunks(app):
                assert (answer.status, app.effects()) == (400, 1)
                continue
            assert replayed(answer) is again
            assert json.loads(answer.body)["asked"] == {"a": 1}


def test_who_goes_away_before_all_was_sent_has_claimed_nothing(app: ServedApp) -> None:
    key = app.fresh_key()
    with app.connect() as connection:
        connection.send(
            connection.request_head(
                "POST", "/charges", [*app.headers(key), ("Content-Length", "7")]
            ),
            b"{",
        )
        connection.half_close()
        assert connection.is_closed() or connection.read_response().status == 400
    assert app.effects() == 0
    assert app.post("/charges", key, {"a": 1}).status == 201


def test_an_optional_key_protects_only_who_sends_it(app: ServedApp) -> None:
    for _ in range(2):
        assert app.post("/optional", None, {}, who=None).status == 201
    assert app.effects() == 2
    assert app.post("/optional", '"', {}).status == 400, "a malformed one is never ignored"
    key = app.fresh_key()
    assert [replayed(app.post("/optional", key, {})) for _ in range(2)] == [False, True]


def test_reads_pass_untouched_as_they_are_made(app: ServedApp) -> None:
    with app.connect() as connection:
        connection.send_request("GET", "/read", [("Idempotency-Key", '"')])
        app.wait_at_gate("read")
        assert connection.wait_for_bytes(), "the first part is here, the second is not made yet"
        app.open_gate("read")
        answer = connection.read_response()
        assert (answer.status, answer.body) == (200, b"0\n1\n")
        assert answer.one("X-Idempotency-Retention") is None


# --- time ---------------------------------------------------------------------------------------


def test_a_key_is_fresh_again_when_its_keep_is_over(app: ServedApp) -> None:
    key = app.fresh_key()
    app.post("/short", key, {})
    wait_until(lambda: not replayed(app.post("/short", key, {})), "300 ms are over")
    assert app.effects() == 2


def test_the_handler_finds_its_attempt(app: ServedApp) -> None:
    told = json.loads(app.post("/attempt", app.fresh_key(), {}).body)
    assert told["fence"] > 0
    assert told["child"].startswith("ok1-")


# --- the server's life --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wsgi", "flask", "django"])
@pytest.mark.parametrize("worker", ["sync", "gthread"])
def test_i14_a_shutdown_takes_no_result_with_it(name: str, worker: str) -> None:
    """SIGTERM in the middle of a handler: the effect, its answer and its record are there. And
    what a plain worker does one by one is done once as well."""
    app, kind = APPS[name]
    how = {
        "threads": 1 if worker == "sync" else 4,
        "options": [f"--worker-class={worker}"],
        "graceful": 20,
        "env": {"GUARDED_KIND": kind},
    }
    with serve_app(Gunicorn, f"tests.http.wsgi_apps.{app}", **how) as made:
        first, again = (made.post("/charges", "k", {}) for _ in range(2))
        assert (replayed(first), replayed(again), made.effects()) == (False, True, 1)
        with made.connect() as connection:
            connection.send_request("POST", "/gated", made.headers("key"), b"{}")
            made.wait_at_gate("gated")
            made.server.signal(signal.SIGTERM)
            wait_until(lambda: "Handling signal: term" in made.server.log, "it was told")
            made.open_gate("gated")
            assert connection.read_response().status == 200
        assert made.server.wait() == 0
        made.server.start()
        assert replayed(made.post("/gated", "key", {}))
        assert made.effects("gated") == 1
