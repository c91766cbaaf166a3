"""The names of a Redis store's keys, the buckets that they are divided into, and which node of a
cluster has which bucket.

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
that a script finds a record and its index entries on one node. Many threads and event loops may
use one table of slots. This module knows no connection.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

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


# --- which node has a bucket ----------------------------------------------------------------------


class Node(NamedTuple):
    """A server's address."""

    host: str
    port: int


class SingleNode:
    """The table of a store without a cluster: its one node has all buckets."""

    is_cluster = False
    needs_refresh = False

    def __init__(self, node: Node) -> None:
        self._node = node

    def nodes(self) -> list[Node]:
        return [self._node]

    def node_of(self, bucket: int) -> Node:
        return self._node

    def note_failure(self, node: Node) -> None:
        """Nothing to learn: there is no other node."""


class SlotTable:
    """The table of a cluster. `seeds` are nodes that may be asked for it."""

    is_cluster = True

    def __init__(self, seeds: Sequence[Node]) -> None:
        self._seeds = list(seeds)
        self._by_bucket: dict[int, Node] = {}
        self._failed: set[Node] = set()
        self.needs_refresh = True

    def nodes(self) -> list[Node]:
        """The masters that have buckets."""
        return sorted(set(self._by_bucket.values()))

    def node_of(self, bucket: int) -> Node | None:
        """The master that has a bucket; None if none is known."""
        return self._by_bucket.get(bucket)

    def candidates(self) -> list[Node]:
        """Nodes that may know the table: those that are known to be in it, then the seeds. Those
        that have just failed come last, because asking them may take a whole timeout."""
        known = dict.fromkeys([*self.nodes(), *self._seeds])
        return sorted(known, key=self._failed.__contains__)

    def note_failure(self, node: Node) -> None:
        """A node failed or has lost its slots: the table may be wrong."""
        self._failed.add(node)
        self.needs_refresh = True

    def move(self, slot: int, node: Node) -> None:
        """A node said that a slot is at another one now."""
        moved = {bucket: node for bucket in range(BUCKETS) if BUCKET_SLOTS[bucket] == slot}
        self._by_bucket = {**self._by_bucket, **moved}  # others may be reading the old one
        self.needs_refresh = True  # other slots have probably moved too

    def read(self, reply: Sequence[Any], asked: Node) -> bool:
        """Take over the reply to CLUSTER SLOTS from the node that was asked. False if it has no
        master for any bucket."""
        found: dict[int, Node] = {}
        for first, last, master, *_ in reply:
            for bucket, slot in enumerate(BUCKET_SLOTS):
                if first <= slot <= last:
                    found[bucket] = _named(master[0], master[1], asked)
        if found:
            self._by_bucket = found
            self._failed = set()
            self.needs_refresh = False
        return bool(found)


def redirected(message: str, asked: Node) -> tuple[int, Node]:
    """The slot and the node in a message like "3999 127.0.0.1:6381"."""
    slot, _, place = message.strip().rpartition(" ")
    host, _, port = place.rpartition(":")
    return int(slot.rpartition(" ")[2]), _named(host, int(port), asked)


def _named(host: Any, port: int, asked: Node) -> Node:
    """A node as another one names it: without a host it is the one that was asked."""
    text = host.decode() if isinstance(host, bytes) else host
    return Node(text if text and text != "?" else asked.host, int(port))
