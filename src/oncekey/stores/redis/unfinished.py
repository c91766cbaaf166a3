"""Lists the records that have not ended, out of the buckets' indexes of open records.

This module decides when there are enough. It must not know connections.
"""

from __future__ import annotations

from typing import Final

from oncekey.core.record import Record
from oncekey.core.state_machine import has_ended, is_expired
from oncekey.core.store import Unfinished
from oncekey.stores.redis.bucket_ranges import BucketRange, Entry
from oncekey.stores.redis.calls import Calls
from oncekey.stores.redis.record_calls import RecordCalls, collected, readable

# How many records a call reads, so that no claim waits long for one.
RECORDS_PER_CALL: Final = 500
_AFTER_EVERY_ID: Final = b"\xff" * 17


def unfinished(calls: RecordCalls, after: int, limit: int) -> Calls[Unfinished]:
    """The first `limit` records with fence > `after` that have not ended, and all others that have
    the fence of the last one (S10)."""
    entries = BucketRange(calls, "open", Entry(after, _AFTER_EVERY_ID))
    records: list[Record] = []
    looked_at = 0
    # One more, so that the clock is read even if nothing is wanted.
    wanted = max(limit, 0) + 1
    while True:
        found = yield from entries.take(wanted)
        now = entries.now
        fresh = yield from _read(calls, found[looked_at:])
        records += [
            record for record in fresh if not has_ended(record) and not is_expired(record, now)
        ]
        looked_at = len(found)
        has_more = looked_at == wanted
        # The last record may share its fence with entries that were not read yet.
        if not has_more or (len(records) >= limit and found[-1].score > _fence(records, limit)):
            break
        wanted += max(limit, RECORDS_PER_CALL)
    last = _fence(records, limit)
    return Unfinished(tuple(record for record in records if record.fence <= last), now)


def _fence(records: list[Record], limit: int) -> int:
    """The fence of the last record of the page; -1 if there is none."""
    return records[min(limit, len(records)) - 1].fence if records and limit > 0 else -1


def _read(calls: RecordCalls, entries: list[Entry]) -> Calls[list[Record]]:
    """The records of these entries, whole and in their order. Those that are gone are left out."""
    records = []
    for at in range(0, len(entries), RECORDS_PER_CALL):
        ids = [entry.member for entry in entries[at : at + RECORDS_PER_CALL]]
        parts = calls.for_records("look", ids, [()] * len(ids))
        answers = yield [part.call for part in parts]
        _, values = collected(parts, answers, len(ids))
        records += readable(ids, values)
    return records
