"""Clients that go away at every moment, from handlers of every kind, on every ASGI server.

Whatever happens to the connection: one effect, or none and nothing claimed where the request never
came whole (I1, I14); and the retry gets what an undisturbed client got (I3). The gates of the app
make each moment certain.

What the servers do differently, and what must not matter: all of them tell an app at once that its
client has gone, in the middle of a body too, and none gives a part of a body for the whole. But to
Uvicorn and Granian a client that half-closes is gone, while Hypercorn still answers it. A body that
ends too early is answered with nothing by Uvicorn, with 400 by Hypercorn, with 500 by Granian.

With ONCEKEY_SOAK=1 clients also leave by a proper goodbye, and in every way from every set-up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.http.operations import (
    APP,
    BODY,
    SERVERS,
    Operation,
    check_outcome,
    content,
    go_away,
    problem,
)
from tests.http.served import Served, served
from tests.http.wire import Connection, Response
from tests.support.servers import require

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
AROUND = ("plain", "within", "compressed")
HANDLERS = ("plain", "large", "thread", "stream", "background", "raises", "refuses")
WAYS = ("reset", "half-closed", "goodbye") if SOAK else ("reset", "half-closed")
ANSWERING = tuple(kind for kind in HANDLERS if kind != "raises")


@pytest.fixture(scope="module", params=[(s, a) for s in SERVERS for a in AROUND], ids="-".join)
def app(request: pytest.FixtureRequest) -> Iterator[Served]:
    server, around = request.param
    kind, options = SERVERS[server]
    require(lambda: kind("x:y", **options))  # skips by name where it is not installed
    with served(kind, APP, env={"HELD_KIND": around}, **options) as made:
        yield made


def ways(app: Served) -> tuple[str, ...]:
    """How clients leave: in every way where nothing is around the middleware."""
    return WAYS if SOAK or app.server.env["HELD_KIND"] == "plain" else WAYS[:1]


def test_what_is_said_to_be_around_it_is_there(app: Served) -> None:
    """Or the rest would prove less than it says."""
    kind = app.server.env["HELD_KIND"]
    answer = Operation(app, "large").asked()
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
def test_before_the_body_is_in_nothing_is_claimed(app: Served, sent: str) -> None:
    for how in ways(app):
        operation = Operation(app, "plain")
        length, piece = UNFINISHED[sent]
        wire = app.connect()
        wire.send(wire.head("POST", operation.path, [*operation.headers, *length]), piece)
        app.wait_noted("begun", operation.key)
        go_away(wire, how)
        app.wait_noted("ended", operation.key)
        wire.close()
        assert operation.effects() == 0
        operation.let_go()
        answer = operation.ask(b'{"another": "body"}')
        assert answer.status == 201, "the key was free, for any body"
        assert answer.one("X-Idempotency-Replayed") is None
        assert operation.effects() == 1


# --- while it runs ------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_client_gone_during_the_handler_takes_nothing_with_it(app: Served, handler: str) -> None:
    for how in ways(app):
        operation = Operation(app, handler)
        wire = operation.begin()
        go_away(wire, how)
        assert problem(operation.ask()) == "in-flight", "it runs on, now alone"
        operation.let_go()
        check_outcome(operation)
        wire.close()
        app.wait_noted("ended", operation.key)
        if handler == "background":
            app.wait_noted("effects", f"{operation.key}-after")


# --- while it is answered, and after that -------------------------------------------------------


@pytest.mark.parametrize("handler", ANSWERING)
def test_a_client_gone_during_its_answer_finds_all_of_it_later(app: Served, handler: str) -> None:
    for how in ways(app):
        operation = Operation(app, handler)
        wire = operation.begin()
        operation.let_go()
        assert wire.some(), "the first bytes are here"
        go_away(wire, how)
        check_outcome(operation)
        wire.close()
        app.wait_noted("ended", operation.key)


def test_an_answer_too_long_to_be_held_is_made_to_its_end_though_nobody_reads_it(
    app: Served,
) -> None:
    """It flows while it is made, so its client can leave in the middle of the real stream."""
    operation = Operation(app, "endless")
    wire = operation.begin()
    assert wire.some(), "it leaves before it is whole"
    wire.abort()
    assert problem(operation.ask()) == "not-replayable"
    operation.let_go()
    app.wait_noted("effects", f"{operation.key} sent all")
    app.wait_noted("ended", operation.key)
    assert problem(operation.ask()) == "not-replayable"
    assert operation.effects() == 1


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_client_gone_after_its_answer_left_everything_in_order(app: Served, handler: str) -> None:
    for how in ways(app):
        operation = Operation(app, handler)
        app.let_go(operation.key)
        wire = operation.begin()
        first = wire.read()
        assert problem(operation.ask()) != "in-flight", "it was stored before it was told"
        if handler == "background":
            app.wait_here(f"{operation.key}-after")
        go_away(wire, how)
        check_outcome(operation)
        if handler == "background":
            assert app.noted("effects", f"{operation.key}-after") == 0
            app.let_go(f"{operation.key}-after")
            app.wait_noted("effects", f"{operation.key}-after")
        if handler != "raises":
            assert content(first) == content(operation.ask())
        wire.close()
        app.wait_noted("ended", operation.key)


# --- refusals -----------------------------------------------------------------------------------

Refusal = Callable[[Served, Connection], Response]


def without_a_key(app: Served, wire: Connection) -> Response:
    return app.on(wire, "/plain?name=x", None, BODY)


def with_a_bad_key(app: Served, wire: Connection) -> Response:
    return app.on(wire, "/plain?name=x", "a b", BODY)


def of_a_stranger(app: Served, wire: Connection) -> Response:
    return app.on(wire, "/plain?name=x", app.fresh_key(), BODY, who=None)


def while_it_runs(app: Served, wire: Connection) -> Response:
    operation = Operation(app, "plain")
    with operation.begin() as first:
        refused = operation.ask_on(wire)
        operation.let_go()
        assert first.read().status == 201
    return refused


def of_another_body(app: Served, wire: Connection) -> Response:
    operation = Operation(app, "plain")
    operation.asked()
    return operation.ask_on(wire, b"{}")


def of_too_much(app: Served, wire: Connection) -> Response:
    return Operation(app, "small").ask_on(wire, b"x" * 1_001)


def of_too_much_undeclared(app: Served, wire: Connection) -> Response:
    operation = Operation(app, "small")
    wire.send(wire.head("POST", operation.path, [*operation.headers, *CHUNKED]))
    wire.send(b"3e9\r\n", b"x" * 1_001, b"\r\n0\r\n\r\n")
    return wire.read()


def without_a_store(app: Served, wire: Connection) -> Response:
    with no_store(app):
        return Operation(app, "plain").ask_on(wire)


REFUSALS: dict[str, tuple[Refusal, int]] = {
    "missing-key": (without_a_key, 400),
    "invalid-key": (with_a_bad_key, 400),
    "unknown-caller": (of_a_stranger, 401),
    "in-flight": (while_it_runs, 409),
    "key-reused": (of_another_body, 422),
    "unavailable": (without_a_store, 503),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_after_a_refusal_the_connection_serves_the_next_request(app: Served, kind: str) -> None:
    refuse, status = REFUSALS[kind]
    with app.connect() as wire:
        for _ in range(2):
            refused = refuse(app, wire)
            assert (refused.status, problem(refused)) == (status, kind)
            assert (refused.one("Connection") or "keep-alive").lower() == "keep-alive"
        operation = Operation(app, "plain")
        operation.let_go()
        assert operation.ask_on(wire).status == 201
        assert operation.effects() == 1


@pytest.mark.parametrize("refuse", [of_too_much, of_too_much_undeclared])
def test_a_body_that_is_not_read_is_the_last_on_its_connection(
    app: Served, refuse: Refusal
) -> None:
    """Nobody can tell where the next request would begin."""
    with app.connect() as wire:
        refused = refuse(app, wire)
        assert (refused.status, problem(refused)) == (413, "request-too-large")
        assert refused.one("Connection") == "close"
        assert wire.is_closed()


@contextmanager
def no_store(app: Served) -> Iterator[None]:
    """Its file is not where it was."""
    file, away = app.folder / "keys.db", app.folder / "keys.away"
    Operation(app, "plain").asked()  # it was open before
    file.rename(away)
    try:
        yield
    finally:
        away.rename(file)


def test_without_its_store_nothing_runs_unless_that_was_chosen(app: Served) -> None:
    operation, risky = Operation(app, "plain"), Operation(app, "risky")
    operation.let_go()
    risky.let_go()
    before = count_unprotected(app)
    with no_store(app):
        refused = operation.ask()
        assert (refused.status, problem(refused)) == (503, "unavailable")
        assert int(refused.one("Retry-After") or 0) >= 1
        assert operation.effects() == 0
        answers = [risky.ask() for _ in range(2)]
        assert [answer.status for answer in answers] == [201, 201]
        assert all(answer.one("X-Idempotency-Retention") is None for answer in answers)
        assert risky.effects() == 2, "nothing protects it"
        assert count_unprotected(app) == before + 2
    assert operation.ask().status == 201, "it is back"
    check_outcome(operation)
    assert Operation(app, "risky").asked().one("X-Idempotency-Retention") is not None
    assert count_unprotected(app) == before + 2


def count_unprotected(app: Served) -> int:
    with app.connect() as wire:
        return int(wire.ask("GET", "/unprotected").body)
