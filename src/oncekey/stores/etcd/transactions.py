"""Requests to etcd: operations, comparisons, and the transaction that a batch is.

A batch is one transaction of nested ones. The outer one compares what all of them rest on (the
floor, sessions, buckets) and does nothing if that has changed; each nested one compares the
revision of its own record, and writes, or reads what is there instead. This module decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aetcd import rpc

from oncekey.core.record import Record
from oncekey.stores.etcd.keyspace import (
    Keys,
    StoredValue,
    end_of,
    is_removed_by_bucket,
    pack_value,
    unpack_value,
)

_EQUAL: Final = rpc.Compare.EQUAL
_MOD: Final = rpc.Compare.MOD


class Write(NamedTuple):
    """A record to be written in place of another one.

    before    what it replaces; None if nothing is there
    record    what to write
    packed    the same as bytes
    session   the session that keeps its claim, 0 if it is not pending
    lease     for how long
    bucket    the etcd lease with which it is removed, 0 if with none
    archive   a past generation to keep
    """

    before: StoredValue | None
    record: Record
    packed: bytes
    session: int
    lease: int
    bucket: int
    archive: Record | None


def put(key: bytes, value: bytes, lease: int = 0) -> Any:
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, lease=lease))


def delete(key: bytes) -> Any:
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))


def get(key: bytes) -> Any:
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key))


def is_at(key: bytes, mod_revision: int) -> Any:
    """The comparison that a key was last written at this revision; 0 for a key that is absent."""
    return rpc.Compare(result=_EQUAL, target=_MOD, key=key, mod_revision=mod_revision)


def has_lease(key: bytes, lease: int) -> Any:
    """The comparison that a key is attached to this etcd lease."""
    return rpc.Compare(result=_EQUAL, target=rpc.Compare.LEASE, key=key, lease=lease)


def exists(key: bytes) -> Any:
    return rpc.Compare(result=rpc.Compare.GREATER, target=rpc.Compare.VERSION, key=key, version=0)


def nested(compare: Sequence[Any], success: Sequence[Any], failure: Sequence[Any] = ()) -> Any:
    """A transaction as an operation of another one."""
    return rpc.RequestOp(request_txn=transaction(compare, success, failure))


def transaction(compare: Sequence[Any], success: Sequence[Any], failure: Sequence[Any] = ()) -> Any:
    return rpc.TxnRequest(compare=compare, success=success, failure=failure)


def range_of(prefix: bytes, *, start: bytes = b"", end: bytes = b"", **options: Any) -> Any:
    """A request for the keys with a prefix, or for those of them from `start` up to `end`."""
    return rpc.RangeRequest(key=start or prefix, range_end=end or end_of(prefix), **options)


def write_operation(keys: Keys, write: Write) -> Any:
    """The nested transaction that writes a record, or reads the record that is there instead."""
    before, record, packed, _, _, bucket, archive = write
    key = keys.record(record.id)
    success = [put(key, packed, bucket)]
    entry = keys.entry(record)
    old_entry = keys.entry(before.record) if before is not None else b""
    stays = before is not None and entry == old_entry
    if not stays or bucket or is_removed_by_bucket(before.record):  # type: ignore[union-attr]
        success.append(put(entry, b"", bucket))
    if before is not None and not stays:
        success.append(delete(old_entry))
    if archive is not None:
        success += archive_operations(keys, archive)
    revision = before.mod_revision if before is not None else 0
    return nested([is_at(key, revision)], success, [get(key)])


def archive_operations(keys: Keys, past: Record) -> list[Any]:
    """Store a past generation, and when it may be removed."""
    generation = put(keys.generation(past), pack_value(past))
    return [generation, put(keys.generation_due(past), b"")]


def delete_operation(keys: Keys, before: StoredValue) -> Any:
    """The nested transaction that removes a record, if it is still the one that was read."""
    key = keys.record(before.record.id)
    return nested(
        [is_at(key, before.mod_revision)], [delete(key), delete(keys.entry(before.record))]
    )


def found_value(id: bytes, response: Any) -> StoredValue | None:
    """The record in the reply to a `get` of it; None if there is none."""
    if not response.kvs:
        return None
    found = response.kvs[0]
    return unpack_value(id, found.value, found.mod_revision)
