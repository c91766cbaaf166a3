"""Reads many records: for lists, searches and measures, and for the sweeper.

Records are read with the leases that they really have. Sessions are read after the records, so a
record that ended between the two reads may seem to be abandoned: whoever acts upon that claims it,
and learns it then.

Lists have the newest claims first: entries of open and of ended records are merged. etcd walks the
whole range that it is asked for, whatever the limit; so ended records are read by spans of time
that grow until enough was found. This module changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aetcd import rpc

from oncekey.core.errors import ConfigurationError
from oncekey.core.record import Record, State
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
    page_of,
)
from oncekey.core.state_machine import has_ended, is_expired
from oncekey.core.store import Unfinished
from oncekey.stores.etcd.held_claims import HeldClaims, Known, Reading, StoreClock, effective
from oncekey.stores.etcd.keyspace import Keys, StoredValue, end_of, unpack_value
from oncekey.stores.etcd.members import Members
from oncekey.stores.etcd.transactions import found_value, get, range_of, transaction

SPAN_FIRST_US: Final = 60_000_000
SPAN_FACTOR: Final = 16
UNFINISHED_PAGE: Final = 500
# A tag of so many digits is looked up by id; a shorter one would read a large part of all records.
TAG_DIGITS_MIN: Final = 4
# How many records are counted at least before the number of all is estimated from them.
SAMPLE_MIN: Final = 100
_SAMPLE_SHIFTS: Final = (12, 8, 4, 0)  # 1/4096 of all ids, then 1/256, 1/16, all

_KEY_ORDER: Final = {"sort_order": rpc.RangeRequest.ASCEND, "sort_target": rpc.RangeRequest.KEY}
_BACKWARDS: Final = {"sort_order": rpc.RangeRequest.DESCEND, "sort_target": rpc.RangeRequest.KEY}


class ReadRecord(NamedTuple):
    """A record that was read: as it is stored, and with the lease that it really has."""

    value: StoredValue
    record: Record


class RecordReader:
    """Reads records by their ids."""

    def __init__(self, members: Members, keys: Keys, held: HeldClaims, operations_max: int) -> None:
        self._members = members
        self._operations_max = operations_max
        self._keys = keys
        self._held = held

    async def read(
        self, ids: Sequence[bytes], reading: Reading, end: float
    ) -> dict[bytes, ReadRecord]:
        """The records that there are, by id."""
        responses = await self._get([self._keys.record(id) for id in ids], end)
        found = [
            value
            for id, response in zip(ids, responses, strict=True)
            if (value := found_value(id, response)) is not None
        ]
        sessions = sorted({one.session for one in found if self._is_foreign(one)})
        responses = await self._get([self._keys.session(one) for one in sessions], end)
        alive = {one for one, reply in zip(sessions, responses, strict=True) if reply.kvs}
        return {
            value.record.id: ReadRecord(value, self._record(value, value.session in alive, reading))
            for value in found
        }

    def _is_foreign(self, value: StoredValue) -> bool:
        is_claim = value.record.state is State.PENDING and value.session != 0
        return is_claim and self._held.ends(value.record) is None

    def _record(self, value: StoredValue, is_alive: bool, reading: Reading) -> Record:
        judged = effective(Known(value, is_alive), self._held, reading)
        assert judged is not None
        assert judged.record is not None
        # A list has one time for all its records.
        if judged.now > reading.now:
            return judged.record._replace(lease_until=reading.now)
        return judged.record

    async def _get(self, keys: Sequence[bytes], end: float) -> list[Any]:
        replies: list[Any] = []
        for start in range(0, len(keys), self._operations_max):
            part = keys[start : start + self._operations_max]
            request = transaction((), [get(key) for key in part])
            reply = await self._members.call("Txn", request, end)
            replies += [response.response_range for response in reply.responses]
        return replies


class RecordLists:
    """Reads lists of records."""

    def __init__(
        self, members: Members, keys: Keys, reader: RecordReader, clock: StoreClock
    ) -> None:
        self._members = members
        self._keys = keys
        self._reader = reader
        self._clock = clock

    async def unfinished(self, after: int, limit: int) -> Unfinished:
        """The records that have not ended, oldest claim first (S10)."""
        reading, found = self._clock.read(), list[Record]()
        end = self._members.deadline()
        last: int | None = None if limit > 0 else after
        while last is None or last > after:
            entries = await self._entries(
                self._keys.open, self._keys.open_after(after), UNFINISHED_PAGE, end
            )
            entries = await self._whole_fences(entries, end)
            if last is not None:
                entries = [entry for entry in entries if entry[0] <= last]
            if not entries:
                break
            records = await self._records([id for _, id in entries], reading, end)
            for fence, id in entries:
                record = records.get(id)
                if record is None or record.fence != fence or is_expired(record, reading.now):
                    continue
                if has_ended(record) or (last is not None and fence > last):
                    continue
                found.append(record)
                if last is None and len(found) >= limit:
                    last = fence
            after = entries[-1][0]
        return Unfinished(tuple(found), reading.now)

    async def _whole_fences(
        self, entries: list[tuple[int, bytes]], end: float
    ) -> list[tuple[int, bytes]]:
        """A full page, with all other entries of its last fence."""
        if len(entries) < UNFINISHED_PAGE:
            return entries
        last = entries[-1][0]
        rest = await self._entries(
            self._keys.open, self._keys.open_after(last - 1), 0, end, self._keys.open_after(last)
        )
        return [entry for entry in entries if entry[0] < last] + rest

    async def _entries(
        self, prefix: bytes, start: bytes, limit: int, end: float, stop: bytes = b""
    ) -> list[tuple[int, bytes]]:
        request = range_of(prefix, start=start, end=stop, limit=limit, keys_only=True, **_KEY_ORDER)
        reply = await self._members.call("Range", request, end)
        return [self._keys.parse_entry(one.key) for one in reply.kvs]

    async def _records(self, ids: list[bytes], reading: Reading, end: float) -> dict[bytes, Record]:
        read = await self._reader.read(ids, reading, end)
        return {id: one.record for id, one in read.items()}

    # --- search -------------------------------------------------------------------------------

    async def search(self, query: Query, limit: int, after: Cursor) -> Page:
        """A page of the records that match, newest claim first (S11)."""
        reading, end = self._clock.read(), self._members.deadline()
        if len(query.tag) >= TAG_DIGITS_MIN:
            return await self._search_ids(query, limit, after, reading, end)
        walk = Walk(limit, after)
        while walk.most:
            assert walk.last is not None
            entries = await self._newest(walk.last, walk.most, reading.now, end)
            if not entries:
                walk.last = None
                break
            records = await self._records([id for _, id in entries], reading, end)
            found = [
                (_shortened(record), place)
                for place, (fence, id) in enumerate(entries, 1)
                if (record := records.get(id)) is not None
                and record.fence == fence
                and query.matches(record, reading.now)
            ]
            places = [place for _, place in found]
            walk.add([one for one, _ in found], places, len(entries), Cursor(*entries[-1]))
        return walk.page(reading.now)

    async def _search_ids(
        self, query: Query, limit: int, after: Cursor, reading: Reading, end: float
    ) -> Page:
        first, last = query.ids
        keys = self._keys
        request = range_of(
            keys.records,
            start=keys.record(first),
            end=keys.record(last) + b"\0",
            limit=LOOKED_AT_MAX,
            keys_only=True,
        )
        reply = await self._members.call("Range", request, end)
        ids = [one.key[len(keys.records) :] for one in reply.kvs]
        records = (await self._records(ids, reading, end)).values()
        older = sorted(
            (record for record in records if (record.fence, record.id) < after),
            key=lambda record: (record.fence, record.id),
            reverse=True,
        )
        places = [n for n, one in enumerate(older, 1) if query.matches(one, reading.now)]
        found = [_shortened(older[place - 1]) for place in places]
        return page_of(found, places, None, reading.now, len(older), limit)

    async def _newest(
        self, after: Cursor, most: int, now: int, end: float
    ) -> list[tuple[int, bytes]]:
        """The first entries that are older than a cursor, of open and of ended records."""
        keys = self._keys
        stop = keys.open_after(after.fence - 1) + after.id
        request = range_of(
            keys.open, end=min(stop, end_of(keys.open)), limit=most, keys_only=True, **_BACKWARDS
        )
        reply = await self._members.call("Range", request, end)
        entries = [keys.parse_entry(one.key) for one in reply.kvs]
        span, start, ended = SPAN_FIRST_US, keys.ended_entry(after.fence, after.id) + b"\0", 0
        while ended < most:
            oldest = max(min(after.fence, now) - span, 0)
            until = keys.ended_entry(oldest, b"") if oldest else end_of(keys.ended)
            some = await self._entries(keys.ended, start, most - ended, end, until)
            entries += some
            ended += len(some)
            if not oldest:
                break
            if some and ended < most:
                start = keys.ended_entry(*some[-1]) + b"\0"
            start, span = max(start, until), span * SPAN_FACTOR
        return sorted(entries, reverse=True)[:most]

    async def history(self, id: bytes) -> list[Record]:
        """Past generations of a key that were not swept yet, oldest first."""
        prefix = self._keys.history + id
        request = range_of(prefix, end=prefix + b"\xff" * 9, **_KEY_ORDER)
        reply = await self._members.call("Range", request, self._members.deadline())
        return [unpack_value(id, one.value, 0).record for one in reply.kvs]

    # --- measures -----------------------------------------------------------------------------

    async def measure(self) -> Measures:
        """How much is stored (S12). The number of records is estimated from a part of the ids,
        which are spread evenly; the bytes are those of the whole etcd."""
        reading, end = self._clock.read(), self._members.deadline()
        now, keys = reading.now, self._keys
        since = max(now - RATE_WINDOW_US, 0)
        claims = await self._count(keys.open, keys.open_after(since), b"", end)
        claims += await self._count(keys.ended, b"", keys.ended_entry(since, b""), end)
        due, oldest = await self._due(now, end)
        return Measures(
            now,
            await self._estimate(end),
            await self._size(end),
            min(due, MEASURE_MAX),
            oldest,
            min(claims, MEASURE_MAX),
        )

    async def _size(self, end: float) -> int:
        try:
            status = await self._members.call("Status", rpc.StatusRequest(), end)
        except ConfigurationError:
            return 0  # etcd shows its size to its root user only
        return int(status.dbSizeInUse or status.dbSize)

    async def _count(self, prefix: bytes, start: bytes, stop: bytes, end: float) -> int:
        request = range_of(prefix, start=start, end=stop, count_only=True)
        return int((await self._members.call("Range", request, end)).count)

    async def _estimate(self, end: float) -> int:
        records, count = self._keys.records, 0
        for shift in _SAMPLE_SHIFTS:
            stop = records + (1 << (16 - shift)).to_bytes(3, "big")[1:] if shift else b""
            count = await self._count(records, b"", stop, end)
            if count >= SAMPLE_MIN:
                return count << shift
        return count

    async def _due(self, now: int, end: float) -> tuple[int, int]:
        """How much the sweeper could remove, and since when."""
        keys, count, oldest = self._keys, 0, 0
        request = range_of(keys.due, end=keys.due_until(now), limit=MEASURE_MAX, keys_only=True)
        found = (await self._members.call("Range", request, end)).kvs
        if found:
            count, oldest = len(found), keys.parse_due(found[0].key)[0]
        request = range_of(keys.buckets, end=keys.bucket(now + 1), limit=MEASURE_MAX)
        for bucket in (await self._members.call("Range", request, end)).kvs:
            if count >= MEASURE_MAX:
                break
            at = keys.parse_bucket(bucket.key)
            oldest = min(oldest, at) if oldest else at
            attached = await self._attached(bucket.lease, end)
            count += sum(key.startswith(keys.records) for key in attached)
        return count, oldest if count else 0

    async def _attached(self, lease: int, end: float) -> list[bytes]:
        request = rpc.LeaseTimeToLiveRequest(ID=lease, keys=True)
        reply: Any = await self._members.call("LeaseTimeToLive", request, end)
        return list(reply.keys)


def _shortened(record: Record) -> Record:
    return record._replace(steps=(), body=record.body[:BODY_HEAD_BYTES])
