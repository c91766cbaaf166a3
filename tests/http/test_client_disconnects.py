"""Clients that disconnect at every moment, from handlers of every kind, on every ASGI server.

Whatever happens to the connection, there is one effect; or none, and nothing is claimed, if the
request was never complete (I1, I14). The retry gets what an undisturbed client would have got (I3).
The app's gates make each moment certain.

The servers differ, and it must not matter. All of them report a disconnect to the app at once, in
the middle of a body too, and none passes a part of a body for the whole. But Uvicorn and Granian
take a half-closed connection for a disconnect, while Hypercorn still answers it. To a body that
ends too early Uvicorn answers nothing, Hypercorn 400 and Granian 500.

With ONCEKEY_SOAK=1 clients also close their connections in order, and in every way everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.http.app_server import ServedApp, content, problem_code, serve_app
from tests.http.gated_request import APP, BODY, SERVERS, GatedRequest, check_outcome, disconnect
from tests.http.socket_client import Connection, Response
from tests.support.servers import require

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
AROUND = ("plain", "within", "compressed")
USUAL = {("granian", "within"), ("hypercorn", "compressed")}
HANDLERS = ("plain", "large", "thread", "stream", "background", "raises", "refuses")
WAYS = ("reset", "half-closed", "goodbye") if SOAK else ("reset", "half-closed")
ANSWERING = tuple(kind for kind in HANDLERS if kind != "raises")


# Every server, and everything that may be around the guard; the other pairs are left to soak.
PAIRS = [
    pytest.param(
        (server, around), id=f"{server}-{around}", marks=() if is_usual else pytest.mark.soak
    )
    for server in SERVERS
    for around in AROUND
    for is_usual in [around == "plain" or (server, around) in USUAL]
]


@pytest.fixture(scope="module", params=PAIRS)
def app(request: pytest.FixtureRequest) -> Iterator[ServedApp]:
    server, around = request.param
    kind, options = SERVERS[server]
    require(lambda: kind("x:y", **options))  # skips by name where it is not installed
    with serve_app(kind, APP, env={"GATED_KIND": around}, **options) as made:
        yield made


def ways(app: ServedApp) -> tuple[str, ...]:
    """How clients disconnect: in every way if no other middleware is around ours."""
    return WAYS if SOAK or app.server.env["GATED_KIND"] == "plain" else WAYS[:1]


def test_the_middleware_around_the_guard_is_active(app: ServedApp) -> None:
    """Otherwise the other tests would prove less than they say."""
    kind = app.server.env["GATED_KIND"]
    answer = GatedRequest(app, "large").send_undisturbed()
    assert (answer.one("Content-Encoding") == "gzip") is (kind == "compressed")
    assert len(answer.all("X-Passed")) == (1 if kind == "within" else 0)


# --- before the request is whole ----------------------------------------------------------------

LENGTH = [("Content-Length", str(len(BODY)))]
CHUNKED = [("Transfer-Encoding", "chunked")]
UNFINISHED = {
    "nothing": (LENGTH, b""),
    "a part": (LENGTH, BODY[:-3]),
    "all but one byte": (LENGTH, BODY[:-1]),
    "a chunk": (CHUNKED, b"e\r\n" + BODY + b"\r\n"),
    "a part of a chunk": (CHUNKED, b"e\r\n" + BODY[:-3]),
    "all but the end": (CHUNKED, b"e\r\n" + BODY + b"\r\n0\r\n"),
}


@pytest.mark.parametrize("sent", UNFINISHED)
def test_a_disconnect_before_the_body_is_complete_claims_nothing(app: ServedApp, sent: str) -> None:
    for how in ways(app):
        operation = GatedRequest(app, "plain")
        length, piece = UNFINISHED[sent]
        connection = app.connect()
        connection.send(
            connection.request_head("POST", operation.path, [*operation.headers, *length]), piece
        )
        app.wait_logged("begun", operation.key)
        disconnect(connection, how)
        app.wait_logged("ended", operation.key)
        connection.close()
        assert operation.effects() == 0
        operation.open_gates()
        answer = operation.send(b'{"another": "body"}')
        assert answer.status == 201, "the key was free, for any body"
        assert answer.one("X-Idempotency-Replayed") is None
        assert operation.effects() == 1


# --- while it runs ------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_disconnect_during_the_handler_loses_nothing(app: ServedApp, handler: str) -> None:
    for how in ways(app):
        operation = GatedRequest(app, handler)
        connection = operation.start()
        disconnect(connection, how)
        assert problem_code(operation.send()) == "in-flight", "it runs on, now alone"
        operation.open_gates()
        check_outcome(operation)
        connection.close()
        app.wait_logged("ended", operation.key)
        if handler == "background":
            app.wait_logged("effects", f"{operation.key}-after")


# --- while it is answered, and after that -------------------------------------------------------


@pytest.mark.parametrize("handler", ANSWERING)
def test_a_disconnect_during_the_response_loses_nothing(app: ServedApp, handler: str) -> None:
    for how in ways(app):
        operation = GatedRequest(app, handler)
        connection = operation.start()
        operation.open_gates()
        assert connection.wait_for_bytes(), "the first bytes are here"
        disconnect(connection, how)
        check_outcome(operation)
        connection.close()
        app.wait_logged("ended", operation.key)


def test_a_response_too_long_to_hold_is_produced_to_its_end_after_a_disconnect(
    app: ServedApp,
) -> None:
    """It is sent while it is made, so its client can disconnect in the middle of the stream."""
    operation = GatedRequest(app, "endless")
    connection = operation.start()
    assert connection.wait_for_bytes(), "it leaves before it is whole"
    connection.abort()
    assert problem_code(operation.send()) == "not-replayable"
    operation.open_gates()
    app.wait_logged("effects", f"{operation.key} sent all")
    app.wait_logged("ended", operation.key)
    assert problem_code(operation.send()) == "not-replayable"
    assert operation.effects() == 1


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_disconnect_after_the_response_loses_nothing(app: ServedApp, handler: str) -> None:
    for how in ways(app):
        operation = GatedRequest(app, handler)
        app.open_gate(operation.key)
        connection = operation.start()
        first = connection.read_response()
        assert problem_code(operation.send()) != "in-flight", "it was stored before it was told"
        if handler == "background":
            app.wait_at_gate(f"{operation.key}-after")
        disconnect(connection, how)
        check_outcome(operation)
        if handler == "background":
            assert app.log_count("effects", f"{operation.key}-after") == 0
            app.open_gate(f"{operation.key}-after")
            app.wait_logged("effects", f"{operation.key}-after")
        if handler != "raises":
            assert content(first) == content(operation.send())
        connection.close()
        app.wait_logged("ended", operation.key)


# --- refusals -----------------------------------------------------------------------------------

Refusal = Callable[[ServedApp, Connection], Response]


def without_a_key(app: ServedApp, connection: Connection) -> Response:
    return app.request_on(connection, "/plain?name=x", None, BODY)


def with_a_bad_key(app: ServedApp, connection: Connection) -> Response:
    return app.request_on(connection, "/plain?name=x", "a b", BODY)


def of_a_stranger(app: ServedApp, connection: Connection) -> Response:
    return app.request_on(connection, "/plain?name=x", app.fresh_key(), BODY, who=None)


def while_it_runs(app: ServedApp, connection: Connection) -> Response:
    operation = GatedRequest(app, "plain")
    with operation.start() as first:
        refused = operation.send_on(connection)
        operation.open_gates()
        assert first.read_response().status == 201
    return refused


def of_another_body(app: ServedApp, connection: Connection) -> Response:
    operation = GatedRequest(app, "plain")
    operation.send_undisturbed()
    return operation.send_on(connection, b"{}")


def of_too_much(app: ServedApp, connection: Connection) -> Response:
    return GatedRequest(app, "small").send_on(connection, b"x" * 1_001)


def of_too_much_undeclared(app: ServedApp, connection: Connection) -> Response:
    operation = GatedRequest(app, "small")
    connection.send(connection.request_head("POST", operation.path, [*operation.headers, *CHUNKED]))
    connection.send(b"3e9\r\n", b"x" * 1_001, b"\r\n0\r\n\r\n")
    return connection.read_response()


def without_a_store(app: ServedApp, connection: Connection) -> Response:
    with no_store(app):
        return GatedRequest(app, "plain").send_on(connection)


REFUSALS: dict[str, tuple[Refusal, int]] = {
    "missing-key": (without_a_key, 400),
    "invalid-key": (with_a_bad_key, 400),
    "unknown-caller": (of_a_stranger, 401),
    "in-flight": (while_it_runs, 409),
    "key-reused": (of_another_body, 422),
    "unavailable": (without_a_store, 503),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refusal_leaves_the_connection_open_for_the_next_request(
    app: ServedApp, kind: str
) -> None:
    refuse, status = REFUSALS[kind]
    with app.connect() as connection:
        for _ in range(2):
            refused = refuse(app, connection)
            assert (refused.status, problem_code(refused)) == (status, kind)
            assert (refused.one("Connection") or "keep-alive").lower() == "keep-alive"
        operation = GatedRequest(app, "plain")
        operation.open_gates()
        assert operation.send_on(connection).status == 201
        assert operation.effects() == 1


@pytest.mark.parametrize("refuse", [of_too_much, of_too_much_undeclared])
def test_a_refused_body_that_is_not_read_closes_the_connection(
    app: ServedApp, refuse: Refusal
) -> None:
    """Nobody can tell where the next request on it would begin."""
    with app.connect() as connection:
        refused = refuse(app, connection)
        assert (refused.status, problem_code(refused)) == (413, "request-too-large")
        assert refused.one("Connection") == "close"
        assert connection.is_closed()


@contextmanager
def no_store(app: ServedApp) -> Iterator[None]:
    """The store's file is moved away."""
    file, away = app.folder / "keys.db", app.folder / "keys.away"
    GatedRequest(app, "plain").send_undisturbed()  # it was open before
    file.rename(away)
    try:
        yield
    finally:
        away.rename(file)


def test_with_its_store_down_only_store_down_run_routes_run(app: ServedApp) -> None:
    operation, risky = GatedRequest(app, "plain"), GatedRequest(app, "risky")
    operation.open_gates()
    risky.open_gates()
    before = count_unprotected(app)
    with no_store(app):
        refused = operation.send()
        assert (refused.status, problem_code(refused)) == (503, "unavailable")
        assert int(refused.one("Retry-After") or 0) >= 1
        assert operation.effects() == 0
        answers = [risky.send() for _ in range(2)]
        assert [answer.status for answer in answers] == [201, 201]
        assert all(answer.one("X-Idempotency-Retention") is None for answer in answers)
        assert risky.effects() == 2, "nothing protects it"
        assert count_unprotected(app) == before + 2
    assert operation.send().status == 201, "it is back"
    check_outcome(operation)
    assert GatedRequest(app, "risky").send_undisturbed().one("X-Idempotency-Retention") is not None
    assert count_unprotected(app) == before + 2


def count_unprotected(app: ServedApp) -> int:
    with app.connect() as connection:
        return int(connection.request("GET", "/unprotected").body)
