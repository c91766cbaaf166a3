"""Decides which responses are stored under their key, and which of their headers a replay has.

Owns the lists of status codes and headers. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Final

from oncekey.core.commands import from_fields
from oncekey.core.errors import NotStarted
from oncekey.core.policy import Policy
from oncekey.http.message import Headers, Response
from oncekey.http.rules import HEAD_MAX_BYTES, HEADERS_MAX, Rule

# Responses that say nothing about the operation, only about the caller, its rate or its connection;
# or that send the same request elsewhere (307, 308), where its key must still be free.
NEVER_STORED_STATUSES: Final = frozenset({307, 308, 401, 403, 407, 408, 421, 425, 429})

STORED_HEADERS: Final = frozenset(
    {
        b"content-type",
        b"content-language",
        b"content-encoding",
        b"content-disposition",
        b"content-location",
        b"location",
        b"etag",
        b"last-modified",
        b"link",
        b"cache-control",
        b"vary",
        b"retry-after",
        b"deprecation",
        b"sunset",
    }
)
FAILURE: Final = 500  # the first status that says that the server has failed
# Never replayed, even if a rule names them: they belong to one connection, client or moment.
NEVER_STORED_HEADERS: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
        b"date",
        b"server",
        b"set-cookie",
        b"set-cookie2",
        b"www-authenticate",
        b"authorization",
        b"authentication-info",
        b"proxy-authentication-info",
    }
)
_NEVER_STORED_PREFIXES: Final = (
    b"access-control-",
    b"x-ratelimit-",
    b"x-rate-limit-",
    b"ratelimit",
)


class NotStored(NotStarted):
    """The app's response is sent, but not stored: the key is free again."""


class IncompleteResponse(RuntimeError):
    """The app ended in the middle of its response, so what it did is unknown."""


def is_stored(status: int, headers: Headers, *, retry_safe: bool) -> bool:
    """Whether a response is the outcome of its key. If not, the key is freed and a retry runs."""
    if status in NEVER_STORED_STATUSES:
        return False
    if status == 503 and any(
        bytes(name).lower() == b"retry-after" and value for name, value in headers
    ):
        return False  # the app says that it did nothing
    return status < FAILURE or not retry_safe


@lru_cache(64)
def _storable_names(extra: frozenset[bytes]) -> frozenset[bytes]:
    """The names of the headers that are stored: the usual ones, and `extra`."""
    names = (STORED_HEADERS | extra) - NEVER_STORED_HEADERS
    return frozenset(name for name in names if not name.startswith(_NEVER_STORED_PREFIXES))


def stored_headers(headers: Headers, extra: Collection[bytes] = ()) -> Headers:
    """The headers that are stored and replayed: the usual ones, and `extra`."""
    names = _storable_names(frozenset(extra))
    stored = []
    of_connection: set[bytes] = set()
    for header, value in headers:
        name = header.lower() if type(header) is bytes else bytes(header).lower()
        if name in names:
            stored.append((name, value if type(value) is bytes else bytes(value)))
        elif name == b"connection":
            of_connection.update(one.strip().lower() for one in bytes(value).split(b","))
    if of_connection:
        stored = [header for header in stored if header[0] not in of_connection]
    return tuple(stored)


def stored_response(response: Response, extra: Collection[bytes], max_response: int) -> Response:
    """The form in which a response is stored: without a body that is too long, and without headers
    that are too many or too long."""
    status, all_headers, body, omitted = response
    headers = stored_headers(all_headers, extra)
    if len(headers) > HEADERS_MAX or _size(headers) > HEAD_MAX_BYTES:
        return Response(status, (), b"", True)
    if omitted or len(body) > max_response:
        return Response(status, headers, b"", True)
    return from_fields(Response, (status, headers, body, False))


def outcome_to_store(response: Response, rule: Rule, policy: Policy) -> Response:
    """The form in which an app's response is stored. Raises NotStored if it is no outcome."""
    if response.status >= 300:  # every success is stored
        retry_safe = policy.retry_safe if rule.retry_safe is None else rule.retry_safe
        if not is_stored(response.status, response.headers, retry_safe=retry_safe):
            raise NotStored
    return stored_response(response, rule.stored_header_names, rule.max_response)


def _size(headers: Headers) -> int:
    size = 0
    for name, value in headers:
        size += len(name) + len(value)
    return size
