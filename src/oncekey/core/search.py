"""Searches of a store's records: what to find, which records match, and a page of them.

A search goes through the records from the newest claim to the oldest, and a page looks at a bounded
number of them, whether they match or not. So its cost does not depend on what is stored. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

from oncekey.core.errors import ConfigurationError
from oncekey.core.record import Record, State
from oncekey.core.state_machine import is_expired, state_now

LOOKED_AT_MAX: Final = 20_000  # records per page
# A database looks at a few records first, and at the others only if these were not enough.
LOOKED_AT_FIRST: Final = 200
PAGE_LIMIT_DEFAULT: Final = 50
PAGE_LIMIT_MAX: Final = 1_000
# Of the outcome's bytes a page has only so many: enough for the status of an HTTP response.
BODY_HEAD_BYTES: Final = 1_024
MEASURE_MAX: Final = 10_000  # what is counted is counted up to here
RATE_WINDOW_US: Final = 60_000_000
ID_BYTES: Final = 16
_FIRST_PER_FOUND: Final = 2


class Query(NamedTuple):
    """What to find; a field that is None, or empty, finds everything.

    states      the states a claim would find; ABSENT is a key that was freed after a step
    expired     also records that have expired, by the state they had
    route       the route, or its beginning: "POST /charges"
    tag         the key's name in logs, or its beginning; found by an index, whatever is stored
    """

    states: frozenset[State] = frozenset()
    scope: str | None = None
    operation: str | None = None
    route: str | None = None
    key: str | None = None
    tag: str = ""
    expired: bool = False

    def matches(self, record: Record, now: int) -> bool:
        """The definition of a match; databases compute the same."""
        expired = is_expired(record, now)
        state = record.state if expired else state_now(record, now)
        if (expired and not self.expired) or (state == State.ABSENT and not record.steps):
            return False
        return (
            (not self.states or state in self.states)
            and self.scope in (None, record.scope)
            and self.operation in (None, record.operation)
            and (self.route is None or record.origin.route.startswith(self.route))
            and self.key in (None, record.key)
            and record.id.hex().startswith(self.tag)
        )

    @property
    def ids(self) -> tuple[bytes, bytes]:
        """The first and the last id that the tag may belong to."""
        return (
            bytes.fromhex(self.tag.ljust(2 * ID_BYTES, "0")),
            bytes.fromhex(self.tag.ljust(2 * ID_BYTES, "f")),
        )


class Cursor(NamedTuple):
    """Where a page has ended: the next one goes on with what is older."""

    fence: int
    id: bytes

    def __str__(self) -> str:
        return f"{self.fence}-{self.id.hex()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The cursor that was written as this text."""
        fence, _, id = text.partition("-")
        try:
            cursor = cls(int(fence), bytes.fromhex(id))
        except ValueError:
            cursor = cls(0, b"")
        if len(cursor.id) != ID_BYTES or cursor.fence <= 0:
            raise ConfigurationError(f"{text[:60]!r} is not where a page has ended")
        return cursor


NEWEST: Final = Cursor(2**63 - 1, b"\xff" * ID_BYTES)  # before every record


class Page(NamedTuple):
    """Some of the records that match, newest claim first; their steps are left out, and their
    bodies are cut (BODY_HEAD_BYTES).

    now         the store's clock
    looked_at   how many records were looked at up to the end of the page, without those that an
                index leaves out
    next        where to go on; None if there are no more
    """

    records: tuple[Record, ...]
    now: int
    looked_at: int
    next: Cursor | None


class Measures(NamedTuple):
    """What a store can tell of itself without counting everything.

    rows, bytes     how much is stored; estimates where counting would read everything
    due             how many records are garbage that was not swept yet, up to MEASURE_MAX
    oldest_due      since when the oldest of them could have been swept; 0 if there is none
    claims          how many keys were claimed in the last RATE_WINDOW_US, up to MEASURE_MAX
    lock_waits      how many sessions are waiting for a lock, where the store can tell
    """

    now: int
    rows: int
    bytes: int
    due: int
    oldest_due: int
    claims: int
    lock_waits: int = 0


class Walk:
    """The way of a search through a database: the first statement looks at a few records, the
    second at the rest of what a page may look at, since most searches find their page at once.

    found, looked_at   what the statements have found so far, among how many records
    places             how many records were looked at up to each that was found
    last               where the next statement begins; None if there is nothing left
    """

    def __init__(self, limit: int, after: Cursor) -> None:
        self._limit = limit
        self._most = min(max(LOOKED_AT_FIRST, _FIRST_PER_FOUND * limit), LOOKED_AT_MAX)
        self.found: list[Record] = []
        self.places: list[int] = []
        self.looked_at = 0
        self.last: Cursor | None = after

    @property
    def most(self) -> int:
        """How many records the next statement looks at; 0 if the page is done."""
        if self.last is None or len(self.found) >= self._limit:
            return 0
        return self._most - self.looked_at

    @property
    def wanted(self) -> int:
        """How many records are missing on the page."""
        return self._limit - len(self.found)

    def add(self, found: list[Record], places: Iterable[int], looked_at: int, last: Cursor) -> None:
        """What a statement has found, in which places among so many records, the last of which was
        this."""
        self.last = last if looked_at == self.most else None
        self.found += found
        self.places += [self.looked_at + place for place in places]
        self.looked_at += looked_at
        if self.looked_at == self._most:
            self._most = LOOKED_AT_MAX

    def page(self, now: int) -> Page:
        return page_of(self.found, self.places, self.last, now, self.looked_at, self._limit)


def page_of(
    found: list[Record],
    places: Sequence[int],
    last: Cursor | None,
    now: int,
    looked_at: int,
    limit: int,
) -> Page:
    """A page: `found` matched, in these places among the records that were looked at, of which
    `last` was the last; None if there was nothing left to look at after it. What is beyond the
    limit is left for the next page, and does not count as looked at."""
    if len(found) > limit or (len(found) == limit and last is not None):
        end = found[limit - 1]
        return Page(tuple(found[:limit]), now, places[limit - 1], Cursor(end.fence, end.id))
    return Page(tuple(found), now, looked_at, last)
