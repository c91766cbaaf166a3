"""Which responses are an outcome to be stored, and what of them is given again.

Owns the lists of status codes and headers. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from oncekey.core.errors import NotStarted
from oncekey.core.policy import Policy
from oncekey.http.message import Headers, Response, first_header
from oncekey.http.rules import HEAD_MAX_BYTES, HEADERS_MAX, Rule

# Answers that say nothing about the operation: who asked, how often, on which connection, or that
# the same request should be sent elsewhere (307, 308), where its key must still be free.
NEVER_STORED: Final = frozenset({307, 308, 401, 403, 407, 408, 421, 425, 429})

KEPT_HEADERS: Final = frozenset(
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
# Never given again, whatever a rule says: of one connection, one client or one moment.
NEVER_KEPT: Final = frozenset(
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
_NEVER_PREFIXES: Final = (b"access-control-", b"x-ratelimit-", b"x-rate-limit-", b"ratelimit")


class NotStored(NotStarted):
    """The app answered with something that ends no key; its response goes out all the same."""


class IncompleteResponse(RuntimeError):
    """The app ended in the middle of its response. Nobody can tell what it did."""


def is_stored(status: int, headers: Headers, *, retry_safe: bool) -> bool:
    """Whether a response ends its key. Where not, the key is free again and a retry runs."""
    if status in NEVER_STORED:
        return False
    if status == 503 and first_header(headers, b"retry-after"):
        return False  # the app says itself that it did nothing
    return status < 500 or not retry_safe


def kept_headers(headers: Headers, extra: Collection[bytes] = ()) -> Headers:
    """The headers that a replay has too."""
    named = {
        name.strip().lower()
        for line in (value for key, value in headers if key == b"connection")
        for name in line.split(b",")
    }
    return tuple(
        (name, value)
        for name, value in headers
        if (name in KEPT_HEADERS or name in extra)
        and name not in NEVER_KEPT
        and name not in named
        and not name.startswith(_NEVER_PREFIXES)
    )


def stored_response(response: Response, extra: Collection[bytes], max_response: int) -> Response:
    """What is kept of a response: of one with too many or too long headers only that it ran."""
    headers = kept_headers(response.headers, extra)
    if len(headers) > HEADERS_MAX or _size(headers) > HEAD_MAX_BYTES:
        return Response(response.status, (), b"", omitted=True)
    if response.omitted or len(response.body) > max_response:
        return Response(response.status, headers, b"", omitted=True)
    return Response(response.status, headers, response.body)


def outcome_to_store(response: Response, rule: Rule, policy: Policy) -> Response:
    """What is stored of the app's response. Raises NotStored where it ends no key."""
    retry_safe = policy.retry_safe if rule.retry_safe is None else rule.retry_safe
    if not is_stored(response.status, response.headers, retry_safe=retry_safe):
        raise NotStored
    return stored_response(response, rule.kept, rule.max_response)


def _size(headers: Headers) -> int:
    return sum(len(name) + len(value) for name, value in headers)
