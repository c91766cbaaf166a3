"""The refusals that clients get: RFC 9457 problem details, or the shape of the app's own errors.

Owns the codes of the problems and their texts, which say what happened and what to do next. A
refusal never contains a key, and nothing of it depends on the keys of other callers.
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
# The longest Retry-After of a duplicate before the latency of its rule is known. The rest of the
# lease would be right only for an owner that has died.
RETRY_AFTER_UNLEARNED_SECONDS: Final = 2


_log = logging.getLogger("oncekey")


class Refusal(NamedTuple):
    """The argument of `render_refusal=`: why a request is refused, and what its client can do.

    code          identifies the problem; stable, so that clients can rely on it
    status        the HTTP status
    title         what happened, in one line
    detail        what to do about it
    retryable     whether the same request with the same key is worth sending again
    safe_new_key  whether the request may be sent again under a new key
    retry_after   after how many seconds to retry, or None
    type          a URI that identifies the problem, where it is documented
    more          further members: `original_status` of a response that was not stored
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
    """A refusal in the app's own shape. Retry-After, Link, Cache-Control and WWW-Authenticate are
    added to its headers; without a `status` it has the refusal's."""

    body: bytes
    content_type: str = "application/json"
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()


Render = Callable[[Refusal], Rendered | Mapping[str, Any]]


class Problem(NamedTuple):
    """One kind of refusal.

    `safe_new_key` is True only if nothing can have run under this key, neither this time nor when
    the same request was delivered before and its response was lost.
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
TOO_MANY_COMPARISONS: Final = (
    "Too many of your large or compressed requests wait to be compared with earlier ones. Send "
    "fewer at a time, and this one again with the same key."
)
ALL_PROBLEMS: Final = (
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

_PROBLEM_BY_ERROR: Final[tuple[tuple[type[OncekeyError], Problem], ...]] = (
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
    """The problem that an error is reported as; None for errors that no client can act on."""
    if isinstance(error, StoreUnavailable) and error.value is not None:
        return NOT_RECORDED
    problem = next(
        (problem for kind, problem in _PROBLEM_BY_ERROR if isinstance(error, kind)), None
    )
    if problem is INVALID:
        return INVALID._replace(detail=str(error.args[0]) if error.args else "")
    return problem


def refusal_response(
    problem: Problem,
    *,
    retry_after: float | None = None,
    policy_url: str | None = None,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    render: Render | None = None,
    **more: Any,
) -> Response:
    """The response that reports a problem."""
    seconds = None
    if retry_after is not None:
        seconds = max(1, min(ceil(retry_after), RETRY_AFTER_MAX_SECONDS))
    type_uri = f"{policy_url}#{problem.name}" if policy_url else TYPE_BASE + problem.name
    refusal = Refusal(problem.name, *problem[1:], seconds, type_uri, more)
    rendered = _rendered(refusal, render)
    standard = [
        (b"content-type", rendered.content_type.encode("latin-1")),
        (b"content-length", b"%d" % len(rendered.body)),
        (b"cache-control", b"no-store"),
    ]
    if seconds is not None:
        standard.append((b"retry-after", b"%d" % seconds))
    if policy_url:
        link = f'<{policy_url}>; rel="describedby"; type="text/html"'
        standard.append((b"link", link.encode("latin-1")))
    own = [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in rendered.headers]
    return Response(rendered.status or problem.status, (*standard, *headers, *own), rendered.body)


def _rendered(refusal: Refusal, render: Render | None) -> Rendered:
    if render is not None:
        try:
            rendered = render(refusal)
            if isinstance(rendered, Rendered):
                return _checked(rendered)
            if isinstance(rendered, Mapping):
                return Rendered(json.dumps(dict(rendered)).encode())
            raise TypeError(f"it gave a {type(rendered).__name__}, not a dict or a Rendered")
        except Exception:  # whatever it raises, the client must get a refusal
            _log.exception("render_refusal failed on %s; problem details are sent", refusal.code)
    return Rendered(_problem_details(refusal), "application/problem+json")


def _checked(rendered: Rendered) -> Rendered:
    """Raise if it cannot be sent, as long as problem details can still be sent instead."""
    if not isinstance(rendered.body, bytes):
        raise TypeError(f"the body of a Rendered is bytes, not a {type(rendered.body).__name__}")
    status = rendered.status
    if status is not None and not (isinstance(status, int) and 200 <= status <= 599):
        raise ValueError(f"a refusal's status is 200 to 599, not {status!r}")
    for name, value in (("content-type", rendered.content_type), *rendered.headers):
        if not f"{name}{value}".isprintable():
            raise ValueError(f"the header {name!r} cannot be sent")
        f"{name}{value}".encode("latin-1")
    return rendered


def _problem_details(refusal: Refusal) -> bytes:
    members = {
        "type": refusal.type,
        "title": refusal.title,
        "status": refusal.status,
        "detail": refusal.detail,
        "code": refusal.code,
        "retryable": refusal.retryable,
        "safe_new_key": refusal.safe_new_key,
        **refusal.more,
    }
    return json.dumps({name: value for name, value in members.items() if value != ""}).encode()
