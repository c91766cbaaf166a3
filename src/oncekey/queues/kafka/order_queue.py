"""The queue of received messages that are to be handled, in the order that was promised.

Messages of one order group are taken in the order of their offsets, and no more of a group are
taken while some of it are out. A message that waits, because it is hidden or is to be tried again,
keeps the later ones of its group waiting; other groups go on. This module is pure: the time is
given, and it must not know any client of Kafka, nor what a message holds.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")
Partition = tuple[str, int]


class Position(NamedTuple):
    """Where a message is: unique in one consumer group, and in order within a partition."""

    topic: str
    partition: int
    offset: int

    @property
    def of_partition(self) -> Partition:
        return self.topic, self.partition


@dataclass(slots=True, eq=False)
class Entry(Generic[Item]):
    """One message: when it may be taken, and since when it was not finished.

    `assignment` numbers the assignment of its partition: after a later one it says nothing more.
    Until `stays_until` it is not moved to another topic, since that has just failed.
    """

    position: Position
    item: Item
    group: Hashable
    assignment: int = 0
    not_before: float = 0.0
    first_taken: float | None = None
    stays_until: float = 0.0
    tries: int = 0


@dataclass(slots=True)
class _Group(Generic[Item]):
    waiting: deque[Entry[Item]] = field(default_factory=deque)  # by position
    out: int = 0


class OrderQueue(Generic[Item]):
    """Messages by order group. Every time is a reading of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group[Item]] = {}
        self._ready: deque[Hashable] = deque()
        self._later: list[tuple[float, int, Hashable]] = []  # a heap of groups and when
        self._numbers = itertools.count()
        self._put_back: dict[Entry[Item], None] = {}  # those that wait for another try

    def add(self, entry: Entry[Item], now: float) -> None:
        """Add a message: a new one, or one that is to be handled again, at its own place."""
        group = self._groups.setdefault(entry.group, _Group())
        self._insert(group.waiting, entry)
        if not group.out and group.waiting[0] is entry:
            self._schedule(entry.group, group, now)

    def _insert(self, waiting: deque[Entry[Item]], entry: Entry[Item]) -> None:
        if not waiting or waiting[-1].position < entry.position:
            waiting.append(entry)
            return
        # What is put back belongs near the front, so this is short.
        index = next(i for i, other in enumerate(waiting) if entry.position < other.position)
        waiting.insert(index, entry)

    def take(self, most: int, now: float) -> list[Entry[Item]]:
        """Take up to `most` messages that may be handled now."""
        self._wake(now)
        taken: list[Entry[Item]] = []
        while self._ready and len(taken) < most:
            name = self._ready.popleft()
            group = self._groups.get(name)
            if group is None or group.out:
                continue  # the group was dropped or taken since it was put in line
            while group.waiting and len(taken) < most and group.waiting[0].not_before <= now:
                entry = group.waiting.popleft()
                self._put_back.pop(entry, None)
                entry.tries += 1
                if entry.first_taken is None:
                    entry.first_taken = now
                group.out += 1
                taken.append(entry)
        return taken

    def put_back(self, entry: Entry[Item], now: float) -> None:
        """Return a message that was taken and is not done."""
        group = self._groups[entry.group]
        group.out -= 1
        self._insert(group.waiting, entry)
        self._put_back[entry] = None
        if not group.out:
            self._schedule(entry.group, group, now)

    def end(self, entry: Entry[Item], now: float) -> None:
        """Forget a message that was taken and is done."""
        group = self._groups[entry.group]
        group.out -= 1
        if not group.out and group.waiting:
            self._schedule(entry.group, group, now)
        elif not group.out:
            del self._groups[entry.group]

    def take_waiting(self, entry: Entry[Item]) -> None:
        """Take a message before its time; it is put back or ended like any other."""
        group = self._groups[entry.group]
        group.waiting.remove(entry)
        self._put_back.pop(entry, None)
        group.out += 1

    def drop(self, partitions: set[Partition]) -> None:
        """Forget what waits of partitions that this consumer does not have any more."""
        for name, group in list(self._groups.items()):
            if any(entry.position.of_partition in partitions for entry in group.waiting):
                group.waiting = deque(
                    e for e in group.waiting if e.position.of_partition not in partitions
                )
            if not group.waiting and not group.out:
                del self._groups[name]
        for entry in [e for e in self._put_back if e.position.of_partition in partitions]:
            del self._put_back[entry]

    def waiting_again(self) -> Iterator[Entry[Item]]:
        """Yield every message that was taken and put back, and is not taken now: few, however many
        wait for their first turn."""
        yield from self._put_back

    def next_time(self, now: float) -> float | None:
        """Return when a message may be taken: `now` or later; None if none waits for a time."""
        self._wake(now)
        if self._ready:
            return now
        return self._later[0][0] if self._later else None

    def _schedule(self, name: Hashable, group: _Group[Item], now: float) -> None:
        when = group.waiting[0].not_before
        if when <= now:
            self._ready.append(name)
        else:
            heapq.heappush(self._later, (when, next(self._numbers), name))

    def _wake(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[2])
