"""A listing of keys, as `list` gives it: one short summary per key, page by page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from oncekey.core.answer import status_in
from oncekey.core.errors import ConfigurationError
from oncekey.core.record import Record, State
from oncekey.core.search import PAGE_LIMIT_MAX, Page, Query
from oncekey.core.state_machine import is_expired, state_now
from oncekey.engine.keys.key_status import end_of, time_of

# A key that was freed after a step; the others are freed without a trace.
FREED = "freed"
STATES = {
    "pending": State.PENDING,
    "succeeded": State.SUCCEEDED,
    "failed": State.FAILED,
    "unknown": State.UNKNOWN,
    FREED: State.ABSENT,
}
_NAMES = {state: name for name, state in STATES.items()}
_TAG_DIGITS = frozenset("0123456789abcdef")
_TAG_MAX_CHARS = 32


@dataclass(frozen=True, slots=True)
class KeySummary:
    """One key in a listing. The fields are those of KeyStatus; `http_status` is that of a stored
    HTTP response. `get` and `find` show everything about a key."""

    state: str
    operation: str
    scope: str
    route: str
    name: str
    surface: str
    key: str
    tag: str
    id: str
    attempt: int
    fence: int
    retry_safe: bool
    created_at: datetime
    lease_until: datetime
    finished_at: datetime | None
    expires_at: datetime | None
    expired: bool
    http_status: int | None
    note: str


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of keys, newest claim first.

    looked_at   how many records were looked at for it; only so many are per page
    next        give it to `list` as `after` for the next page; None if there are no more
    """

    keys: tuple[KeySummary, ...]
    now: datetime
    looked_at: int
    next: str | None


def listing_of(page: Page) -> Listing:
    """The listing of a page of records."""
    keys = tuple(summary_of(record, page.now) for record in page.records)
    next = str(page.next) if page.next is not None else None
    return Listing(keys, time_of(page.now), page.looked_at, next)


def summary_of(record: Record, now: int) -> KeySummary:
    expired = is_expired(record, now)
    state = record.state if expired else state_now(record, now)
    return KeySummary(
        state=_NAMES[State(state)],
        operation=record.operation,
        scope=record.scope,
        route=record.origin.route,
        name=record.origin.name,
        surface=record.origin.surface,
        key=record.key,
        tag=record.tag,
        id=record.id.hex(),
        attempt=record.attempt,
        fence=record.fence,
        retry_safe=record.retry_safe,
        created_at=time_of(record.created_at),
        lease_until=time_of(record.lease_until),
        finished_at=end_of(record),
        expires_at=None if record.lasts_until_decided else time_of(record.expires_at),
        expired=expired,
        http_status=status_in(record.body),
        note=record.note,
    )


def query_of(
    *,
    state: str | Iterable[str] | None,
    scope: str | None,
    operation: str | None,
    route: str | None,
    key: str | None,
    tag: str,
    expired: bool,
) -> Query:
    """The query for the arguments of `list`, checked."""
    names = [state] if isinstance(state, str) else list(state or ())
    wrong = [name for name in names if name not in STATES]
    if wrong:
        raise ConfigurationError(f"{wrong[0]!r} is no state; there are {', '.join(STATES)}")
    states = frozenset(STATES[name] for name in names)
    return Query(states, scope, operation, route, key, checked_tag(tag), expired)


def checked_tag(tag: str) -> str:
    """A tag, or its beginning, in lower case and without dashes."""
    digits = tag.lower().replace("-", "")
    if len(digits) > _TAG_MAX_CHARS or not _TAG_DIGITS.issuperset(digits):
        raise ConfigurationError(
            f"{tag[:60]!r} is no tag: a tag is up to 12 hexadecimal digits, as logs and errors "
            "show it in brackets"
        )
    return digits


def checked_limit(limit: int) -> int:
    if not isinstance(limit, int) or not 1 <= limit <= PAGE_LIMIT_MAX:
        raise ConfigurationError(f"limit={limit!r} must be 1 to {PAGE_LIMIT_MAX} keys a page")
    return limit
