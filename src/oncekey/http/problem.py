"""Refusals: as RFC 9457 problem details, or in the shape an app's own errors have.

Owns the codes of the problems and what a client reads: what happened and what to do next. Never
tells a key, and says the same to everybody about a key of somebody else: nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, Final, NamedTuple

from oncekey.core.errors import (
    InFlight,
    InvalidKey,
    LeaseLost,
    Mismatch,
    MissingKey,
    NotReplayable,
    OncekeyError,
    OperationFailed,
    OutcomeUnknown,
    StoreUnavailable,
)
from oncekey.http.message import Response

TYPE_BASE: Final = "urn:oncekey:problem:"  # where no policy is published
RETRY_AFTER_DOWN_SECONDS: Final = 1
RETRY_AFTER_MAX_SECONDS: Final = 3_600
# What a duplicate is told at most while nobody knows how long such requests take. The rest of the
# lease would be right only for an owner that has died.
RETRY_AFTER_UNLEARNED_SECONDS: Final = 2


_log = logging.getLogger("oncekey")


class Refusal(NamedTuple):
    """What a client is refused with, as `render_refusal=` is given it.

    code          which problem it is; never changes, so that clients can go by it
    status        the HTTP status
    title         what happened, in one line
    detail        what to do about it
    retryable     whether the same request with the same key is worth sending again
    safe_new_key  whether the request may be sent again under a new key
    retry_after   after how many seconds, None where that is not said
    type          where this problem is documented
    more          what else is known: `original_status` of an answer that was not kept
    """

    code: str
    status: int
    title: str
    detail: str
    retryable: bool
    safe_new_key: bool
    retry_after: int | None
    type: str
    more: Mapping[str, Any]


class Rendered(NamedTuple):
    """A refusal in another shape. Retry-After, Link, Cache-Control and WWW-Authenticate are sent
    beside it; `status` None leaves it as it is."""

    body: bytes
    content_type: str = "application/json"
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()


Render = Callable[[Refusal], Rendered | Mapping[str, Any]]


class Problem(NamedTuple):
    """One kind of refusal.

    `safe_new_key` is True only where nothing can have run under this key, neither this time nor
    when the same request was delivered before and its answer was lost.
    """

    name: str
    status: int
    title: str
    detail: str
    retryable: bool
    safe_new_key: bool = False


INVALID = Problem("invalid-key", 400, "The idempotency key cannot be accepted", "", False)
MISSING = Problem(
    "missing-key",
    400,
    "An idempotency key is required",
    "Send an Idempotency-Key header: a new random key for each new request, the same key again "
    "for a retry.",
    False,
)
UNREADABLE = Problem("unreadable-body", 400, "The request body cannot be read", "", False)
UNKNOWN_CALLER = Problem(
    "unknown-caller",
    401,
    "Nobody is authenticated",
    "Authenticate first; idempotency keys belong to callers.",
    False,
)
UNGUARDED = Problem(
    "unguarded",
    400,
    "Idempotency keys have no effect here",
    "This request would not be protected against duplicates, so it was not carried out. Send it "
    "without an Idempotency-Key if it may be carried out more than once.",
    False,
)
TOO_LARGE = Problem("request-too-large", 413, "The request body is too large", "", False)
MISMATCH = Problem(
    "key-reused",
    422,
    "This key was used for another request",
    "If this is a new request, give it a new key. If it is a retry, send exactly the same request "
    "again: the one this key was used for may have been carried out.",
    False,
)
IN_FLIGHT = Problem(
    "in-flight",
    409,
    "A request with this key is being processed",
    "Wait and send the same request with the same key again.",
    True,
)
UNKNOWN = Problem(
    "outcome-unknown",
    409,
    "The outcome of the first request is not known",
    "It may have been carried out. Do not send it again under a new key before you have found out.",
    False,
)
FAILED = Problem(
    "failed",
    500,
    "The first request with this key failed",
    "It is not carried out again under this key. Whether it had an effect is not known.",
    False,
)
OVERTAKEN = Problem(
    "overtaken",
    409,
    "Another attempt has taken over",
    "Send the same request with the same key again to get its answer.",
    True,
)
NOT_REPLAYABLE = Problem(
    "not-replayable",
    409,
    "It was carried out, but its answer was not kept",
    "The request was carried out once; its answer was too large to keep. Do not send it again "
    "under a new key.",
    False,
)
NOT_RECORDED = Problem(
    "not-recorded",
    503,
    "It was carried out, but its answer could not be recorded",
    "The request was carried out once. Send the same request with the same key again, never under "
    "a new key.",
    True,
)
UNAVAILABLE = Problem(
    "unavailable",
    503,
    "Requests cannot be checked for duplicates at the moment",
    "Send the same request with the same key again.",
    True,
)
ALL: Final = (
    INVALID,
    MISSING,
    UNREADABLE,
    UNKNOWN_CALLER,
    TOO_LARGE,
    MISMATCH,
    IN_FLIGHT,
    UNKNOWN,
    FAILED,
    OVERTAKEN,
    NOT_REPLAYABLE,
    NOT_RECORDED,
    UNAVAILABLE,
    UNGUARDED,
)

_OF_ERRORS: Final[tuple[tuple[type[OncekeyError], Problem], ...]] = (
    (MissingKey, MISSING),  # before InvalidKey, which it is too
    (InvalidKey, INVALID),
    (Mismatch, MISMATCH),
    (InFlight, IN_FLIGHT),
    (OutcomeUnknown, UNKNOWN),
    (OperationFailed, FAILED),
    (LeaseLost, OVERTAKEN),
    (NotReplayable, NOT_REPLAYABLE),
    (StoreUnavailable, UNAVAILABLE),
)


def problem_for(error: OncekeyError) -> Problem | None:
    """The kind of refusal an error is; None for mistakes of the set-up, which are no client's."""
    if isinstance(error, StoreUnavailable) and error.value is not None:
        return NOT_RECORDED
    found = next((problem for kind, problem in _OF_ERRORS if isinstance(error, kind)), None)
    if found is INVALID:
        return INVALID._replace(detail=str(error.args[0]) if error.args else "")
    return found


