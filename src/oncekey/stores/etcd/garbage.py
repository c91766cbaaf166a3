"""How records leave the store: in buckets that are removed together, below a floor of fences.

A record goes into the bucket in which its audit ends; the records of a bucket share one etcd lease.
A bucket's key has that lease, and lives as long as it does: whoever writes a record into a bucket
compares the key, so no record is attached to a lease that is gone, nor to a bucket that a sweeper
has begun to remove. If nobody sweeps, the lease ends by itself, NET_SECONDS after the bucket's time
has come.

The floor is the highest fence of all records that were removed. A fresh claim takes a fence above
it, and compares that it is still the floor that we know of. Nothing is removed before the floor
covers its fence (I6).

The sweeper removes what nothing needs any more (S7):

1. Past generations, one by one, when their audit is over.
2. Buckets of ended records. A bucket is closed, so that nothing is added to it, the floor is
   raised to the highest fence in it, its records are deleted some at a time, and then its etcd
   lease is revoked. Revoking the lease first would delete all of them in one step, for which every
   caller of the cluster would wait.
3. Open records that nobody came back for, one by one. The sweeper goes on where it stopped last
   time, since records that wait for a decision may be many and stay for long.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, NamedTuple

from aetcd import rpc

from oncekey.core.errors import StoreUnavailable
from oncekey.core.state_machine import is_garbage
from oncekey.stores.etcd import errors
from oncekey.stores.etcd.etcd_search import ReadRecord, RecordReader
from oncekey.stores.etcd.held_claims import Reading, StoreClock
from oncekey.stores.etcd.keyspace import (
    Keys,
    pack_bucket,
    pack_number,
    unpack_bucket,
    unpack_number,
)
from oncekey.stores.etcd.members import Members
from oncekey.stores.etcd.transactions import (
    delete,
    delete_operation,
    exists,
    get,
    has_lease,
    is_at,
    nested,
    put,
    range_of,
    transaction,
)

NET_SECONDS: Final = 7 * 86_400
# A bucket is at least this part of the time for which its records are kept, so that a long `keep`
# makes no more leases than a short one.
SPAN_DIVISOR: Final = 512
CLOSED_MAX: Final = 16
# The longest TTL that etcd grants.
TTL_MAX_SECONDS: Final = 9_000_000_000
FLOOR_TRIES_MAX: Final = 20
LISTED_MAX: Final = 50_000  # records of a bucket that are remembered; then it is read again


class Bucket(NamedTuple):
    """An open bucket: from when on its records may be removed, its etcd lease, and the revision of
    its key."""

    end: int
    lease: int
    mod_revision: int


class Buckets:
    """The buckets that this store object has used."""

    def __init__(self, members: Members, keys: Keys, width: int) -> None:
        self._members = members
        self._keys = keys
        self._width = width
        self._open: dict[int, Bucket] = {}
        self._lock = asyncio.Lock()

    def _end(self, audit_until: int, now: int) -> int:
        width = self._width
        while audit_until - now > SPAN_DIVISOR * width:
            width *= 2
        return -(-audit_until // width) * width

    def find(self, audit_until: int, now: int) -> Bucket | None:
        """The bucket for a record, if it was used before."""
        return self._open.get(self._end(audit_until, now))

    async def open(self, audit_until: int, now: int, deadline: float) -> None:
        """Make sure that there is a bucket for records whose audit ends then."""
        wanted = self._end(audit_until, now)
        async with self._lock:
            if wanted in self._open:
                return
            for end in [end for end in self._open if end < now]:
                del self._open[end]
            end = wanted
            for _ in range(CLOSED_MAX):
                bucket = await self._join(end, now, deadline)
                if bucket is not None:
                    self._open[wanted] = bucket
                    return
                end += self._width  # this one is being removed: the clocks of hosts differ
        raise StoreUnavailable("every bucket is being removed", ambiguous=False)

    async def _join(self, end: int, now: int, deadline: float) -> Bucket | None:
        """The bucket of this time, made if there is none; None if it is being removed."""
        key = self._keys.bucket(end)
        found = (await self._members.read(key, deadline)).kvs
        if not found:
            ttl = min(max(end - now, 0) // 1_000_000 + NET_SECONDS, TTL_MAX_SECONDS)
            grant = rpc.LeaseGrantRequest(TTL=ttl)
            lease = (await self._members.call("LeaseGrant", grant, deadline)).ID
            make = put(key, pack_bucket(lease, False), lease)
            request = transaction([is_at(key, 0)], [make], [get(key)])
            reply = await self._members.call("Txn", request, deadline)
            if reply.succeeded:
                return Bucket(end, lease, reply.header.revision)
            with contextlib.suppress(errors.LeaseGone):  # the reply to the first try was lost
                await self._members.call("LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease), deadline)
            found = reply.responses[0].response_range.kvs
            if not found:
                return None
        lease, closed = unpack_bucket(found[0].value)
        return None if closed else Bucket(end, lease, found[0].mod_revision)

    def forget(self, bucket: Bucket) -> None:
        """The bucket is being removed, or gone."""
        for end in [end for end, one in self._open.items() if one is bucket]:
            del self._open[end]

    def clear(self) -> None:
        self._open.clear()


class FenceFloor:
    """The floor as it was last read, by this store object."""

    def __init__(self, members: Members, keys: Keys) -> None:
        self._members = members
        self._key = keys.floor
        self.value = 0
        self.mod_revision = 0  # 0: there is none yet

    def comparison(self) -> Any:
        """The comparison that the floor is still the one that we know of."""
        return is_at(self._key, self.mod_revision)

    def reading(self) -> Any:
        return get(self._key)

    def read(self, response: Any) -> None:
        """The reply to `reading` came."""
        found = response.kvs
        self.value = unpack_number(found[0].value) if found else 0
        self.mod_revision = found[0].mod_revision if found else 0

    async def raise_to(self, fence: int, end: float) -> None:
        """Make sure that the floor is at least this fence."""
        for _ in range(FLOOR_TRIES_MAX):
            change = [] if fence <= self.value else [put(self._key, pack_number(fence))]
            request = transaction([self.comparison()], change, [self.reading()])
            reply = await self._members.call("Txn", request, end)
            if not reply.succeeded:
                self.read(reply.responses[0].response_range)
                continue
            if change:
                self.value, self.mod_revision = fence, reply.header.revision
            return
        raise StoreUnavailable("the floor changes too fast", ambiguous=True)


class _ClosedBucket:
    """A bucket that is being removed: its records that are left, as they were listed."""

    def __init__(self, lease: int, left: list[tuple[int, bytes]], is_all: bool) -> None:
        self.lease = lease
        self.left = left
        self.is_all = is_all


class Garbage:
    """Removes garbage."""

    def __init__(
        self,
        members: Members,
        keys: Keys,
        reader: RecordReader,
        floor: FenceFloor,
        clock: StoreClock,
        operations_max: int,
    ) -> None:
        self._members = members
        self._keys = keys
        self._reader = reader
        self._floor = floor
        self._clock = clock
        self._page = operations_max
        self._stopped_at = b""  # the last open entry that was looked at
        self._closed: _ClosedBucket | None = None

    def begin_again(self) -> None:
        """Look at the oldest open record next."""
        self._stopped_at = b""
        self._closed = None

    async def sweep(self, limit: int) -> int:
        """Remove at most `limit` records; returns how many went."""
        reading, removed = self._clock.read(), 0
        if limit > 0:
            removed += await self._sweep_history(limit, reading.now)
        if removed < limit:
            removed += await self._sweep_buckets(limit - removed, reading.now)
        if removed < limit:
            removed += await self._sweep_open(limit - removed, reading)
        return removed

    async def _call(self, name: str, request: Any) -> Any:
        return await self._members.call(name, request, self._members.deadline())

    async def _sweep_history(self, limit: int, now: int) -> int:
        keys, removed = self._keys, 0
        while removed < limit:
            most = min(self._page, limit - removed)
            request = range_of(keys.due, end=keys.due_until(now), limit=most, keys_only=True)
            found = [one.key for one in (await self._call("Range", request)).kvs]
            operations = [
                nested([exists(key)], [delete(key), delete(keys.parse_due(key)[1])])
                for key in found
            ]
            if not operations:
                break
            reply = await self._call("Txn", transaction((), operations))
            removed += sum(one.response_txn.succeeded for one in reply.responses)
        return removed

    async def _sweep_buckets(self, limit: int, now: int) -> int:
        removed = 0
        while removed < limit:
            bucket = self._closed or await self._close_next(now)
            if bucket is None:
                break
            self._closed = bucket
            while bucket.left and removed < limit:
                most = min(self._page // 2, limit - removed)
                removed += await self._delete(bucket.lease, bucket.left[-most:])
                del bucket.left[-most:]
            if not bucket.left:
                self._closed = None
                if bucket.is_all:
                    await self._revoke(bucket.lease)
        return removed

    async def _close_next(self, now: int) -> _ClosedBucket | None:
        """Close the oldest bucket whose time has come, and raise the floor to its records; None if
        there is none."""
        keys = self._keys
        request = range_of(keys.buckets, end=keys.bucket(now + 1), limit=1)
        found = (await self._call("Range", request)).kvs
        if not found:
            return None
        key, revision = found[0].key, found[0].mod_revision
        lease, closed = unpack_bucket(found[0].value)
        if not closed:
            close = put(key, pack_bucket(lease, True), lease)
            # If it fails, another sweeper was faster, and has closed it.
            await self._call("Txn", transaction([is_at(key, revision)], [close]))
        request = rpc.LeaseTimeToLiveRequest(ID=lease, keys=True)
        attached = (await self._call("LeaseTimeToLive", request)).keys
        prefixes = (keys.open, keys.ended)
        left = [keys.parse_entry(key) for key in attached if key.startswith(prefixes)]
        fence = max((fence for fence, _ in left), default=0)
        await self._floor.raise_to(fence, self._members.deadline())
        return _ClosedBucket(lease, left[:LISTED_MAX], len(left) <= LISTED_MAX)

    async def _delete(self, lease: int, entries: list[tuple[int, bytes]]) -> int:
        """Delete records of a bucket, but for those that were claimed afresh meanwhile: these are
        not in it any more."""
        keys, operations = self._keys, list[Any]()
        for fence, id in entries:
            record = keys.record(id)
            places = (keys.open_entry(fence, id), keys.ended_entry(fence, id))
            deletes = [nested([has_lease(key, lease)], [delete(key)]) for key in places]
            operations.append(nested([has_lease(record, lease)], [delete(record)]))
            operations.append(nested((), deletes))
        reply = await self._call("Txn", transaction((), operations))
        return sum(one.response_txn.succeeded for one in reply.responses[::2])

    async def _revoke(self, lease: int) -> None:
        with contextlib.suppress(errors.LeaseGone):  # another sweeper was faster
            await self._call("LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease))

    async def _sweep_open(self, limit: int, reading: Reading) -> int:
        """Look at all open records, from where the last sweep stopped, until `limit` are gone."""
        keys, removed = self._keys, 0
        began, wrapped = self._stopped_at, not self._stopped_at
        while removed < limit:
            start = self._stopped_at + b"\0" if self._stopped_at else b""
            stop = began + b"\0" if wrapped and began else b""
            request = range_of(keys.open, start=start, end=stop, limit=self._page, keys_only=True)
            entries = [one.key for one in (await self._call("Range", request)).kvs]
            removed += await self._remove_open(entries, limit - removed, reading)
            if len(entries) == self._page:
                continue
            self._stopped_at = b""
            if wrapped:
                break
            wrapped = True
        return removed

    async def _remove_open(self, entries: list[bytes], limit: int, reading: Reading) -> int:
        ids = [self._keys.parse_entry(entry)[1] for entry in entries]
        read = await self._reader.read(ids, reading, self._members.deadline())
        due: list[ReadRecord] = []
        for entry, id in zip(entries, ids, strict=True):
            if len(due) == limit:
                break
            self._stopped_at = entry
            one = read.get(id)
            if one is not None and is_garbage(one.record, reading.now):
                due.append(one)
        if not due:
            return 0
        fence = max(one.record.fence for one in due)
        await self._floor.raise_to(fence, self._members.deadline())
        operations = [delete_operation(self._keys, one.value) for one in due]
        reply = await self._call("Txn", transaction((), operations))
        return sum(one.response_txn.succeeded for one in reply.responses)
