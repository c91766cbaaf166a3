"""Searches and measures a Redis store, in short calls, as programs.

A search reads the newest entries of the buckets' indexes of claims, then the records without their
outcomes, and last the beginnings of the outcomes that its page shows. A tag is a beginning of ids,
for which there is no index: the ids of the buckets that it may be in are gone through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oncekey.core.record import Record
from oncekey.core.search import (
    BODY_HEAD_BYTES,
    LOOKED_AT_MAX,
    MEASURE_MAX,
    RATE_WINDOW_US,
    Cursor,
    Measures,
    Page,
    Query,
    Walk,
)
from oncekey.stores.redis.bucket_ranges import BucketRange, Entry
from oncekey.stores.redis.calls import Calls
from oncekey.stores.redis.keyspace import BUCKETS
from oncekey.stores.redis.record_calls import RecordCalls, collected, given, readable

# How many records and ids a call looks at, so that no claim waits long for one.
HEADS_PER_CALL: Final = 500
TAGS_PER_CALL: Final = 4_000
MEASURED_PER_CALL: Final = 64
# What a record takes beside its value: its key, its index entries and the server's own structures.
OVERHEAD_BYTES: Final = 420

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
        records = yield from _heads(calls, ids, 0)
        found = [record for record in records if query.matches(record, now)]
        last = Cursor(read[-1].score, read[-1].member) if read else after
        places = {id: place for place, id in enumerate(ids, 1)}
        walk.add(found, [places[record.id] for record in found], len(ids), last)
    page = walk.page(now)
    return page._replace(records=(yield from _with_bodies(calls, page.records)))


def _heads(calls: RecordCalls, ids: Sequence[bytes], body_bytes: int) -> Calls[list[Record]]:
    """The records without their steps and with so much of their outcomes, in the order of the ids.
    Those that are gone are left out."""
    records = []
    for at in range(0, len(ids), HEADS_PER_CALL):
        some = ids[at : at + HEADS_PER_CALL]
        parts = calls.for_records("heads", some, [()] * len(some), body_bytes)
        answers = yield [part.call for part in parts]
        _, values = collected(parts, answers, len(some))
        records += readable(some, values)
    return records


def _with_bodies(calls: RecordCalls, records: Sequence[Record]) -> Calls[tuple[Record, ...]]:
    """The records of a page with the beginnings of their outcomes. A record that has changed since
    is shown as it matched."""
    ids = [record.id for record in records]
    heads = yield from _heads(calls, ids, BODY_HEAD_BYTES)
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
        answers = yield [part.call for part in parts]
        at, steps = collected(parts, answers, len(places))
        now = now or at
        for bucket, step in zip(list(places), steps, strict=True):
            ids.update(step[1:])
            places[bucket] = step[0]
            if step[0] == b"0":
                del places[bucket]
    chosen = sorted(ids)[:LOOKED_AT_MAX]
    records = yield from _heads(calls, chosen, BODY_HEAD_BYTES)
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
