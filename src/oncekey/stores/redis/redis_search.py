"""Reads records of all buckets: searches, and those that have not ended, in short calls.

Each bucket has its own sorted sets of ids. `BucketRange` reads one order out of all of them: it
asks every bucket for its first entries, and those that may hide some of the wanted ones for more,
twice as many each time. A search then reads the records without their outcomes, and last the
beginnings of the outcomes that its page shows. A tag is a beginning of ids, for which there is no
index: the ids of the buckets that it may be in are gone through.

This module decides when enough was read. It must not know connections.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

from oncekey.core.record import Record
from oncekey.core.search import BODY_HEAD_BYTES, LOOKED_AT_MAX, Cursor, Page, Query, Walk
from oncekey.core.state_machine import has_ended, is_expired
from oncekey.core.store import Unfinished
from oncekey.stores.redis.keyspace import BUCKETS
from oncekey.stores.redis.scripts import Calls, RecordCalls, collected, readable

# How many records, ids and index entries a call reads, so that no claim waits long for one.
RECORDS_PER_CALL: Final = 500
TAGS_PER_CALL: Final = 4_000
ENTRIES_PER_CALL: Final = 4_000
_FIRST_PER_BUCKET: Final = 4

_AFTER_EVERY_ID: Final = b"\xff" * 17
_WILDCARDS: Final = b"*?[]\\^-"


def search(calls: RecordCalls, query: Query, limit: int, after: Cursor) -> Calls[Page]:
    """At most `limit` of the records that match and are older than `after` (S11)."""
    if query.tag:
        return (yield from _search_tag(calls, query, limit))
    walk = Walk(limit, after)
    entries = BucketRange(calls, "claims", Entry(*after), newest_first=True)
    now = 0
    while walk.most and walk.last is not None:
        read = yield from entries.take(walk.looked_at + walk.most)
        now = entries.now
        ids = [entry.member for entry in read[walk.looked_at :]]
        records = yield from _read(calls, "heads", ids, 0)
        found = [record for record in records if query.matches(record, now)]
        last = Cursor(read[-1].score, read[-1].member) if read else after
        places = {id: place for place, id in enumerate(ids, 1)}
        walk.add(found, [places[record.id] for record in found], len(ids), last)
    page = walk.page(now)
    return page._replace(records=(yield from _with_bodies(calls, page.records)))


def _read(
    calls: RecordCalls, script: str, ids: Sequence[bytes], *shared: int
) -> Calls[list[Record]]:
    """Records in the order of the ids, without those that are gone: whole by the script look, by
    heads without their steps and with so many bytes of their outcomes."""
    records = []
    for at in range(0, len(ids), RECORDS_PER_CALL):
        some = ids[at : at + RECORDS_PER_CALL]
        parts = calls.for_records(script, some, [()] * len(some), *shared)
        _, values = yield from collected(parts, len(some))
        records += readable(some, values)
    return records


def _with_bodies(calls: RecordCalls, records: Sequence[Record]) -> Calls[tuple[Record, ...]]:
    """The records of a page with the beginnings of their outcomes. A record that has changed since
    is shown as it matched."""
    ids = [record.id for record in records]
    heads = yield from _read(calls, "heads", ids, BODY_HEAD_BYTES)
    bodies = {(head.id, head.fence, head.state): head.body for head in heads}
    return tuple(
        record._replace(steps=(), body=bodies.get((record.id, record.fence, record.state), b""))
        for record in records
    )


def _search_tag(calls: RecordCalls, query: Query, limit: int) -> Calls[Page]:
    first, last = query.ids
    buckets = range(first[0], last[0] + 1)
    places: dict[int, bytes] = dict.fromkeys(buckets, b"0")
    ids: set[bytes] = set()
    now = 0
    while places and len(ids) < LOOKED_AT_MAX:
        each = max(1, TAGS_PER_CALL // len(places))
        args = [(place,) for place in places.values()]
        parts = calls.for_buckets(
            "tags", ("claims",), [*places], args, tag_pattern(query.tag), each
        )
        at, steps = yield from collected(parts, len(places))
        now = now or at
        for bucket, step in zip(list(places), steps, strict=True):
            ids.update(step[1:])
            places[bucket] = step[0]
            if step[0] == b"0":
                del places[bucket]
    chosen = sorted(ids)[:LOOKED_AT_MAX]
    records = yield from _read(calls, "heads", chosen, BODY_HEAD_BYTES)
    found = [record._replace(steps=()) for record in records if query.matches(record, now)]
    found.sort(key=lambda record: (record.fence, record.id), reverse=True)
    return Page(tuple(found[:limit]), now, len(records), None)


def tag_pattern(tag: str) -> bytes:
    """A pattern of the server's that matches the ids whose hex digits begin with this tag."""
    whole = b"".join(_literal(byte) for byte in bytes.fromhex(tag[: len(tag) // 2 * 2]))
    if len(tag) % 2:
        high = int(tag[-1], 16) << 4
        whole += b"[" + b"".join(_literal(high + low) for low in range(16)) + b"]"
    return whole + b"*"


def _literal(byte: int) -> bytes:
    return b"\\" + bytes([byte]) if byte in _WILDCARDS else bytes([byte])


# --- records that have not ended ------------------------------------------------------------------


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
        fresh = yield from _read(calls, "look", [entry.member for entry in found[looked_at:]])
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


# --- one order of all buckets ---------------------------------------------------------------------


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
            now, found = yield from collected(parts, len(some))
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
