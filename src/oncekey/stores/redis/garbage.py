"""Measures what is stored, and removes what nothing needs any more: records and past generations
whose audit has ended.

The server itself removes finished records at the end of their audit; what is left of them then are
index entries. Claims remove some of those (lua/claim.lua), a sweep all of them. A sweep reads which
entries are due, in all buckets, and then removes those that are garbage. It begins with another
bucket each time, so that none has to wait for the others.

This module must not know connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oncekey.core.search import MEASURE_MAX, RATE_WINDOW_US, Measures
from oncekey.stores.redis.keyspace import BUCKETS
from oncekey.stores.redis.scripts import FENCE_BYTES, Calls, RecordCalls, collected, given

# How many records a call removes, so that no claim waits long for one.
REMOVED_PER_CALL: Final = 500
# How many buckets a call measures.
MEASURED_PER_CALL: Final = 64
# What a record takes beside its value: its key, its index entries and the server's own structures.
OVERHEAD_BYTES: Final = 420
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
        _, found = yield from collected(parts, count)
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

    def elect(self, token: bytes, lease: int) -> Calls[bool]:
        """True if this token is elected to do the background work for `lease` more microseconds."""
        call = self._calls.one("elect", 0, self._calls.keys.elected, token, lease)
        (answer,) = given((yield [call]))
        return bool(answer[1])


def measure(calls: RecordCalls) -> Calls[Measures]:
    """How much is stored, how much of it is garbage, and how fast it grows (S12)."""
    now = rows = due = oldest = claims = sampled = size = 0
    for at in range(0, BUCKETS, MEASURED_PER_CALL):
        buckets = range(at, at + MEASURED_PER_CALL)
        parts = calls.for_buckets(
            "measure", ("claims",), buckets, [()] * len(buckets), RATE_WINDOW_US
        )
        answers = yield [part.call for part in parts]
        for answer in given(answers):
            now = now or int(answer[0])
            rows += answer[1]
            due += answer[2]
            oldest = min(filter(None, (oldest, answer[3])), default=0)
            claims += answer[4]
            sampled += answer[5]
            size += answer[6]
    # The newest record of each bucket stands for the others.
    bytes_ = rows * (OVERHEAD_BYTES + size // sampled) if sampled else 0
    return Measures(now, rows, bytes_, min(due, MEASURE_MAX), oldest, min(claims, MEASURE_MAX))
