"""Which node of a cluster has which bucket, and how that is learnt.

A table is read from CLUSTER SLOTS, and corrected when a node says that a slot has moved. Many
threads and event loops may use one table. This module knows no connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from oncekey.stores.redis.keyspace import BUCKET_SLOTS, BUCKETS


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
