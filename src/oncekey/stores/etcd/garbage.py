"""The sweeper: removes what nothing needs any more (S7).

1. Past generations, one by one, when their audit is over.
2. Buckets of ended records, each as a whole: it is closed, so that nothing is added to it, the
   floor is raised to the highest fence in it, and its etcd lease is revoked.
3. Open records that nobody came back for, one by one. The sweeper goes on where it stopped last
   time, since records that wait for a decision may be many and stay for long.

Nothing is removed before the floor covers its fence (I6).
"""

from __future__ import annotations

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
    is_at,
    nested,
    put,
    range_of,
    transaction,
)

PAGE: Final = 100


class Garbage:
    """Removes garbage."""

    def __init__(
        self,
        members: Members,
        keys: Keys,
        reader: RecordReader,
        floor: FenceFloor,
        clock: StoreClock,
    ) -> None:
        self._members = members
        self._keys = keys
        self._reader = reader
        self._floor = floor
        self._clock = clock
        self._stopped_at = b""  # the last open entry that was looked at

    def begin_again(self) -> None:
        """Look at the oldest open record next."""
        self._stopped_at = b""

    async def sweep(self, limit: int) -> int:
        """Remove at most `limit` records, or whole buckets; returns how many records went."""
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
            most = min(PAGE, limit - removed)
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
        keys, removed = self._keys, 0
        request = range_of(keys.buckets, end=keys.bucket(now + 1), limit=PAGE)
        for found in (await self._call("Range", request)).kvs:
            if removed >= limit:
                break
            removed += await self._remove_bucket(found)
        return removed

    async def _remove_bucket(self, found: Any) -> int:
        """Remove a bucket whose time has come, and all that is in it."""
        lease, closed = unpack_bucket(found.value)
        if not closed:
            close = put(found.key, pack_bucket(lease, True), lease)
            request = transaction([is_at(found.key, found.mod_revision)], [close])
            if not (await self._call("Txn", request)).succeeded:
                return 0  # another sweeper was faster
        try:
            request = rpc.LeaseTimeToLiveRequest(ID=lease, keys=True)
            attached = list((await self._call("LeaseTimeToLive", request)).keys)
            fence = max((self._fence(key) for key in attached), default=0)
            await self._floor.raise_to(fence, self._members.deadline())
            await self._call("LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease))
        except errors.LeaseGone:
            return 0  # it has ended by itself, with all that was in it
        return sum(key.startswith(self._keys.records) for key in attached)

    def _fence(self, key: bytes) -> int:
        if key.startswith((self._keys.open, self._keys.ended)):
            return self._keys.parse_entry(key)[0]
        return 0

    async def _sweep_open(self, limit: int, reading: Reading) -> int:
        """Look at all open records, from where the last sweep stopped, until `limit` are gone."""
        keys, removed = self._keys, 0
        began, wrapped = self._stopped_at, not self._stopped_at
        while removed < limit:
            start = self._stopped_at + b"\0" if self._stopped_at else b""
            stop = began + b"\0" if wrapped and began else b""
            request = range_of(keys.open, start=start, end=stop, limit=PAGE, keys_only=True)
            entries = [one.key for one in (await self._call("Range", request)).kvs]
            removed += await self._remove_open(entries, limit - removed, reading)
            if len(entries) == PAGE:
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
