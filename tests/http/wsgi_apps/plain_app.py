"""A WSGI app without a framework, behind the middleware."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from tests.http.wsgi_apps import handlers

from oncekey.http.rules import Rule
from oncekey.http.wsgi import IdempotencyWSGI, attempt_of, status_line

Start = Callable[..., Callable[[bytes], None]]


class Closing:
    """A list of parts that tells when it was closed."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = parts

    def __iter__(self) -> Any:
        return iter(self._parts)

    def close(self) -> None:
        if hasattr(self._parts, "close"):
            self._parts.close()
        handlers.effect("close() was called")


def inner(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"].strip("/")
    if method == "GET":
        said = handlers.read()
    elif path in _OWN:
        return _OWN[path](environ, start)
    else:
        name, _, argument = path.partition("/")
        handler = handlers.HANDLERS[f"{name}/{{}}" if argument else name]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or -1))
        said = handler(argument, body, attempt_of(environ))
    cookies = [("Set-Cookie", cookie) for cookie in said.cookies]
    start(status_line(said.status), [*said.headers.items(), *cookies])
    return [said.body] if isinstance(said.body, bytes) else said.body


def writes(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """By the callable that start_response gives, as old apps do."""
    handlers.effect("writes")
    write = start("200 Fine", [("Content-Type", "text/plain")])
    write(b"one ")
    write(b"two ")
    return Closing([b"three"])


def mends(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """An error before anything was sent: the response is begun again."""
    handlers.effect("mends")
    start("200 OK", [("Content-Type", "text/plain")])
    try:
        raise KeyError("mended")
    except KeyError:
        start("409 Conflict", [("Content-Type", "text/plain")], sys.exc_info())
    return [b"", b"mended"]


def too_late(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """An error when half of it was sent."""
    handlers.effect("too-late")
    write = start("200 OK", [("Content-Type", "text/plain")])
    write(b"half")
    try:
        raise KeyError("s3cret")
    except KeyError:
        start("500 Oops", [("Content-Type", "text/plain")], sys.exc_info())
    return Closing([b"never"])


def breaks(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """An error in the middle of its stream."""
    handlers.effect("breaks")
    start("200 OK", [("Content-Type", "text/plain")])

    def parts() -> Iterable[bytes]:
        yield b"half"
        raise ValueError("s3cret")

    return Closing(parts())


def silent(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """It never begins its response."""
    handlers.effect("silent")
    return []


_OWN = {
    "writes": writes,
    "mends": mends,
    "too-late": too_late,
    "breaks": breaks,
    "silent": silent,
}


def caller(environ: dict[str, Any]) -> str | None:
    return handlers.CALLERS.get(environ.get("HTTP_AUTHORIZATION", ""))


RULES = [Rule(f"/{name}", **handlers.options(name)) for name in handlers.HANDLERS]
app = IdempotencyWSGI(
    inner, handlers.engine(), caller=caller, rules=[*RULES, Rule()], policy_url="/policy"
)
