"""Removes what nothing needs any more: records and past generations whose audit has ended.

The server itself removes finished records at the end of their audit; what is left of them then are
index entries. Claims remove some of those (lua/claim.lua), a sweep all of them. A sweep reads which
entries are due, in all buckets, and then removes those that are garbage. It begins with another
bucket each time, so that none has to wait for the others.

This module must not know connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oncekey.stores.redis.calls import Calls
from oncekey.stores.redis.keyspace import BUCKETS
from oncekey.stores.redis.packed_commands import FENCE_BYTES
from oncekey.stores.redis.record_calls import RecordCalls, collected, given

# How many records a call removes, so that no claim waits long for one.
REMOVED_PER_CALL: Final = 500
_FIRST_PER_BUCKET: Final = 16
# What a tier of retention has entries in: past generations, and records.
_INDEXES: Final = {"all": ("past", "due"), "audit": ("past",), "keys": ("due",)}


class GarbageProgram:
    """The sweeps of one store. It remembers with which bucket the next one begins."""

    def __init__(self, calls: RecordCalls) -> None:
        self._calls = calls
        self._begin = 0

    def sweep(self, limit: int, tier: str = "all") -> Calls[int]:
        """Remove at most `limit` records that are garbage (S7); 0 means that there are none.
        Entries that are not garbage after all are postponed, so they hide nothing."""
        removed = 0
        while limit > 0 and removed == 0:
            due = yield from self._due(_INDEXES[tier], limit)
            if not any(due.values()):
                break
            for index, members in due.items():
                chosen = members[: limit - removed]
                for at in range(0, len(chosen), REMOVED_PER_CALL):
                    removed += yield from self._remove(index, chosen[at : at + REMOVED_PER_CALL])
        return removed

    def _due(self, indexes: Sequence[str], limit: int) -> Calls[dict[str, list[bytes]]]:
        """The members that are due, by index: at least one of each bucket that has some."""
        buckets = [(self._begin + at) % BUCKETS for at in range(BUCKETS)]
        self._begin = (self._begin + 1) % BUCKETS
        count = len(indexes) * BUCKETS
        each = min(limit, _FIRST_PER_BUCKET + 2 * limit // BUCKETS)
        args = [("-inf", "now", each)] * count
        parts = self._calls.for_buckets("range", indexes, buckets, args, "asc")
        answers = yield [part.call for part in parts]
        _, found = collected(parts, answers, count)
        return {
            index: [member for flat in found[number :: len(indexes)] for member in flat[::2]]
            for number, index in enumerate(indexes)
        }

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
