"""Copies the records of one store to another, page by page, from the newest claim to the oldest.

A page may be copied again at any time: what the new store has already is left alone. Whatever is
claimed while the copy runs is claimed in both stores by its process, so the copy has to find only
what was claimed before. Prints nothing and waits for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from oncekey.core.commands import Adopt
from oncekey.core.move_marks import MARK_ID
from oncekey.core.record import Record
from oncekey.core.search import Cursor, Query
from oncekey.stores.move.copy_rule import CopyResult
from oncekey.stores.move.dual_store import DualStore

COPY_PAGE_DEFAULT: Final = 500  # records a page
_ALL: Final = Query(expired=True)


class CopiedPage(NamedTuple):
    """What became of one page.

    counts   how many records came to which end
    past     how many past generations were sent to the history
    held     ids that are held in the old store only
    next     where to go on; None if there are no more
    """

    counts: Counter[CopyResult]
    past: int
    held: tuple[bytes, ...]
    next: Cursor | None


def copy_page(
    store: DualStore, after: Cursor, limit: int = COPY_PAGE_DEFAULT, *, history: bool = True
) -> CopiedPage:
    """Copy the records that are older than `after`, at most `limit`."""
    page = store.old.search(_ALL, limit, after)
    records = [record for record in page.records if record.id != MARK_ID]
    past = _copy_past(store, records, page.now) if history else 0
    ids = [record.id for record in records]
    results = store.copy(ids) if ids else []
    held = [id for id, result in zip(ids, results, strict=True) if result is CopyResult.HELD]
    return CopiedPage(Counter(results), past, tuple(held), page.next)


def _copy_past(store: DualStore, records: Sequence[Record], now: int) -> int:
    """Send past generations first: whoever sees a key in the new store sees its history too."""
    past = [
        Adopt(old, now, past=True)
        for record in records
        if record.audit > 0  # without an audit time nothing is kept
        for old in store.old.history(record.id)
    ]
    if past:
        store.new.apply(past)
    return len(past)
