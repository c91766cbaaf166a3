"""Blocking apps over real sockets, whatever guards them: how a request's key and body are read.

The same tests run on plain WSGI, Flask and Django.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import pytest
from tests.http.app_server import ServedApp, is_replay, problem_code, serve_app
from tests.http.wsgi_server import WSGI_APPS, serve_wsgi
from tests.support.servers.http_servers import Gunicorn


@pytest.fixture(scope="module", params=WSGI_APPS)
def running(request: pytest.FixtureRequest) -> Iterator[ServedApp]:
    with serve_wsgi(request.param) as served:
        yield served


@pytest.fixture
def app(running: ServedApp) -> ServedApp:
    running.reset()
    return running


def reads_chunks(app: ServedApp) -> bool:
    """Django behind WSGI does not: views would see an empty body, so such requests are refused."""
    return "django" not in app.server.app


def test_refused_request_leaves_the_connection_usable(app: ServedApp) -> None:
    with app.connect() as connection:
        for key in (None, "", '"', "a b", "a,b", "x" * 256):
            response = app.request_on(connection, "/charges", key, {"cents": 1})
            assert response.status == 400, key
            assert problem_code(response) == ("missing-key" if key is None else "invalid-key")
            assert response.one("Link") == '</policy>; rel="describedby"; type="text/html"'
        stranger = app.request_on(connection, "/charges", "k", {"cents": 2}, who=None)
        assert stranger.status == 401
        bad = app.request_on(
            connection, "/upload", app.fresh_key(), b"x", headers=[("Content-Encoding", "gzip")]
        )
        assert (bad.status, problem_code(bad)) == (400, "unreadable-body")
        large = app.request_on(connection, "/upload", app.fresh_key(), b"x" * 10_001)
        assert large.status == 413
        assert app.effects() == 0
        key = app.fresh_key()
        assert app.request_on(connection, "/charges", key, {}).status == 201
        assert app.request_on(connection, "/charges", key, {"other": 1}).status == 422
        assert is_replay(app.request_on(connection, "/charges", key, {}))


@pytest.mark.parametrize("keys", [('"a"', '"a"'), ("a", "a"), ('"a"', "b"), ("a", '"b"')])
def test_two_key_headers_are_refused_though_the_server_joins_them(
    app: ServedApp, keys: tuple[str, str]
) -> None:
    two = [("Idempotency-Key", keys[0]), ("idempotency-key", keys[1])]
    response = app.post("/charges", None, {}, headers=two)
    assert (response.status, problem_code(response)) == (400, "invalid-key")
    assert app.effects() == 0


def test_header_name_with_an_underscore_counts_where_the_server_admits_it() -> None:
    """Gunicorn drops such headers by default."""
    options = ["--header-map=dangerous"]
    with serve_app(Gunicorn, "tests.http.wsgi_apps.plain_app:app", options=options) as served:
        other = [("Idempotency_Key", "b")]
        assert served.post("/charges", "a", {}, headers=other).status == 400
        assert served.effects() == 0
        assert served.post("/charges", None, {}, headers=other).status == 201
        assert is_replay(served.post("/charges", "b", {}))


def test_body_over_the_limit_is_refused_before_the_claim(app: ServedApp) -> None:
    key = app.fresh_key()
    large = app.post("/upload", key, b"x" * 10_001)
    assert (large.status, problem_code(large)) == (413, "request-too-large")
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


def test_chunked_body_and_body_with_a_length_are_the_same_request(app: ServedApp) -> None:
    """The handler sees the whole body either way. Where chunks cannot be read they are refused: an
    empty body would count as another request."""
    key, fresh = app.fresh_key(), app.fresh_key()
    app.post("/charges", key, b'{"a":1}')
    for used, again in ((key, True), (fresh, False)):
        with app.connect() as connection:
            head = [*app.headers(used), ("Transfer-Encoding", "chunked")]
            connection.send(
                connection.request_head("POST", "/charges", head),
                b'3\r\n{"a\r\n4\r\n":1}\r\n0\r\n\r\n',
            )
            response = connection.read_response()
            if not reads_chunks(app):
                assert (response.status, app.effects()) == (400, 1)
                continue
            assert is_replay(response) is again
            assert json.loads(response.body)["received"] == {"a": 1}


def test_client_that_leaves_within_its_body_has_claimed_nothing(app: ServedApp) -> None:
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


def test_optional_key_protects_only_requests_that_have_it(app: ServedApp) -> None:
    for _ in range(2):
        assert app.post("/optional", None, {}, who=None).status == 201
    assert app.effects() == 2
    assert app.post("/optional", '"', {}).status == 400, "a malformed key is never ignored"
    key = app.fresh_key()
    assert [is_replay(app.post("/optional", key, {})) for _ in range(2)] == [False, True]


def test_get_is_streamed_untouched(app: ServedApp) -> None:
    with app.connect() as connection:
        connection.send_request("GET", "/read", [("Idempotency-Key", '"')])
        app.wait_at_gate("read")
        assert connection.wait_for_bytes(), "the first part arrives before the second is made"
        app.open_gate("read")
        response = connection.read_response()
        assert (response.status, response.body) == (200, b"0\n1\n")
        assert response.one("X-Idempotency-Retention") is None


def test_length_with_leading_zeros_is_the_length_without_them(app: ServedApp) -> None:
    key = app.fresh_key()
    for body, status in ((b'{"a":1}', 201), (b'{"a":2}', 422)):
        with app.connect() as connection:
            head = [*app.headers(key), ("Content-Length", "0" * 30 + "7")]
            connection.send(connection.request_head("POST", "/charges", head), body)
            assert connection.read_response().status == status
    assert app.effects() == 1
