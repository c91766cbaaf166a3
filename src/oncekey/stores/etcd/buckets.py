"""Buckets: records that are removed together, because they share one etcd lease.

A record goes into the bucket in which its audit ends. A bucket's key tells its lease, and lives as
long as that: whoever writes a record into a bucket compares that key, so no record is attached to a
lease that is gone, nor to a bucket that a sweeper has begun to remove. If nobody sweeps, the lease
ends by itself, NET_SECONDS after the bucket's time. This module decides which bucket; it removes
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, NamedTuple

from aetcd import rpc

from oncekey.core.errors import StoreUnavailable
from oncekey.stores.etcd import errors
from oncekey.stores.etcd.members import Members
from oncekey.stores.etcd.stored_value import Keys, pack_bucket, unpack_bucket
from oncekey.stores.etcd.transactions import get, is_at, put, transaction

NET_SECONDS: Final = 7 * 86_400
# A bucket is at least this part of the time for which its records are kept, so that a long `keep`
# makes no more leases than a short one.
SPAN_DIVISOR: Final = 512
CLOSED_MAX: Final = 16
# The longest TTL that etcd grants.
TTL_MAX_SECONDS: Final = 9_000_000_000


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
        reply = await self._call(transaction((), [get(key)]), deadline)
        found = reply.responses[0].response_range.kvs
        if not found:
            ttl = min(max(end - now, 0) // 1_000_000 + NET_SECONDS, TTL_MAX_SECONDS)
            grant = rpc.LeaseGrantRequest(TTL=ttl)
            lease = (await self._members.call("LeaseGrant", grant, deadline)).ID
            make = put(key, pack_bucket(lease, False), lease)
            reply = await self._call(transaction([is_at(key, 0)], [make], [get(key)]), deadline)
            if reply.succeeded:
                return Bucket(end, lease, reply.header.revision)
            with contextlib.suppress(errors.LeaseGone):  # the reply to the first try was lost
                await self._members.call("LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease), deadline)
            found = reply.responses[0].response_range.kvs
            if not found:
                return None
        lease, closed = unpack_bucket(found[0].value)
        return None if closed else Bucket(end, lease, found[0].mod_revision)

    async def _call(self, request: Any, deadline: float) -> Any:
        return await self._members.call("Txn", request, deadline)

    def forget(self, bucket: Bucket) -> None:
        """The bucket is being removed, or gone."""
        for end in [end for end, one in self._open.items() if one is bucket]:
            del self._open[end]

    def clear(self) -> None:
        self._open.clear()
