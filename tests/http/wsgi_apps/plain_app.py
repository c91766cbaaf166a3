"""A WSGI app without a framework, behind the middleware."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from tests.http.wsgi_apps import handlers

from oncekey.http.rules import Rule
from oncekey.http.wsgi import IdempotencyWSGI, attempt_of
from oncekey.http.wsgi.middleware import status_line

Start = Callable[..., Callable[[bytes], None]]


class ClosingParts:
    """The parts of a body; closing them is an effect."""

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
        response = handlers.read()
    elif path in _OWN_HANDLERS:
        return _OWN_HANDLERS[path](environ, start)
    else:
        name, _, argument = path.partition("/")
        handler = handlers.HANDLERS[f"{name}/{{}}" if argument else name]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or -1))
        response = handler(argument, body, attempt_of(environ))
    cookies = [("Set-Cookie", cookie) for cookie in response.cookies]
    start(status_line(response.status), [*response.headers.items(), *cookies])
    return [response.body] if isinstance(response.body, bytes) else response.body


def writes(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Send parts by the `write` callable of start_response, as old apps do."""
    handlers.effect("writes")
    write = start("200 Fine", [("Content-Type", "text/plain")])
    write(b"one ")
    write(b"two ")
    return ClosingParts([b"three"])


def restarts_early(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Restart the response after an error, before anything was sent."""
    handlers.effect("restarts-early")
    start("200 OK", [("Content-Type", "text/plain")])
    try:
        raise KeyError("restarted")
    except KeyError:
        start("409 Conflict", [("Content-Type", "text/plain")], sys.exc_info())
    return [b"", b"restarted"]


def restarts_late(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Restart the response after an error, when half of it was sent."""
    handlers.effect("restarts-late")
    write = start("200 OK", [("Content-Type", "text/plain")])
    write(b"half")
    try:
        raise KeyError("s3cret")
    except KeyError:
        start("500 Oops", [("Content-Type", "text/plain")], sys.exc_info())
    return ClosingParts([b"never"])


def raises_in_stream(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Raise in the middle of a streamed response."""
    handlers.effect("raises-in-stream")
    start("200 OK", [("Content-Type", "text/plain")])

    def parts() -> Iterable[bytes]:
        yield b"half"
        raise ValueError("s3cret")

    return ClosingParts(parts())


def never_starts(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Return without starting a response."""
    handlers.effect("never-starts")
    return []


_OWN_HANDLERS = {
    "writes": writes,
    "restarts-early": restarts_early,
    "restarts-late": restarts_late,
    "raises-in-stream": raises_in_stream,
    "never-starts": never_starts,
}


def caller(environ: dict[str, Any]) -> str | None:
    return handlers.CALLERS.get(environ.get("HTTP_AUTHORIZATION", ""))


RULES = [Rule(f"/{name}", **handlers.options(name)) for name in handlers.HANDLERS]
app = IdempotencyWSGI(
    inner, handlers.engine(), caller=caller, rules=[*RULES, Rule()], policy_url="/policy"
)
