"""Lists the records that have not ended, page by page, with one short statement per page.

A page reads a bounded number of rows, in the order of their claims. So listing a large table takes
many pages and no long statement, and between two pages the connection is free for other calls. The
clock is read with the first page and used for all of them.

This module owns the order of the pages and decides when there are enough. It must not know drivers.
"""

from __future__ import annotations

from typing import Final

from oncekey.core.record import Record
from oncekey.core.store import Unfinished
from oncekey.stores.postgres.rows import stored_row_of
from oncekey.stores.postgres.statements import Statement, Statements

# How many rows a page reads: about ten milliseconds, if nothing has to be fetched from disk.
PAGE_ROWS_MAX: Final = 5_000


class UnfinishedPages:
    """One listing (S10) in progress: run `page` until `is_done`."""

    def __init__(self, now: int | None, after: int, limit: int) -> None:
        self._now = now
        self._after = after
        self._limit = max(limit, 0)
        self._found: list[Record] = []
        self.is_done = False

    def page(self) -> Statements[None]:
        """The next page, as a program."""
        left = self._limit - len(self._found)
        rows = yield Statement("unfinished", (self._now, self._after, left, PAGE_ROWS_MAX))
        self._now, last, is_full = rows[0][:3]
        self._found += [stored.record for row in rows if (stored := stored_row_of(row)) is not None]
        if is_full and len(self._found) < self._limit:
            self._after = last
        else:
            self.is_done = True

    @property
    def result(self) -> Unfinished:
        assert self._now is not None
        return Unfinished(tuple(self._found), self._now)
