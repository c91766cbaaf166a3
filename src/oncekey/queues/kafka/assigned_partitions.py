"""What one consumer has of the partitions that the group assigned to it.

`PartitionOffsets` is the rule which offset of one partition may be committed. A committed offset
says to Kafka that everything before it is done with, so it may pass only messages whose keys are
terminal or which were produced safely to another topic. A message that is unfinished holds the
offset back, also when messages after it are done.

`AssignedPartitions` joins the offsets of each partition with the queue of messages, and decides
what is taken, what may be committed, which partitions are paused and which messages are stuck. The
two clients drive it: they report what happened and do what it says.

This module is pure: the time is given, and it must not know any client of Kafka, nor why a message
is done. It is not safe for threads; its driver holds a lock.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from oncekey.queues.kafka.order_queue import Entry, OrderQueue, Partition, Position

Item = TypeVar("Item")


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
        """Note that `position` was sent to Kafka; None if it was not taken, so it is sent again."""
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


@dataclass(slots=True)
class _Assignment:
    """One partition from its assignment to its end. A later assignment is another one.

    Whether it is paused is not known at first: librdkafka remembers a pause of the last assignment.
    One that `is_ending` is about to be revoked: nothing more of it is taken.
    """

    number: int
    offsets: PartitionOffsets = field(default_factory=PartitionOffsets)
    paused: bool | None = None
    is_ending: bool = False


@dataclass(frozen=True, slots=True)
class PauseChange:
    """Partitions that the client is to pause, and others that it is to resume."""

    pause: list[Partition]
    resume: list[Partition]


class AssignedPartitions(Generic[Item]):
    """The partitions, and every message of them that is not done."""

    def __init__(self, *, max_uncommitted: int, stuck_after: float) -> None:
        """
        max_uncommitted   a partition with as many received and uncommitted messages is paused
        stuck_after       a message waits here for no try that is so many seconds after its first
        """
        self._max_uncommitted = max_uncommitted
        self._stuck_after = stuck_after
        self._assignments: dict[Partition, _Assignment] = {}
        self._numbers = itertools.count(1)
        self._queue: OrderQueue[Item] = OrderQueue()
        self._out: dict[Partition, int] = {}  # how many are with a handler or leave
        self.all_paused = False

    # --- the group's decisions ------------------------------------------------------------------

    def assign(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._assignments[partition] = _Assignment(next(self._numbers))
            self._out[partition] = 0

    def end(self, partitions: Collection[Partition]) -> None:
        """Forget partitions that were revoked or lost; what runs of them is not heard any more."""
        for partition in partitions:
            self._assignments.pop(partition, None)
            self._out.pop(partition, None)
        self._queue.drop(set(partitions))

    @property
    def partitions(self) -> list[Partition]:
        return list(self._assignments)

    def stop_taking(self, partitions: Collection[Partition]) -> None:
        """Forget what waits of partitions that are about to be revoked; what runs may finish. What
        still comes of them, or is to be tried again, is left to whoever has them next."""
        for partition in partitions:
            if partition in self._assignments:
                self._assignments[partition].is_ending = True
        self._queue.drop(set(partitions))

    def is_idle(self, partitions: Iterable[Partition]) -> bool:
        """True if no message of these is with a handler or on its way to another topic."""
        return not any(self._out.get(partition) for partition in partitions)

    # --- messages -------------------------------------------------------------------------------

    def receive(
        self, position: Position, item: Item, group: Hashable, not_before: float, now: float
    ) -> bool:
        """Add a message that the client has fetched. False if its partition was set back to it.

        That happens when a topic is created again, or a broker has lost the end of its log. What
        was received before is another message then, so the partition begins anew.
        """
        partition = position.of_partition
        assignment = self._assignments.get(partition)
        if assignment is None or assignment.is_ending:
            return True  # it is of a partition that was taken away meanwhile
        in_order = assignment.offsets.receive(position.offset)
        if not in_order:
            self.end([partition])
            self.assign([partition])
            assignment = self._assignments[partition]
            assignment.offsets.receive(position.offset)
        # Without an order each message is a group of its own.
        name = position if group is None else group
        self._queue.add(Entry(position, item, name, assignment.number, not_before), now)
        return in_order

    def take(self, most: int, now: float) -> list[Entry[Item]]:
        """Take messages for handlers; each is given back by `finish`, `hold` or `leave`."""
        taken = self._queue.take(most, now)
        for entry in taken:
            self._out[entry.position.of_partition] += 1
        return taken

    def next_time(self, now: float) -> float | None:
        """Return when something may be taken; None if that takes a new message."""
        return self._queue.next_time(now)

    def finish(self, entry: Entry[Item], now: float) -> None:
        """Note that a message that was out is done: the offset may pass it."""
        self._queue.end(entry, now)
        assignment = self._current(entry)
        if assignment is not None:
            self._out[entry.position.of_partition] -= 1
            assignment.offsets.finish(entry.position.offset)

    def hold(self, entry: Entry[Item], until: float, now: float) -> None:
        """Keep a message that was out, to be taken again at `until`, before those after it."""
        assignment = self._current(entry)
        if assignment is not None:
            self._out[entry.position.of_partition] -= 1
        if assignment is None or assignment.is_ending:
            self._queue.end(entry, now)
            return
        entry.not_before = until
        self._queue.put_back(entry, now)

    def take_stuck(self, now: float) -> list[Entry[Item]]:
        """Take the messages that must go to a retry topic, so that their partition can go on.

        Such a message waits for another try that comes too long after its first one, or it is the
        one that holds back the offset of a partition that is full.
        """
        stuck = [entry for entry in self._queue.waiting_again() if self._is_stuck(entry, now)]
        for entry in stuck:
            self._queue.take_waiting(entry)
            self._out[entry.position.of_partition] += 1
        return stuck

    def _is_stuck(self, entry: Entry[Item], now: float) -> bool:
        if entry.first_taken is None or entry.not_before <= now:
            return False  # its turn comes or has come: it gets its try
        if entry.stays_until > now:
            return False
        if entry.not_before - entry.first_taken >= self._stuck_after:
            return True
        offsets = self._assignments[entry.position.of_partition].offsets
        is_full = offsets.uncommitted >= self._max_uncommitted
        return is_full and offsets.oldest == entry.position.offset

    def _current(self, entry: Entry[Item]) -> _Assignment | None:
        assignment = self._assignments.get(entry.position.of_partition)
        if assignment is None or assignment.number != entry.assignment:
            return None
        return assignment

    # --- what the client is to do ---------------------------------------------------------------

    def commits(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, int]:
        """Return the offsets that may be committed and are news, and note them as committed."""
        wanted = self.partitions if partitions is None else partitions
        return dict(self._news(wanted))

    def _news(self, partitions: Iterable[Partition]) -> Iterator[tuple[Partition, int]]:
        for partition in partitions:
            assignment = self._assignments.get(partition)
            if assignment is None:
                continue
            position = assignment.offsets.committable
            if position is not None:
                assignment.offsets.commit(position)
                yield partition, position

    def not_committed(self, partitions: Iterable[Partition]) -> None:
        """Note that Kafka did not take the last offsets of these: they are news again."""
        for partition in partitions:
            assignment = self._assignments.get(partition)
            if assignment is not None:
                assignment.offsets.commit(None)

    def pause_changes(self) -> PauseChange:
        """Return which partitions to pause and to resume, and note them as done.

        A full partition is paused until half of its room is free, since a pause throws away what
        the client has fetched ahead.
        """
        change = PauseChange([], [])
        for partition, assignment in self._assignments.items():
            room = self._max_uncommitted - assignment.offsets.uncommitted
            is_full = room * 2 < self._max_uncommitted if assignment.paused else room <= 0
            wanted = self.all_paused or is_full
            if wanted != assignment.paused:
                assignment.paused = wanted
                (change.pause if wanted else change.resume).append(partition)
        return change

    @property
    def uncommitted(self) -> int:
        return sum(each.offsets.uncommitted for each in self._assignments.values())
