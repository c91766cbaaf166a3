"""Reads one order out of the indexes of all buckets, a bounded number of entries at a time.

Each bucket has its own sorted set. A range asks all of them for their first entries, and those
that may hide some of the wanted ones for more, twice as many each time.

This module owns the merge. It must not know what the entries stand for.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

from oncekey.stores.redis.calls import Calls
from oncekey.stores.redis.keyspace import BUCKETS
from oncekey.stores.redis.record_calls import RecordCalls, collected

# How many entries a call reads at most, so that no claim waits long for one.
ENTRIES_PER_CALL: Final = 4_000
_FIRST_PER_BUCKET: Final = 4


class Entry(NamedTuple):
    """An entry of an index: its score, then its member, so that entries sort as the server does."""

    score: int
    member: bytes


class BucketRange:
    """The entries of an index of all buckets, from a score on, in one order.

    newest_first   from the highest score down, else up from the lowest
    first          where to begin: only entries behind it are found
    highest        the highest score to read, as the server understands it
    """

    def __init__(
        self,
        calls: RecordCalls,
        index: str,
        first: Entry,
        *,
        newest_first: bool = False,
        highest: str = "+inf",
    ) -> None:
        self._calls = calls
        self._index = index
        self._first = first
        self._newest_first = newest_first
        self._highest = highest
        self._found: list[list[Entry]] = [[] for _ in range(BUCKETS)]
        # Where each bucket goes on, and whether it may have more entries.
        self._bounds = [first.score] * BUCKETS
        self._has_more = [True] * BUCKETS
        self.now = 0

    def take(self, count: int) -> Calls[list[Entry]]:
        """The first `count` entries, or fewer if there are no more. Called again with a larger
        count, it reads on."""
        each = _FIRST_PER_BUCKET + 2 * count // BUCKETS
        while True:
            entries = sorted(itertools.chain(*self._found), reverse=self._newest_first)[:count]
            last = entries[-1] if len(entries) == count else None
            wanted = [bucket for bucket in range(BUCKETS) if self._may_hide(bucket, last)]
            if not wanted or count <= 0:
                return entries
            yield from self._read(wanted, each)
            each *= 2

    def _may_hide(self, bucket: int, last: Entry | None) -> bool:
        """True if the bucket may have further entries before `last`; None stands for the end."""
        if not self._has_more[bucket]:
            return False
        own = self._found[bucket]
        if not own or last is None:
            return True
        return own[-1] > last if self._newest_first else own[-1] < last

    def _read(self, buckets: Sequence[int], count: int) -> Calls[None]:
        for at in range(0, len(buckets), max(1, ENTRIES_PER_CALL // count)):
            some = buckets[at : at + max(1, ENTRIES_PER_CALL // count)]
            # Entries of the last score may have been seen already: they are read again.
            counts = [count + self._ties(bucket) for bucket in some]
            args = [(*self._scores(bucket), counts[number]) for number, bucket in enumerate(some)]
            order = "desc" if self._newest_first else "asc"
            parts = self._calls.for_buckets("range", (self._index,), some, args, order)
            answers = yield [part.call for part in parts]
            now, found = collected(parts, answers, len(some))
            self.now = self.now or now
            for bucket, wanted, flat in zip(some, counts, found, strict=True):
                self._add(bucket, wanted, flat)

    def _scores(self, bucket: int) -> tuple[str | int, str | int]:
        """The lowest and the highest score to read next."""
        if self._newest_first:
            return "-inf", self._bounds[bucket]
        return self._bounds[bucket], self._highest

    def _ties(self, bucket: int) -> int:
        bound = self._bounds[bucket]
        return sum(entry.score == bound for entry in self._found[bucket])

    def _add(self, bucket: int, wanted: int, flat: list[bytes]) -> None:
        read = [Entry(int(float(flat[at + 1])), flat[at]) for at in range(0, len(flat), 2)]
        known = set(self._found[bucket])
        own = self._found[bucket]
        own += [entry for entry in read if self._is_behind(entry) and entry not in known]
        self._has_more[bucket] = len(read) >= wanted
        if read:
            self._bounds[bucket] = read[-1].score

    def _is_behind(self, entry: Entry) -> bool:
        return entry < self._first if self._newest_first else entry > self._first
