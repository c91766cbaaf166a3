"""Searches of a store's records: what to find, which records match, and a page of them.

A search goes through the records from the newest claim to the oldest, and a page looks at a bounded
number of them, whether they match or not. So its cost does not depend on what is stored. Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Self

from oncekey.core.errors import ConfigurationError
from oncekey.core.record import Record, State
from oncekey.core.state_machine import is_expired, state_now

LOOKED_AT_MAX: Final = 20_000  # records per page
PAGE_LIMIT_DEFAULT: Final = 50
PAGE_LIMIT_MAX: Final = 1_000
# Of the outcome's bytes a page has only so many: enough for the status of an HTTP response.
BODY_HEAD_BYTES: Final = 1_024
MEASURE_MAX: Final = 10_000  # what is counted is counted up to here
RATE_WINDOW_US: Final = 60_000_000
ID_BYTES: Final = 16


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
    looked_at   how many records were looked at
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


def page_of(found: list[Record], last: Cursor | None, now: int, looked_at: int, limit: int) -> Page:
    """A page: `found` matched among the records that were looked at, of which `last` was the last;
    None if there was nothing left to look at after it. What is beyond the limit is left for the
    next page."""
    if len(found) > limit or (len(found) == limit and last is not None):
        end = found[limit - 1]
        return Page(tuple(found[:limit]), now, looked_at, Cursor(end.fence, end.id))
    return Page(tuple(found), now, looked_at, last)
