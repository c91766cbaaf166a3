"""Listing what has not ended: page by page, each of them one short statement.

A page looks through the rows that were claimed next, so its cost is bounded however many there are:
the first listing of a large table takes many pages and no long statement, and between two of them
the connection is free for others. The clock is read with the first page and serves for all.

Owns the order of the pages and when they are enough. Must not know drivers.
"""

from __future__ import annotations

from typing import Final

from oncekey.core.record import Record
from oncekey.core.store import Unfinished
from oncekey.stores.postgres.program import Statement, Steps
from oncekey.stores.postgres.rows import met_of

# How many rows a page looks at: some ten milliseconds, if nothing has to be fetched from disk.
LOOKS_MAX: Final = 5_000


class Listing:
    """The verb (S10) under way: run `page` until it is done."""

    def __init__(self, now: int | None, after: int, limit: int) -> None:
        self._now = now
        self._after = after
        self._limit = max(limit, 0)
        self._found: list[Record] = []
        self.is_done = False

    def page(self) -> Steps[None]:
        """One more of them, as a program."""
        left = self._limit - len(self._found)
        rows = yield Statement("unfinished", (self._now, self._after, left, LOOKS_MAX))
        self._now, last, is_full = rows[0][:3]
        self._found += [met.record for row in rows if (met := met_of(row)) is not None]
        if is_full and len(self._found) < self._limit:
            self._after = last
        else:
            self.is_done = True

    @property
    def result(self) -> Unfinished:
        assert self._now is not None
        return Unfinished(tuple(self._found), self._now)
