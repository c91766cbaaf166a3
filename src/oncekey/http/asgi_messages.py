"""Reads the parts of a request from an ASGI scope, and sends responses as ASGI messages.

Knows no engine and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from oncekey.core.commands import from_fields
from oncekey.http.key_header import HEADER
from oncekey.http.message import (
    Headers,
    Request,
    RequestHeaders,
    Response,
    Scope,
    Send,
    headers_by_name,
)
from oncekey.http.request_body import Body, BodyReader
from oncekey.http.request_origin import route_names
from oncekey.http.rules import READ_HEADERS

_CLOSE: Final[Headers] = ((b"connection", b"close"),)
_HEADER_LENGTH: Final = len(HEADER)
# What is read at most of a body that is too large, where other requests are on its connection.
UNREAD_MAX_BYTES: Final = 16 * 1024 * 1024
_QUESTION_MARK: Final = ord("?")  # a byte is found faster than bytes


async def send_response(send: Send, response: Response, more: Headers = ()) -> None:
    status, headers, body, _ = response
    await send(
        {"type": "http.response.start", "status": status, "headers": [*headers, *more]},
    )
    await send({"type": "http.response.body", "body": body})


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
    template, name = route_names(route)
    return Request(scope["method"], path, query, headers, body, template, name)


async def send_unread(send: Send, response: Response, scope: Scope, reader: BodyReader) -> None:
    """Send the response to a request that was not read to its end. In HTTP/1 the connection ends
    with it. From HTTP/2 on other requests are on the connection, and some servers stop reading all
    of them for what is not read of one: so more of it is read, and thrown away."""
    if str(scope.get("http_version", "1.1")).startswith("1"):
        await send_response(send, response, _CLOSE)
        return
    await reader.discard(UNREAD_MAX_BYTES)
    await send_response(send, response)
