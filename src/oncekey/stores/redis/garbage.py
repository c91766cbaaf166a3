"""Removes what nothing needs any more: records and past generations whose audit has ended.

The server itself removes finished records at the end of their audit; what is left of them then are
index entries. A sweep reads which entries are due, in all buckets, and then removes those that are
garbage. It begins with another bucket each time, so that none has to wait for the others.

This module must not know connections.
"""

from __future__ import annotations

from typing import Final

from oncekey.stores.redis.calls import Calls
from oncekey.stores.redis.keyspace import BUCKETS
from oncekey.stores.redis.packed_commands import FENCE_BYTES
from oncekey.stores.redis.record_calls import RecordCalls, collected, given

# How many records a call removes, so that no claim waits long for one.
REMOVED_PER_CALL: Final = 500
_FIRST_PER_BUCKET: Final = 16


class GarbageProgram:
    """The sweeps of one store. It remembers with which bucket the next one begins."""

    def __init__(self, calls: RecordCalls) -> None:
        self._calls = calls
        self._begin = 0

    def sweep(self, limit: int, tier: str = "all") -> Calls[int]:
        """Remove at most `limit` records that are garbage (S7); 0 means that there are none."""
        removed = 0
        if tier != "keys":
            removed += yield from self._sweep_index("past", limit)
        if tier != "audit":
            removed += yield from self._sweep_index("due", limit - removed)
        return removed

    def _sweep_index(self, index: str, limit: int) -> Calls[int]:
        """Remove what is due by an index. Entries that are not garbage after all are postponed, so
        they hide nothing."""
        removed = 0
        while limit > 0 and removed == 0:
            due = yield from self._due(index, limit)
            if not due:
                break
            for at in range(0, len(due), REMOVED_PER_CALL):
                removed += yield from self._remove(index, due[at : at + REMOVED_PER_CALL])
        return removed

    def _due(self, index: str, limit: int) -> Calls[list[bytes]]:
        """The members of at most `limit` entries that are due, of as many buckets as possible."""
        buckets = [(self._begin + at) % BUCKETS for at in range(BUCKETS)]
        self._begin = (self._begin + 1) % BUCKETS
        each = min(limit, _FIRST_PER_BUCKET + 2 * limit // BUCKETS)
        args = [("-inf", "now", each)] * BUCKETS
        parts = self._calls.for_buckets("range", index, buckets, args, "asc")
        answers = yield [part.call for part in parts]
        _, found = collected(parts, answers, BUCKETS)
        return [member for flat in found for member in flat[::2]][:limit]

    def _remove(self, index: str, members: list[bytes]) -> Calls[int]:
        calls = self._calls
        if index == "due":
            parts = calls.for_records("sweep", members, [()] * len(members))
        else:
            ids = [member[:-FENCE_BYTES] for member in members]
            archives = [calls.keys.archive(id) for id in ids]
            fences = [(member[-FENCE_BYTES:],) for member in members]
            parts = calls.for_keys("sweep_history", ids, archives, fences)
        answers = given((yield [part.call for part in parts]))
        removed: int = sum(answer[1] for answer in answers)
        return removed
