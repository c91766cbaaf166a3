"""A request and a response as plain data, which every adapter makes and takes.

Header names are lower-case, in the order they came, duplicates kept. Knows no framework.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, NamedTuple

from oncekey.http.request_body import Body

Headers = tuple[tuple[bytes, bytes], ...]

# ASGI's own types.
Scope = dict[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]


class Request(NamedTuple):
    """What a client asked; `path` and `query` as they were on the line, not decoded."""

    method: str
    path: bytes
    query: bytes
    headers: Headers
    body: bytes | Body = b""


class Response(NamedTuple):
    """What it is answered. `omitted`: it ran, but its body was too large to be kept."""

    status: int
    headers: Headers
    body: bytes = b""
    omitted: bool = False


def header_values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """Every line of this name."""
    return [value for given, value in headers if given == name]


def first_header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """The first line of this name, b"" where there is none."""
    return next((value for given, value in headers if given == name), b"")
