"""`memory://`: the reference store, a dict under a lock.

It does what `state_machine.decide` says and nothing else, so the contract suite measures other
stores by it. Its records live as long as the process: a crash loses them, so its guarantee is best
effort.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from oncekey.core.commands import Command, Reply, Seen
from oncekey.core.errors import ConfigurationError
from oncekey.core.guarantees import Guarantee, Level
from oncekey.core.move_marks import MARK_ID
from oncekey.core.record import Record
from oncekey.core.search import (
    BODY_HEAD_BYTES,
    LOOKED_AT_MAX,
    MEASURE_MAX,
    RATE_WINDOW_US,
    Cursor,
    Measures,
    Page,
    Query,
    page_of,
)
from oncekey.core.state_machine import decide, has_ended, is_expired, is_garbage
from oncekey.core.store import (
    SWEEP_LIMIT_DEFAULT,
    AsyncCallerTransaction,
    CallerTransaction,
    Unfinished,
)
from oncekey.stores.store_rules import check_same_secret, election_holds, wall_clock

_GUARANTEE = Guarantee(
    Level.BEST_EFFORT, "memory:// forgets every claim when the process ends; use sqlite:///file"
)


class MemoryStore:
    """Records in a dict; for tests, demos and caches that may be lost."""

    guarantee = _GUARANTEE
    lazy = False
    immediate = True
    max_in_flight = 1

    def __init__(self, *, clock: Callable[[], int] = wall_clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._records: dict[bytes, Record] = {}
        self._unended: dict[bytes, Record] = {}  # the records that have not ended
        self._history: dict[tuple[bytes, int], Record] = {}
        self._check: bytes | None = None
        self._elected = (b"", 0, 0)  # the elected token, since when and until when
        self._floor = 0  # the highest fence of a deleted record
        _alive.add(self)

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        records, unended = self._records, self._unended
        replies: list[Reply] = []
        with self._lock:
            for command in commands:
                id = command.id
                reply, write, archive = decide(records.get(id), command, self._clock(), self._floor)
                if write is not None:
                    records[id] = write
                    if has_ended(write):
                        unended.pop(id, None)
                    else:
                        unended[id] = write
                if archive is not None:
                    self._history[archive.id, archive.fence] = archive
                replies.append(reply)
        return replies

    def bind(self, check: bytes, /) -> Seen:
        with self._lock:
            if self._check is None:
                self._check = check
            check_same_secret(self._check, check)
            return Seen(self._records.get(MARK_ID), self._clock())

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int:
        with self._lock:
            now = self._clock()
            ended = [key for key, old in self._history.items() if is_garbage(old, now)][:limit]
            for key in ended:
                del self._history[key]
            room = limit - len(ended)
            garbage = [id for id, old in self._records.items() if is_garbage(old, now)][:room]
            for id in garbage:
                self._floor = max(self._floor, self._records[id].fence)
                del self._records[id]
                self._unended.pop(id, None)
        return len(ended) + len(garbage)

    def elect(self, token: bytes, lease: int, /) -> bool:
        with self._lock:
            now = self._clock()
            holder, since, until = self._elected
            if holder != token and election_holds(since, until, now):
                return False
            self._elected = (token, now, now + lease)
            return True

    def unfinished(self, after: int, limit: int, /) -> Unfinished:
        with self._lock:
            now = self._clock()
            found = [
                record
                for record in self._unended.values()
                if record.fence > after
                and not is_expired(record, now)
                # The writer may have been interrupted between the two assignments.
                and self._records.get(record.id) is record
            ]
        found.sort(key=lambda record: (record.fence, record.id))
        if len(found) > limit:
            last = found[limit - 1].fence if limit > 0 else after
            found = [record for record in found if record.fence <= last]
        return Unfinished(tuple(found), now)

    def history(self, id: bytes, /) -> list[Record]:
        """Past generations of a key that are still in their audit window, oldest first."""
        with self._lock:
            return sorted(
                (old for key, old in self._history.items() if key[0] == id),
                key=lambda old: old.fence,
            )

    def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        with self._lock:
            now = self._clock()
            older = [r for r in self._records.values() if (r.fence, r.id) < after]
        older.sort(key=lambda record: (record.fence, record.id), reverse=True)
        looked_at = older[:LOOKED_AT_MAX]
        last = Cursor(looked_at[-1].fence, looked_at[-1].id) if len(older) > LOOKED_AT_MAX else None
        found, places = [], []
        for place, record in enumerate(looked_at, 1):
            if query.matches(record, now):
                found.append(record._replace(steps=(), body=record.body[:BODY_HEAD_BYTES]))
                places.append(place)
        return page_of(found, places, last, now, len(looked_at), limit)

    def measure(self) -> Measures:
        with self._lock:
            now = self._clock()
            records = list(self._records.values())
            stored = [*records, *self._history.values()]
        due = [record.audit_until for record in records if is_garbage(record, now)][:MEASURE_MAX]
        claims = sum(record.fence > now - RATE_WINDOW_US for record in records)
        size = sum(_size(record) for record in stored)
        oldest = min(due, default=0)
        return Measures(now, len(records), size, len(due), oldest, min(claims, MEASURE_MAX))

    def join(self, connection: Any, /) -> CallerTransaction:
        raise ConfigurationError("memory:// has no transactions to take part in")

    def close(self) -> None:
        """Nothing to close; the records stay until the object is collected."""

    def reopen(self) -> None:
        """Nothing to open."""


def _size(record: Record) -> int:
    """How many bytes of users a record holds: its outcome, and those of its steps."""
    return len(record.body) + sum(len(step.body) for step in record.steps)


class AsyncMemoryStore:
    """The same dict for asyncio. It never waits, so it never blocks the event loop."""

    guarantee = _GUARANTEE
    lazy = False
    immediate = True
    max_in_flight = 1

    def __init__(
        self, memory: MemoryStore | None = None, *, clock: Callable[[], int] = wall_clock
    ) -> None:
        self.memory = memory if memory is not None else MemoryStore(clock=clock)

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return self.memory.apply(commands)

    @property
    def apply_at_once(self) -> Callable[[Sequence[Command]], list[Reply]] | None:
        """`apply` as a plain function; None where a subclass or a test has an `apply` of its
        own."""
        own = getattr(self.apply, "__func__", None) is AsyncMemoryStore.apply
        return self.memory.apply if own else None

    async def bind(self, check: bytes, /) -> Seen:
        return self.memory.bind(check)

    async def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int:
        return self.memory.sweep(limit)

    async def elect(self, token: bytes, lease: int, /) -> bool:
        return self.memory.elect(token, lease)

    async def unfinished(self, after: int, limit: int, /) -> Unfinished:
        return self.memory.unfinished(after, limit)

    async def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        return self.memory.search(query, limit, after)

    async def history(self, id: bytes, /) -> list[Record]:
        return self.memory.history(id)

    async def measure(self) -> Measures:
        return self.memory.measure()

    def join(self, connection: Any, /) -> AsyncCallerTransaction:
        raise ConfigurationError("memory:// has no transactions to take part in")

    async def close(self) -> None:
        self.memory.close()

    def reopen(self) -> None:
        """Nothing to open."""


def open_blocking(url: str) -> MemoryStore:
    _check_url(url)
    return MemoryStore()


def open_async(url: str) -> AsyncMemoryStore:
    _check_url(url)
    return AsyncMemoryStore()


def _check_url(url: str) -> None:
    if url != "memory://":
        raise ConfigurationError(f"{url!r}: a memory store has no name; write memory://")


_alive: weakref.WeakSet[MemoryStore] = weakref.WeakSet()


def _after_fork() -> None:
    """Replace every lock: one held by a thread of the parent would stay locked in the child."""
    for store in list(_alive):
        store._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
