"""The rule which offset of one partition may be committed.

A committed offset tells Kafka that everything before it is done with, so it may pass only messages
whose keys are terminal or which were produced safely to another topic. A message that is unfinished
holds the offset back, also when messages after it are done. This module is pure: it must not know
any client of Kafka, nor why a message is done.
"""

from __future__ import annotations

from collections import deque


class PartitionOffsets:
    """The offsets of one partition that were received since it was assigned to this consumer."""

    __slots__ = ("_committed", "_done", "_next", "_received")

    def __init__(self) -> None:
        self._received: deque[int] = deque()  # in order; the first one is not done
        self._done: set[int] = set()  # those of `_received` that wait for an earlier one
        self._next: int | None = None  # what would be received next
        self._committed: int | None = None

    def receive(self, offset: int) -> bool:
        """Note an offset. False if it is not after the last one: the partition was set back.

        Offsets have gaps, where a topic is compacted or a transaction has left its marks.
        """
        if self._next is not None and offset < self._next:
            return False
        self._received.append(offset)
        self._next = offset + 1
        return True

    def finish(self, offset: int) -> None:
        """Note that a received message is done with; more than once does no harm."""
        if not self._received or offset < self._received[0]:
            return
        self._done.add(offset)
        while self._received and self._received[0] in self._done:
            self._done.discard(self._received.popleft())

    @property
    def committable(self) -> int | None:
        """The offset to commit: that of the first unfinished message; None without news."""
        position = self._received[0] if self._received else self._next
        return None if position == self._committed else position

    def commit(self, position: int | None) -> None:
        """Note that Kafka was told `position`; None if it did not take it, so it is told again."""
        self._committed = position

    @property
    def oldest(self) -> int | None:
        """The first message that is not done, which holds the offset back."""
        return self._received[0] if self._received else None

    @property
    def uncommitted(self) -> int:
        """How many messages a new owner of the partition would receive again."""
        return len(self._received)

    @property
    def unfinished(self) -> int:
        return len(self._received) - len(self._done)
