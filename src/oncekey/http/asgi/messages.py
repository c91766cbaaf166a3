"""Reads a request from an ASGI scope and its messages, and sends responses as ASGI messages.

Owns the reading of a body: within a limit, keeping what was read for the comparison and for the
app. Knows no engine and decides nothing.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from oncekey.core.commands import from_fields
from oncekey.http.key_header import HEADER
from oncekey.http.message import (
    Body,
    Headers,
    Message,
    Receive,
    Request,
    RequestHeaders,
    Response,
    Scope,
    Send,
    extended,
    headers_by_name,
)
from oncekey.http.rules import READ_HEADERS

_CLOSE: Final[Headers] = ((b"connection", b"close"),)
_HEADER_LENGTH: Final = len(HEADER)
# What is read at most of a body that is too large, where other requests are on its connection.
UNREAD_MAX_BYTES: Final = 16 * 1024 * 1024
# A byte is found faster than bytes.
_QUESTION_MARK: Final = ord("?")
_PERCENT: Final = ord("%")
_ESCAPED_SLASH: Final = re.compile(rb"%2[Ff]")


# --- requests -------------------------------------------------------------------------------------


def app_path(scope: Mapping[str, Any]) -> str:
    """The path of an ASGI scope as the app's own routes see it."""
    return _without_root_path(scope["path"], scope.get("root_path", ""))


def app_paths(scope: Mapping[str, Any]) -> tuple[str, ...]:
    """The paths that the app's own routes may take the path of an ASGI scope for."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    raw: bytes = scope.get("raw_path") or b""
    if not root and _PERCENT not in raw:
        return (path,)
    paths = [path, _decoded_segments(raw)] if _PERCENT in raw else [path]
    if root:
        # Some frameworks remove the root path, some do not, and some search for it in the path.
        paths += [_without_root_path(one, root) for one in paths]
        paths += [one.partition(root)[2] for one in paths if root in one]
    return tuple(dict.fromkeys(paths))


def _decoded_segments(raw_path: bytes) -> str:
    """The path as routers see it that decode each segment by itself: `%2F` is no slash in it."""
    escaped = _ESCAPED_SLASH.sub(b"%252F", raw_path.partition(b"?")[0])
    return unquote(escaped.decode("latin-1"))


def _without_root_path(path: str, root: str) -> str:
    """The path as the app's own routes see it: without the prefix the app is mounted under."""
    if root and path.startswith(root) and path[len(root) :][:1] in ("", "/"):
        return path[len(root) :] or "/"
    return path


def has_key_line(scope: Mapping[str, Any]) -> bool:
    """Whether a request has a key, valid or not. Servers give names in lower case; test clients and
    middlewares may not, and their keys count too."""
    for name, _ in scope["headers"]:
        if name == HEADER or (len(name) == _HEADER_LENGTH and bytes(name).lower() == HEADER):
            return True
    return False


def headers_of(scope: Scope, names: frozenset[bytes]) -> RequestHeaders:
    """The request's headers of these names, which are in lower case. So are those that servers
    give; but if the key is not among them, or the rule compares further headers, which the app's
    own middlewares may have added, each is looked at more closely."""
    found: RequestHeaders = {}
    for name, value in scope["headers"]:
        if name in names:
            line = value if type(value) is bytes else bytes(value)
            if name in found:
                found[name].append(line)
            else:
                found[name] = [line]
    if HEADER in found and names <= READ_HEADERS:
        return found
    lines = [(bytes(name).lower(), bytes(value)) for name, value in scope["headers"]]
    return headers_by_name(line for line in lines if line[0] in names)


def request_of(scope: Scope, headers: RequestHeaders, body: bytes | Body) -> Request:
    path: bytes = scope.get("raw_path") or quote(scope["path"], errors="surrogatepass").encode(
        "ascii"
    )
    if _QUESTION_MARK in path:
        path = path.partition(b"?")[0]
    query = scope.get("query_string", b"")
    route = scope.get("route")  # set where the framework has chosen it: inside of its router
    if route is None:
        return from_fields(Request, (scope["method"], path, query, headers, body, "", ""))
    template, name = _route_names(route)
    return Request(scope["method"], path, query, headers, body, template, name)


