"""The sweeper: removes what nothing needs any more (S7).

1. Past generations, one by one, when their audit is over.
2. Buckets of ended records. A bucket is closed, so that nothing is added to it, the floor is
   raised to the highest fence in it, its records are deleted some at a time, and then its etcd
   lease is revoked. Revoking the lease first would delete all of them in one step, for which every
   caller of the cluster would wait.
3. Open records that nobody came back for, one by one. The sweeper goes on where it stopped last
   time, since records that wait for a decision may be many and stay for long.

Nothing is removed before the floor covers its fence (I6).
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

from aetcd import rpc

from oncekey.core.state_machine import is_garbage
from oncekey.stores.etcd import errors
from oncekey.stores.etcd.fence_floor import FenceFloor
from oncekey.stores.etcd.members import Members
from oncekey.stores.etcd.record_reader import ReadRecord, RecordReader
from oncekey.stores.etcd.store_clock import Reading, StoreClock
from oncekey.stores.etcd.stored_value import Keys, pack_bucket, unpack_bucket
from oncekey.stores.etcd.transactions import (
    delete,
    delete_operation,
    exists,
    has_lease,
    is_at,
    nested,
    put,
    range_of,
    transaction,
)

LISTED_MAX: Final = 50_000  # records of a bucket that are remembered; then it is read again


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
