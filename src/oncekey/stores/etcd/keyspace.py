"""What is stored under which key of etcd.

    r/<id>                   the record, after a head with its session and its lease
    o/<fence><id>            an entry for each record that has not ended, oldest claim first
    e/<~fence><~id>          an entry for each record that has ended, newest claim first, since etcd
                             reads a range backwards only as a whole
    h/<id><fence>            past generations
    g/<audit_until><id><fence>   when these may be removed
    s/<session>              exists as long as a session's etcd lease lives
    b/<end>                  a bucket of records that are removed together: its etcd lease
    floor, check, elected, format, quota

Numbers are big-endian. A record is pending as long as its owner keeps it: it belongs to a session,
which ends when nobody keeps its etcd lease alive, or to none (0) once its claim has lapsed. This
module knows no requests.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from oncekey.core.record import FOREVER_US, Record, State
from oncekey.core.state_machine import has_ended
from oncekey.stores.record_format import pack_record, unpack_record

FORMAT: Final = b"1"
# In place of a lease: the claim has lapsed, whatever the time is on a host. A claim that was
# adopted from another store has no session either, and its lease is over when its record says.
LAPSED: Final = -1
ALL_ONES: Final = 2**64 - 1

_HEAD: Final = struct.Struct(">qq")
_NUMBER: Final = struct.Struct(">Q")
_BUCKET: Final = struct.Struct(">q?")
_ELECTED: Final = struct.Struct(">qq")


class StoredValue(NamedTuple):
    """A record as it was read.

    session        the session that keeps its claim; 0 if none does
    lease          how long its owner may stay silent, in microseconds; LAPSED
    mod_revision   etcd's revision of the last write
    """

    record: Record
    session: int
    lease: int
    mod_revision: int


def pack_value(record: Record, session: int = 0, lease: int = 0) -> bytes:
    """The value of a record."""
    return _HEAD.pack(session, lease) + pack_record(record, 0)


def unpack_value(id: bytes, value: bytes, mod_revision: int) -> StoredValue:
    """The record that a value holds."""
    session, lease = _HEAD.unpack_from(value)
    return StoredValue(unpack_record(id, value[_HEAD.size :]).record, session, lease, mod_revision)


def is_removed_by_bucket(record: Record) -> bool:
    """True if the record goes with a bucket. A pending one does not, since its end is not known,
    nor one that waits for somebody's decision, nor one that stays for ever (the mark of a move)."""
    stays = record.lasts_until_decided or record.keep >= FOREVER_US
    return record.state != State.PENDING and not stays


class Keys:
    """The keys below one prefix."""

    def __init__(self, root: str) -> None:
        self.root = root.encode()
        self.records = self.root + b"r/"
        self.open = self.root + b"o/"
        self.ended = self.root + b"e/"
        self.history = self.root + b"h/"
        self.due = self.root + b"g/"
        self.sessions = self.root + b"s/"
        self.buckets = self.root + b"b/"
        self.floor = self.root + b"floor"
        self.check = self.root + b"check"
        self.elected = self.root + b"elected"
        self.format = self.root + b"format"
        self.quota = self.root + b"quota"

    def record(self, id: bytes) -> bytes:
        return self.records + id

    def entry(self, record: Record) -> bytes:
        """The index entry of a record."""
        if has_ended(record):
            return self.ended_entry(record.fence, record.id)
        return self.open_entry(record.fence, record.id)

    def open_entry(self, fence: int, id: bytes) -> bytes:
        return self.open + _NUMBER.pack(fence) + id

    def open_after(self, fence: int) -> bytes:
        """Where the entries of open records with a higher fence begin."""
        return self.open + _NUMBER.pack(min(max(fence + 1, 0), ALL_ONES))

    def ended_entry(self, fence: int, id: bytes) -> bytes:
        return self.ended + _NUMBER.pack(ALL_ONES - fence) + _inverted(id)

    def parse_entry(self, key: bytes) -> tuple[int, bytes]:
        """The fence and the id of an index entry."""
        start = len(self.open)
        (number,) = _NUMBER.unpack_from(key, start)
        id = key[start + _NUMBER.size :]
        if key.startswith(self.ended):
            return ALL_ONES - number, _inverted(id)
        return number, id

    def generation(self, record: Record) -> bytes:
        return self.history + record.id + _NUMBER.pack(record.fence)

    def generation_due(self, record: Record) -> bytes:
        return self.due + _NUMBER.pack(record.audit_until) + self.generation(record)

    def due_until(self, now: int) -> bytes:
        """The end of the range of generations that are garbage at `now`."""
        return self.due + _NUMBER.pack(max(now + 1, 0))

    def parse_due(self, key: bytes) -> tuple[int, bytes]:
        """When a past generation is garbage, and its key."""
        start = len(self.due)
        return _NUMBER.unpack_from(key, start)[0], key[start + _NUMBER.size :]

    def session(self, number: int) -> bytes:
        return self.sessions + _NUMBER.pack(number)

    def bucket(self, end: int) -> bytes:
        return self.buckets + _NUMBER.pack(max(end, 0))

    def parse_bucket(self, key: bytes) -> int:
        return int(_NUMBER.unpack_from(key, len(self.buckets))[0])


def end_of(prefix: bytes) -> bytes:
    """The end of the range of all keys with this prefix, which ends with a slash."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def pack_bucket(lease: int, closed: bool) -> bytes:
    return _BUCKET.pack(lease, closed)


def unpack_bucket(value: bytes) -> tuple[int, bool]:
    """The etcd lease of a bucket, and whether it is being removed."""
    lease, closed = _BUCKET.unpack(value)
    return lease, closed


def pack_number(number: int) -> bytes:
    return _NUMBER.pack(number)


def unpack_number(value: bytes) -> int:
    return int(_NUMBER.unpack(value)[0])


def pack_elected(token: bytes, since: int, until: int) -> bytes:
    return _ELECTED.pack(since, until) + token


def unpack_elected(value: bytes) -> tuple[bytes, int, int]:
    """The elected token, since when and until when."""
    since, until = _ELECTED.unpack_from(value)
    return value[_ELECTED.size :], since, until


def _inverted(data: bytes) -> bytes:
    size = len(data)
    return (int.from_bytes(data, "big") ^ ((1 << 8 * size) - 1)).to_bytes(size, "big")