def _route_names(route: Any) -> tuple[str, str]:
    """The template and the published name of a Starlette or FastAPI route."""
    template = getattr(route, "path_format", None) or getattr(route, "path", "")
    name = getattr(route, "operation_id", None) or getattr(route, "unique_id", None)
    name = name or getattr(route, "name", "")
    return (
        template if isinstance(template, str) else "",
        name if isinstance(name, str) else "",
    )


# --- bodies of requests ---------------------------------------------------------------------------


class ReadResult(enum.Enum):
    """How the reading of a request ended."""

    WHOLE = "the body was read to its end"
    GONE = "the client went away"
    TOO_LARGE = "the body is longer than allowed"


_WHOLE: Final = ReadResult.WHOLE  # by itself, because to look a member up takes long


class BodyReader:
    """Reads the body of an ASGI request within a limit, keeps it, and gives it to the app.

    body        what was read so far; bytes while it is a single short part, as most bodies are
    is_whole    whether the body was read to its end and kept
    is_given    whether the app has got all of it
    """

    body: bytes | Body = b""
    is_whole = False
    is_given = False
    _size = 0
    _has_more = True  # of a body that is too large
    _passed_on = 0  # bytes that `pass_on` has given to the app
    _parts: Iterator[bytes] | None = None  # of the rest, once the app asks for it
    _next = b""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self._max_bytes = max_bytes

    async def read(self, *, keep: bool) -> ReadResult:
        """Read the whole body, or what is left of it. A body that is not kept is read only because
        the connection's next request comes behind it."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return ReadResult.GONE
            chunk = message.get("body") or b""
            self._size += len(chunk)
            if self._size > self._max_bytes:
                self._has_more = message.get("more_body", False)
                return ReadResult.TOO_LARGE
            if keep:
                self.body = extended(self.body, chunk)
            if not message.get("more_body", False):
                self.is_whole = keep
                return _WHOLE

    async def discard(self, max_bytes: int) -> None:
        """Read so many more bytes at most of a body that is too large, and keep nothing."""
        while self._has_more and max_bytes > 0:
            message = await self._receive()
            is_gone = message["type"] == "http.disconnect"
            self._has_more = not is_gone and message.get("more_body", False)
            max_bytes -= len(message.get("body") or b"")

    async def pass_on(self) -> Message | ReadResult:
        """The client's next message, for an app that reads the body before we do. It is kept."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            return ReadResult.GONE
        chunk = message.get("body") or b""
        if self._size + len(chunk) > self._max_bytes:
            self._has_more = message.get("more_body", False)
            return ReadResult.TOO_LARGE
        self._size += len(chunk)
        self.body = extended(self.body, chunk)
        self._passed_on = self._size
        self.is_whole = self.is_given = not message.get("more_body", False)
        return message

    def next_part(self) -> Message:
        """The app's next message: what was read and not yet given to it, part by part."""
        if isinstance(self.body, bytes):
            self.is_given = True
            rest = self.body[self._passed_on :]
            return {"type": "http.request", "body": rest, "more_body": False}
        if self._parts is None:
            self._parts = self.body.chunks(self._passed_on)
            self._next = next(self._parts, b"")
        part, self._next = self._next, next(self._parts, b"")
        self.is_given = not self._next
        return {"type": "http.request", "body": part, "more_body": not self.is_given}

    async def receive(self) -> Message:
        """The `receive` of an app that is not held back: what was read, then what comes."""
        return await self._receive() if self.is_given else self.next_part()

    def close(self) -> None:
        """Free the memory and the file."""
        if isinstance(self.body, Body):
            self.body.close()


# --- responses ------------------------------------------------------------------------------------


async def send_response(send: Send, response: Response, more: Headers = ()) -> None:
    status, headers, body, _ = response
    await send(
        {"type": "http.response.start", "status": status, "headers": [*headers, *more]},
    )
    await send({"type": "http.response.body", "body": body})


async def send_unread(send: Send, response: Response, scope: Scope, reader: BodyReader) -> None:
    """Send the response to a request that was not read to its end. In HTTP/1 the connection ends
    with it. From HTTP/2 on other requests are on the connection, and some servers stop reading all
    of them for what is not read of one: so more of it is read, and thrown away."""
    if str(scope.get("http_version", "1.1")).startswith("1"):
        await send_response(send, response, _CLOSE)
        return
    await reader.discard(UNREAD_MAX_BYTES)
    await send_response(send, response)
