"""How WSGI and Flask read a request's body: lengths, chunks, limits, strangers, and large bodies.

The apps run in this process, because no real server passes on what some of these requests have.
"""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from flask import Flask, g, request

from oncekey import Once
from oncekey.http.flask import Idempotency, idempotent
from oncekey.http.message import BODY_SPILL_BYTES
from oncekey.http.rules import Rule
from oncekey.http.wsgi import IdempotencyWSGI

# A body that is kept stands out from what other threads of the run allocate meanwhile.
LIMIT = 32 * BODY_SPILL_BYTES
RAN: list[int] = []  # the sizes of the bodies that handlers have seen
App = Callable[[Any, Any], Iterable[bytes]]


def caller(environ: dict[str, Any]) -> str | None:
    return environ.get("HTTP_AUTHORIZATION")


def size_of(source: Any) -> int:
    """Read in parts, as a handler of uploads does."""
    size = 0
    while part := source.read(100_000):
        size += len(part)
    RAN.append(size)
    return size


def plain() -> App:
    def app(environ: Any, start: Any) -> Iterable[bytes]:
        size = size_of(environ["wsgi.input"])
        start("201 Created", [("Content-Type", "text/plain")])
        return [b"%d" % size]

    rules = [Rule(max_request=LIMIT)]
    return IdempotencyWSGI(app, Once("memory://"), caller=caller, rules=rules, close=False)


def flask_app(rules: list[Rule] | None = None) -> App:
    app = Flask("x")

    def by_request() -> str | None:
        return caller(request.environ)

    asked: Any = by_request if rules is None else caller
    Idempotency(app, once=Once("memory://"), caller=asked, rules=rules, close=False)

    @app.before_request
    def look_inside() -> None:
        """Read as much of the body as the request asks for, before the guard does."""
        first = int(request.args.get("first", "0"))
        if first:
            g.first = request.stream.read(first)

    @app.post("/charges")
    @idempotent(max_request=LIMIT)
    def charge() -> Any:
        return str(len(g.get("first", b"")) + size_of(request.stream)), 201

    return app


APPS: dict[str, Callable[[], App]] = {
    "wsgi": plain,
    "flask": flask_app,
    "flask-rules": lambda: flask_app([Rule(max_request=LIMIT)]),
}


@pytest.fixture(params=APPS)
def app(request: pytest.FixtureRequest) -> App:
    RAN.clear()
    return APPS[request.param]()


def post(app: App, body: bytes = b"", source: Any = None, **more: Any) -> tuple[int, bytes]:
    """The response to a request with these items of its environ; None leaves one out."""
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/charges",
        "SCRIPT_NAME": "",
        "QUERY_STRING": "",
        "SERVER_NAME": "x",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.url_scheme": "http",
        "wsgi.errors": io.StringIO(),
        "wsgi.input": source or io.BytesIO(body),
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_IDEMPOTENCY_KEY": "k",
        "HTTP_AUTHORIZATION": "alice",
        **more,
    }
    lines: list[str] = []
    environ = {name: value for name, value in environ.items() if value is not None}
    parts = app(environ, lambda line, headers, *more: lines.append(line))
    whole = b"".join(parts)
    getattr(parts, "close", int)()
    return int(lines[0][:3]), whole


CHUNKED: dict[str, Any] = {"CONTENT_LENGTH": None, "HTTP_TRANSFER_ENCODING": "chunked"}


@pytest.mark.parametrize("zeros", [17, 40, 5_000])
def test_length_with_leading_zeros_is_read(app: App, zeros: int) -> None:
    for body, status in ((b"one!", 201), (b"two!", 422)):
        assert post(app, body, CONTENT_LENGTH="0" * zeros + "4")[0] == status
    assert RAN == [4]


@pytest.mark.parametrize(
    "unreadable",
    [
        CHUNKED,
        {"HTTP_TRANSFER_ENCODING": "chunked"},
        {"CONTENT_LENGTH": "+4"},
        {"CONTENT_LENGTH": "4, 4"},
        {"CONTENT_LENGTH": "\xb2"},
        {"CONTENT_LENGTH": "9"},
    ],
    ids=["chunked", "both", "plus", "two", "superscript", "cut"],
)
def test_body_that_cannot_be_read_is_refused_and_its_key_is_free(
    app: App, unreadable: dict[str, Any]
) -> None:
    """Not taken for an empty body, which would be equal to any other that cannot be read."""
    status, refusal = post(app, b"one!", **unreadable)
    assert (status, b"unreadable-body" in refusal) == (400, True)
    assert RAN == []
    assert post(app, b"two!")[0] == 201


