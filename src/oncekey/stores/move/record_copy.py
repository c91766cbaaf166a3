"""Copies the records of one store to another, page by page, from the newest claim to the oldest.

A page may be copied again at any time: what the new store has already is left alone. Whatever is
claimed while the copy runs is claimed in both stores by its process, so the copy has to find only
what was claimed before. Prints nothing and waits for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from oncekey.core.commands import Adopt, Command
from oncekey.core.errors import OncekeyError
from oncekey.core.move_marks import MARK_ID
from oncekey.core.record import Record
from oncekey.core.search import Cursor, Query
from oncekey.core.state_machine import is_expired
from oncekey.core.store import RecordTooLarge, Store
from oncekey.stores.move.copy_rule import CopyResult
from oncekey.stores.move.dual_store import DualStore

COPY_PAGE_DEFAULT: Final = 500  # records a page
_ALL: Final = Query(expired=True)


class LargeRecord(NamedTuple):
    """A record that the new store cannot hold: which one, how many bytes it would have there, how
    many are possible, and when it has expired."""

    id: bytes
    operation: str
    size: int
    most: int
    expires_at: int


class CopiedPage(NamedTuple):
    """What became of one page.

    counts      how many records came to which end
    past        how many past generations were sent to the history
    past_large  how many past generations, or records that have expired, the new store cannot hold
    held        ids that are held in the old store only
    large       the other records that the new store cannot hold
    next        where to go on; None if there are no more
    """

    counts: Counter[CopyResult]
    past: int
    past_large: int
    held: tuple[bytes, ...]
    large: tuple[LargeRecord, ...]
    next: Cursor | None


def copy_page(
    store: DualStore, after: Cursor, limit: int = COPY_PAGE_DEFAULT, *, history: bool = True
) -> CopiedPage:
    """Copy the records that are older than `after`, at most `limit`."""
    page = store.old.search(_ALL, limit, after)
    records = [record for record in page.records if record.id != MARK_ID]
    past, past_large = _copy_past(store, records, page.now) if history else (0, 0)
    ids = [record.id for record in records]
    results = store.copy(ids) if ids else []
    counts: Counter[CopyResult] = Counter()
    held: list[bytes] = []
    large: list[LargeRecord] = []
    for record, result in zip(records, results, strict=True):
        if isinstance(result, RecordTooLarge):
            counts[CopyResult.TOO_LARGE] += 1
            if is_expired(record, page.now):
                past_large += 1
            else:
                large.append(_large(record, result))
        else:
            counts[result] += 1
            if result is CopyResult.HELD:
                held.append(record.id)
    return CopiedPage(counts, past, past_large, tuple(held), tuple(large), page.next)


def _large(record: Record, error: RecordTooLarge) -> LargeRecord:
    return LargeRecord(record.id, record.operation, error.size, error.most, record.expires_at)


def _copy_past(store: DualStore, records: Sequence[Record], now: int) -> tuple[int, int]:
    """Send past generations first: whoever sees a key in the new store sees its history too.
    Returns how many were sent, and how many the new store cannot hold."""
    past = [
        Adopt(old, now, past=True)
        for record in records
        if record.audit > 0  # without an audit time nothing is kept
        for old in store.old.history(record.id)
    ]
    replies: list[Any] = _apply_each(store.new, past)
    large = 0
    for reply in replies:
        if isinstance(reply, RecordTooLarge):
            large += 1
        elif isinstance(reply, OncekeyError):
            raise reply
    return len(past) - large, large


def _apply_each(store: Store, commands: Sequence[Command]) -> list[Any]:
    """The replies of a store, also where all of them are errors."""
    try:
        return [*store.apply(commands)] if commands else []
    except RecordTooLarge as error:  # of all of them
        return [error] * len(commands)
