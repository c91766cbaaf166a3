"""Requests and responses as plain data, the common form of all adapters; and the types of ASGI.

Header names are in lower case. A response's headers are in their original order, duplicates
included; of a request only single headers are read, so these are by name. Knows no framework.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, NamedTuple

from oncekey.http.request_body import Body

Headers = tuple[tuple[bytes, bytes], ...]
RequestHeaders = dict[bytes, list[bytes]]  # the values of all lines of a name, in their order

# ASGI's own types.
Scope = dict[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]


class Request(NamedTuple):
    """A client's request. `path` and `query` are not decoded. `template` is the path of the route
    that serves it, such as "/charges/{id}", and `name` that route's name, where they are known."""

    method: str
    path: bytes
    query: bytes
    headers: RequestHeaders
    body: bytes | Body = b""
    template: str = ""
    name: str = ""


class Response(NamedTuple):
    """A response. `omitted` means that its body is missing because it was too large to store."""

    status: int
    headers: Headers
    body: bytes = b""
    omitted: bool = False


def headers_by_name(lines: Iterable[tuple[bytes, bytes]]) -> RequestHeaders:
    """A request's headers, whose names are in lower case."""
    found: RequestHeaders = {}
    for name, value in lines:
        found.setdefault(name, []).append(value)
    return found


def first_header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """The value of the first header of this name, or b""."""
    for header, value in headers:
        if header == name:
            return value
    return b""