def test_chunks_are_read_where_the_server_ends_the_input(app: App) -> None:
    ended = {**CHUNKED, "wsgi.input_terminated": True}
    assert [post(app, body, **ended)[0] for body in (b"one!", b"two!")] == [201, 422]
    assert post(app, b"one!")[0] == 201
    assert RAN == [4]


def test_request_without_length_and_chunks_has_no_body(app: App) -> None:
    for nothing in (None, ""):
        assert post(app, b"rest", CONTENT_LENGTH=nothing)[0] == 201
    assert RAN == [0]


# --- memory ---------------------------------------------------------------------------------------


class Zeros:
    """A body that is made as it is read, and remembers how much of it was."""

    taken = 0

    def __init__(self, size: int) -> None:
        self.size = size

    def read(self, size: int) -> bytes:
        size = min(size, self.size - self.taken)
        self.taken += size
        return bytes(size)


@contextmanager
def memory_below(limit: int) -> Iterator[None]:
    """Whatever runs within holds less than `limit` bytes at any time."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield
        assert tracemalloc.get_traced_memory()[1] - before < limit
    finally:
        tracemalloc.stop()


DECLARED: dict[str, Any] = {"CONTENT_LENGTH": str(LIMIT)}
ENDED: dict[str, Any] = {**CHUNKED, "wsgi.input_terminated": True}


@pytest.mark.parametrize("sent", [DECLARED, CHUNKED, ENDED], ids=["length", "chunked", "ended"])
def test_i15_body_of_a_stranger_is_not_kept(app: App, sent: dict[str, Any]) -> None:
    with memory_below(LIMIT // 2):
        assert post(app, source=Zeros(LIMIT), HTTP_AUTHORIZATION=None, **sent)[0] == 401
    assert RAN == []


def test_body_over_the_limit_is_not_read_on(app: App) -> None:
    declared, chunked = Zeros(LIMIT + 1), Zeros(2 * LIMIT)
    assert post(app, source=declared, CONTENT_LENGTH=str(LIMIT + 1))[0] == 413
    assert declared.taken == 0
    with memory_below(LIMIT // 2):
        assert post(app, source=chunked, **ENDED)[0] == 413
    assert chunked.taken == LIMIT + 1
    assert RAN == []


@pytest.mark.parametrize("sent", [DECLARED, ENDED], ids=["length", "ended"])
def test_large_body_is_in_a_file(app: App, sent: dict[str, Any]) -> None:
    for _ in range(2):
        with memory_below(LIMIT // 2):
            assert post(app, source=Zeros(LIMIT), **sent) == (201, b"%d" % LIMIT)
    other = bytes(LIMIT - 1) + b"x"
    assert post(app, other)[0] == 422
    assert [LIMIT] == RAN


@pytest.mark.parametrize("first", [1, 70_000, 2 * BODY_SPILL_BYTES])
def test_body_that_another_function_has_begun_to_read_is_compared_whole(first: int) -> None:
    """A `before_request` function of Flask runs before the guard."""
    RAN.clear()
    app, body = flask_app(), bytes(3 * BODY_SPILL_BYTES)
    query = f"first={first}"
    assert post(app, body, QUERY_STRING=query) == (201, b"%d" % len(body))
    assert post(app, body, QUERY_STRING=query)[0] == 201
    assert post(app, b"x" + body[1:], QUERY_STRING=query)[0] == 422
    assert len(RAN) == 1


@pytest.mark.parametrize(
    ("broken", "status"),
    [({"CONTENT_LENGTH": "9"}, 400), ({"CONTENT_LENGTH": str(LIMIT + 1)}, 413), (CHUNKED, 400)],
    ids=["cut", "large", "chunked"],
)
def test_function_that_reads_a_refused_body_ends_with_the_refusal(
    broken: dict[str, Any], status: int
) -> None:
    RAN.clear()
    app = flask_app()
    refused = post(app, b"one!", QUERY_STRING="first=100", **broken)
    assert (refused[0], b"/idempotency-policy#" in refused[1]) == (status, True)
    assert RAN == []
