"""What each outcome of a try means: try again or stop, how long to wait, what is still open.

Pure: knows no HTTP library, no clock and no randomness; readings and a random number come in.
Times are microseconds.
"""

from __future__ import annotations

import json
import re
import zlib
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

from oncekey.client.retry import DEADLINE_MAX_US, Terms
from oncekey.client.retry_effects import SECOND_US, Answered, Broke, Trouble

IN_FLIGHT: Final = 409
RETRIED: Final = frozenset({425, 429, 502, 503, 504})
# Refused before anything was done about it.
HARMLESS: Final = frozenset({425, 429})
# The HTTP library itself may send the same request again: elsewhere, or with credentials.
SENT_ON: Final = frozenset({307, 308, 401, 407})
# A server that cannot read a message, or finds it too large, has done nothing about this one: a
# warning beside it is about earlier ones with the same key.
UNREAD: Final = frozenset({400, 413})

# No deadline is longer, so waiting longer is never meant.
RETRY_AFTER_MAX_US: Final = DEADLINE_MAX_US
_DIGITS_MAX: Final = 10
_SECONDS: Final = re.compile(r"([0-9]+)(?:\.([0-9]*))?")
# Libraries join several lines of one name by commas; those after a weekday are a date's own.
_BETWEEN_LINES: Final = re.compile(
    "(?<!day)(?<!mon)(?<!tue)(?<!wed)(?<!thu)(?<!fri)(?<!sat)(?<!sun),", re.I
)

# Of a problem's body: enough for every sentence of a refusal, and no bomb.
PROBLEM_MAX_BYTES: Final = 65_536
_PROBLEM: Final = "application/problem+json"
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_UNSENT: Final = frozenset({Trouble.CONNECT, Trouble.CONNECT_TIMEOUT, Trouble.POOL_TIMEOUT})
_FINAL: Final = frozenset({Trouble.CERTIFICATE, Trouble.OTHER})


class Judged(NamedTuple):
    """One try. `again`: another one may go better. `harmless`: it cannot have had an effect."""

    again: bool
    harmless: bool
    why: str


def judge(fact: Answered | Broke) -> Judged:
    """Whether to try again after this."""
    if isinstance(fact, Broke):
        harmless = fact.trouble in _UNSENT or fact.trouble is Trouble.CERTIFICATE
        return Judged(fact.trouble not in _FINAL, harmless, str(fact.trouble))
    if fact.replayed and fact.broke is None:
        # Stored, so it is the same each time, also where a first answer of this kind would pass.
        return Judged(False, False, f"status {fact.status}, replayed")
    # Whatever it says: a conflict that does not pass has no reason to name a time.
    if fact.status == IN_FLIGHT and fact.retry_after is not None:
        return Judged(True, False, "409, a request with this key is in flight")
    if fact.status in RETRIED:
        harmless = fact.status in HARMLESS and not fact.doubtful
        return Judged(True, harmless, f"status {fact.status}")
    if fact.broke is not None:
        return Judged(True, False, f"status {fact.status}, but {fact.broke}")
    return Judged(False, False, f"status {fact.status}")


def settles(fact: Answered, *, unsure: bool) -> bool:
    """Whether this answer tells what became of the operation, so that its key is done with.

    A replay does, whatever its status: no other answer will ever come under this key.

    `unsure`: something sent under the key before may have had an effect, and a refusal need not
    be its answer: the server may never have got as far as looking at the key, or may be working
    on it still. Many servers say that with a 409 that has no Retry-After.
    """
    if judge(fact).again or fact.status in SENT_ON:
        return False
    if fact.doubtful and (unsure or fact.status not in UNREAD):
        return False
    if fact.replayed:
        return True
    if fact.status == IN_FLIGHT or fact.status >= 500:
        return False
    return not unsure or 200 <= fact.status < 400


def drops_key(method: str, status: int) -> bool:
    """Whether the HTTP library above follows this answer with a GET: a request of its own, which
    must not go under the key of the one that was answered."""
    return status in (302, 303) or (status == 301 and method == "POST")


# --- how long ----------------------------------------------------------------------------------


def pause_us(
    terms: Terms, attempt: int, asked: int | None, chance: float, left: int = DEADLINE_MAX_US
) -> int:
    """How long to wait after try number `attempt`: full jitter, on top of what the server asked
    for, so that clients that were told the same do not come back together. Where what it asked for
    fits into what is `left` of the deadline, the jitter does so too."""
    ceiling = min(terms.cap, terms.base * 2 ** (attempt - 1))
    if asked is None:
        return int(chance * ceiling)
    return asked + int(chance * min(ceiling, max(0, left - asked)))


def retry_after_us(fact: Answered) -> int | None:
    """What Retry-After asks for, the longest of several; None where it is missing or says nothing
    that can be read. A part of a second counts as a whole one."""
    lines = _BETWEEN_LINES.split(fact.retry_after or "")
    found = [us for line in lines if (us := _line_us(line.strip(), fact)) is not None]
    return max(found, default=None)


def _line_us(value: str, fact: Answered) -> int | None:
    if number := _SECONDS.fullmatch(value):
        digits = number[1].lstrip("0") or "0"
        if len(digits) > _DIGITS_MAX:
            return RETRY_AFTER_MAX_US
        seconds = int(digits) + bool((number[2] or "").strip("0"))
        return min(seconds * SECOND_US, RETRY_AFTER_MAX_US)
    until = _date_us(value)
    if until is None:
        return None
    # By the server's own calendar, where it tells: ours may be wrong by minutes.
    now = _date_us(fact.date or "")
    return min(max(0, until - (fact.moment.wall if now is None else now)), RETRY_AFTER_MAX_US)


def _date_us(value: str) -> int | None:
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return (date - _EPOCH) // _MICROSECOND


# --- what the server says about new keys ---------------------------------------------------------


def warns_of_new_key(content_type: str | None, encoding: str | None, body: bytes | None) -> bool:
    """Whether problem details (RFC 9457) say `safe_new_key: false`.

    A problem that cannot be read counts as a warning: keeping a key too long costs less than
    carrying something out twice.
    """
    if (content_type or "").partition(";")[0].strip().lower() != _PROBLEM:
        return False
    if body is None or len(body) > PROBLEM_MAX_BYTES:
        return True
    try:
        if encoding and encoding.strip().lower() != "identity":
            body = zlib.decompressobj(_GZIP_OR_ZLIB).decompress(body, PROBLEM_MAX_BYTES)
        told = json.loads(body)
    except (ValueError, zlib.error, RecursionError):
        return True
    return isinstance(told, dict) and told.get("safe_new_key") is False
