"""The rules of retrying: what a try means, how long to wait, and what is known at the end.

The rules are pure: they know no HTTP library, no clock and no randomness; readings and a random
number come in. Times are microseconds.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple

from oncekey.client.retry_effects import (
    SECOND_US,
    EntryState,
    NoResponse,
    ResponseHead,
    ResponseReceived,
    TransportFailure,
    TryResult,
)
from oncekey.client.retry_options import DEADLINE_MAX_US, RetryLimits

IN_FLIGHT: Final = 409
RETRIED: Final = frozenset({425, 429, 502, 503, 504})
# The server refused the request before it did anything about it.
HARMLESS: Final = frozenset({425, 429})
# After these the HTTP library itself may send the same request again: to another address, or with
# credentials.
SENT_ON: Final = frozenset({307, 308, 401, 407})
# A server that cannot read a request, or finds it too large, has done nothing about this one: a
# warning beside it is about earlier requests with the same key.
UNREAD: Final = frozenset({400, 413})
REFUSED_FROM: Final = 400
FAILED_FROM: Final = 500

# No deadline is longer, so no server can mean to be waited for longer.
RETRY_AFTER_MAX_US: Final = DEADLINE_MAX_US
_DIGITS_MAX: Final = 10
_SECONDS: Final = re.compile(r"([0-9]+)(?:\.([0-9]*))?")
# HTTP libraries join several header lines of one name by commas. A comma after a weekday belongs to
# a date.
_BETWEEN_LINES: Final = re.compile(
    "(?<!day)(?<!mon)(?<!tue)(?<!wed)(?<!thu)(?<!fri)(?<!sat)(?<!sun),", re.I
)

# Enough of a problem's body for every sentence of a refusal, and no decompression bomb.
PROBLEM_MAX_BYTES: Final = 65_536
_PROBLEM: Final = "application/problem+json"
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_UNSENT: Final = frozenset(
    {
        TransportFailure.CONNECT,
        TransportFailure.CONNECT_TIMEOUT,
        TransportFailure.POOL_TIMEOUT,
        TransportFailure.CERTIFICATE,
    }
)
_PERMANENT: Final = frozenset({TransportFailure.CERTIFICATE, TransportFailure.OTHER})


# --- what a try means ----------------------------------------------------------------------------


class Judgement(NamedTuple):
    """What one try means. `retry`: another try may go better. `harmless`: this one cannot have had
    an effect."""

    retry: bool
    harmless: bool
    why: str


def read_head(
    status: int, headers: Mapping[str, Any], replay_headers: Iterable[str]
) -> ResponseHead:
    """The head of a response; `replay_headers` are the names of those that mark a replay."""
    retry_after = headers.get("Retry-After")
    replayed = any(str(headers.get(name, "")).strip().lower() == "true" for name in replay_headers)
    # A replay is stored, so it is the same each time, even with a status that would pass otherwise.
    retried = not replayed and _is_retried(status, retry_after)
    return ResponseHead(status, retry_after, headers.get("Date"), replayed, retried)


def _is_retried(status: int, retry_after: str | None) -> bool:
    # A conflict that does not pass has no reason to name a time, whatever time it names.
    return status in RETRIED or (status == IN_FLIGHT and retry_after is not None)


def judge(result: TryResult) -> Judgement:
    """Judge a try that is over.

    1. No response came: the kind of failure decides.
    2. The status alone calls for another try, unless the response is a whole replay.
    3. The body did not come to its end: the response is lost, and another try may fetch it.
    4. Any other response is the last word.
    """
    if isinstance(result, NoResponse):
        harmless = result.unsent or result.failure in _UNSENT
        return Judgement(result.failure not in _PERMANENT, harmless, str(result.failure))
    head, failure = result.head, result.failure
    if head.retried or (failure is not None and _is_retried(head.status, head.retry_after)):
        if head.status == IN_FLIGHT:
            return Judgement(True, False, "409, a request with this key is in flight")
        harmless = head.status in HARMLESS and not result.warned
        return Judgement(True, harmless, f"status {head.status}")
    if failure is not None:
        return Judgement(True, False, f"status {head.status}, but {failure}")
    return Judgement(False, False, f"status {head.status}" + ", replayed" * head.replayed)


# --- what is known at the end --------------------------------------------------------------------


def is_conclusive(result: ResponseReceived, *, maybe_carried_out: bool) -> bool:
    """True if a whole response tells what became of the operation, so that its key has done its
    work.

    `maybe_carried_out` is True if something sent under the key before may have had an effect. A
    refusal need not be about that: the server may not have got as far as looking at the key, or
    may still be working on it. Many servers say the latter with a 409 that has no Retry-After.

    1. After some statuses the client or its HTTP library sends the request again: inconclusive.
    2. A warning of a new key makes it inconclusive, unless it is about earlier requests and there
       was none.
    3. A replay is conclusive, whatever its status: this key will never get another response.
    4. A conflict or a failure is inconclusive.
    5. If something may have been carried out before, only a success or a redirect is conclusive.
    """
    head = result.head
    if head.retried or head.status in SENT_ON:
        return False
    if result.warned and (maybe_carried_out or head.status not in UNREAD):
        return False
    if head.replayed:
        return True
    if head.status == IN_FLIGHT or head.status >= FAILED_FROM:
        return False
    return not maybe_carried_out or 200 <= head.status < REFUSED_FROM


def entry_state(status: int) -> EntryState:
    """What a conclusive response makes of a journal's entry. A replayed failure leaves it open,
    because it does not tell whether the operation had an effect."""
    if status >= FAILED_FROM:
        return EntryState.OPEN
    return EntryState.REFUSED if status >= REFUSED_FROM else EntryState.DONE


def redirects_to_get(method: str, status: int) -> bool:
    """True if the HTTP library follows this response with a GET: another request, which must not go
    under the key of this one."""
    return status in (302, 303) or (status == 301 and method == "POST")


# --- how long to wait ----------------------------------------------------------------------------


def pause_us(
    limits: RetryLimits,
    attempt: int,
    at_least: int | None,
    chance: float,
    left: int = DEADLINE_MAX_US,
) -> int:
    """How long to wait after try number `attempt`: full jitter, on top of what the server asked
    for, so that clients that got the same response do not come back together. If what the server
    asked for fits into what is `left` of the deadline, the jitter fits too."""
    ceiling = min(limits.cap, limits.base * 2 ** (attempt - 1))
    if at_least is None:
        return int(chance * ceiling)
    return at_least + int(chance * min(ceiling, max(0, left - at_least)))


def retry_after_us(head: ResponseHead, wall: int) -> int | None:
    """The time that Retry-After asks for, the longest of several; None if the header is missing or
    cannot be read. A part of a second counts as a whole one. `wall` is our own calendar time."""
    lines = _BETWEEN_LINES.split(head.retry_after or "")
    times = [_line_us(line.strip(), head.date, wall) for line in lines]
    return max((us for us in times if us is not None), default=None)


def _line_us(value: str, server_date: str | None, wall: int) -> int | None:
    if number := _SECONDS.fullmatch(value):
        digits = number[1].lstrip("0") or "0"
        if len(digits) > _DIGITS_MAX:
            return RETRY_AFTER_MAX_US
        seconds = int(digits) + bool((number[2] or "").strip("0"))
        return min(seconds * SECOND_US, RETRY_AFTER_MAX_US)
    until = _date_us(value)
    if until is None:
        return None
    # The server's own calendar comes first: ours may be wrong by minutes.
    now = _date_us(server_date or "")
    return min(max(0, until - (wall if now is None else now)), RETRY_AFTER_MAX_US)


def _date_us(value: str) -> int | None:
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return (date - _EPOCH) // _MICROSECOND


# --- what the server says about new keys ---------------------------------------------------------


def warns_of_new_key(headers: Mapping[str, Any], body: bytes | None) -> bool:
    """True if problem details (RFC 9457) say `safe_new_key: false`.

    A problem whose body cannot be read, or was not held (None), counts as a warning: keeping a key
    too long costs less than carrying out something twice.
    """
    content_type = headers.get("Content-Type") or ""
    if content_type.partition(";")[0].strip().lower() != _PROBLEM:
        return False
    if body is None or len(body) > PROBLEM_MAX_BYTES:
        return True
    encoding = headers.get("Content-Encoding")
    try:
        if encoding and encoding.strip().lower() != "identity":
            body = zlib.decompressobj(_GZIP_OR_ZLIB).decompress(body, PROBLEM_MAX_BYTES)
        problem = json.loads(body)
    except (ValueError, zlib.error, RecursionError):
        return True
    return isinstance(problem, dict) and problem.get("safe_new_key") is False
