"""The names of a Redis store's keys, and the buckets that they are divided into.

    prefix:{tag}:r:<id>     a record (stores/record_format.py)
    prefix:{tag}:h:<id>     the past generations of a key, by fence
    prefix:{tag}:claims     sorted set of the bucket's ids by the fence of their latest claim
    prefix:{tag}:open       those of them that have not ended
    prefix:{tag}:due        the ids by the time at which a sweeper looks at them
    prefix:{tag}:past       id and fence of past generations, by the end of their audit
    prefix:{tag}:floor      the highest fence of the bucket's deleted records
    prefix:{tag}:check      the check value of the secret, in the first bucket only
    prefix:{tag}:elected    who sweeps, in the first bucket only
    prefix:{tag}:replicas   the replicas that were seen, in the first bucket only
    prefix:{tag}:synced     written to see whether the node's append-only file is in place; expires

The first byte of an id names its bucket. A bucket's tag is chosen so that bucket i lies in the
64 slots from 64 * i on, so that a cluster of up to 256 nodes shares the buckets evenly, and so
that a script finds a record and its index entries on one node. This module knows no connection.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Final

BUCKETS: Final = 256
SLOTS: Final = 16_384
PREFIX_DEFAULT: Final = "oncekey"
PREFIX_MAX_CHARS: Final = 100

_SLOTS_PER_BUCKET: Final = SLOTS // BUCKETS


def slot_of_tag(tag: bytes) -> int:
    """The slot of a cluster to which all keys with this hash tag belong."""
    return binascii.crc_hqx(tag, 0) % SLOTS


def _tags() -> tuple[bytes, ...]:
    """Per bucket the smallest number that lies in its slots."""
    found: dict[int, bytes] = {}
    number = 0
    while len(found) < BUCKETS:
        tag = b"%d" % number
        found.setdefault(slot_of_tag(tag) // _SLOTS_PER_BUCKET, tag)
        number += 1
    return tuple(found[bucket] for bucket in range(BUCKETS))


TAGS: Final = _tags()
BUCKET_SLOTS: Final = tuple(slot_of_tag(tag) for tag in TAGS)


class Keyspace:
    """The keys of one store. They all begin with its prefix."""

    def __init__(self, prefix: str) -> None:
        bases = [b"%s:{%s}:" % (prefix.encode(), tag) for tag in TAGS]
        self._records = [base + b"r:" for base in bases]
        self._archives = [base + b"h:" for base in bases]
        self._bases = bases
        self.check = bases[0] + b"check"
        self.elected = bases[0] + b"elected"
        self.replicas = bases[0] + b"replicas"

    def record(self, id: bytes) -> bytes:
        return self._records[id[0]] + id

    def archive(self, id: bytes) -> bytes:
        """The key of a record's past generations."""
        return self._archives[id[0]] + id

    def index(self, name: str, bucket: int) -> bytes:
        return self._bases[bucket] + name.encode()


def by_bucket(ids: Sequence[bytes]) -> dict[int, list[int]]:
    """The positions of these ids, by the bucket that they belong to."""
    found: dict[int, list[int]] = {}
    for position, id in enumerate(ids):
        found.setdefault(id[0], []).append(position)
    return found