def refusal_response(
    problem: Problem,
    *,
    retry_after: float | None = None,
    policy_url: str | None = None,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    render: Render | None = None,
    **more: Any,
) -> Response:
    """The response for a problem."""
    seconds = None
    if retry_after is not None:
        seconds = max(1, min(ceil(retry_after), RETRY_AFTER_MAX_SECONDS))
    kind = f"{policy_url}#{problem.name}" if policy_url else TYPE_BASE + problem.name
    refused = Refusal(problem.name, *problem[1:], seconds, kind, more)
    rendered = _rendered(refused, render)
    lines = [
        (b"content-type", rendered.content_type.encode("latin-1")),
        (b"content-length", b"%d" % len(rendered.body)),
        (b"cache-control", b"no-store"),
    ]
    if seconds is not None:
        lines.append((b"retry-after", b"%d" % seconds))
    if policy_url:
        link = f'<{policy_url}>; rel="describedby"; type="text/html"'
        lines.append((b"link", link.encode("latin-1")))
    own = [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in rendered.headers]
    return Response(rendered.status or problem.status, (*lines, *headers, *own), rendered.body)


def _rendered(refused: Refusal, render: Render | None) -> Rendered:
    if render is not None:
        try:
            made = render(refused)
            if isinstance(made, Rendered):
                return _checked(made)
            if isinstance(made, Mapping):
                return Rendered(json.dumps(dict(made)).encode())
            raise TypeError(f"it gave a {type(made).__name__}, not a dict or a Rendered")
        except Exception:  # whatever it raises, the client is to know that it was refused
            _log.exception("render_refusal failed on %s; problem details are sent", refused.code)
    return Rendered(_problem_details(refused), "application/problem+json")


def _checked(made: Rendered) -> Rendered:
    """What cannot be sent is found here, where problem details can still take its place."""
    if not isinstance(made.body, bytes):
        raise TypeError(f"the body of a Rendered is bytes, not a {type(made.body).__name__}")
    status = made.status
    if status is not None and not (isinstance(status, int) and 200 <= status <= 599):
        raise ValueError(f"a refusal's status is 200 to 599, not {status!r}")
    for name, value in (("content-type", made.content_type), *made.headers):
        if not f"{name}{value}".isprintable():
            raise ValueError(f"the header {name!r} cannot be sent")
        f"{name}{value}".encode("latin-1")
    return made


def _problem_details(refused: Refusal) -> bytes:
    told = {
        "type": refused.type,
        "title": refused.title,
        "status": refused.status,
        "detail": refused.detail,
        "code": refused.code,
        "retryable": refused.retryable,
        "safe_new_key": refused.safe_new_key,
        **refused.more,
    }
    return json.dumps({name: value for name, value in told.items() if value != ""}).encode()
