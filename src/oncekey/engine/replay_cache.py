"""The replay cache: finished outcomes answered without a round trip.

A finished outcome never changes until it expires (I2), so a copy may answer for it. Bounded in
entries and bytes; an entry holds for a minute at most, so that an erase takes effect. Only
finished outcomes get in, counted from before the store was asked, so no entry outlives its record.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from oncekey.core.codec import Stored

CACHE_ENTRIES_DEFAULT = 10_000
CACHE_BYTES_DEFAULT = 32 * 1024 * 1024
CACHE_AGE_MAX_US = 60_000_000
_ENTRY_OVERHEAD = 400


class Entry(NamedTuple):
    fingerprint: bytes
    stored: Stored
    attempt: int
    fence: int
    until: int
    size: int


class ReplayCache:
    """An LRU of outcomes by id; safe from any thread."""

    def __init__(
        self, entries: int = CACHE_ENTRIES_DEFAULT, size: int = CACHE_BYTES_DEFAULT
    ) -> None:
        self._most_entries = entries
        self._most_bytes = size
        self._bytes = 0
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()

    def get(self, id: bytes, fingerprint: bytes, now: int) -> Entry | None:
        """The outcome, if it is here, still holds and answers this very request."""
        with self._lock:
            entry = self._entries.get(id)
            if entry is None:
                return None
            if now >= entry.until:
                self._drop(id)
                return None
            if entry.fingerprint != fingerprint:
                return None  # the store decides what that means
            self._entries.move_to_end(id)
            return entry

    def put(
        self,
        id: bytes,
        fingerprint: bytes,
        stored: Stored,
        *,
        attempt: int,
        fence: int,
        until: int,
        size: int,
    ) -> None:
        cost = size + _ENTRY_OVERHEAD
        if self._most_entries == 0 or cost > self._most_bytes:
            return
        with self._lock:
            self._drop(id)
            self._entries[id] = Entry(fingerprint, stored, attempt, fence, until, cost)
            self._bytes += cost
            while len(self._entries) > self._most_entries or self._bytes > self._most_bytes:
                self._drop(next(iter(self._entries)))

    def forget(self, id: bytes) -> None:
        with self._lock:
            self._drop(id)

    def clear(self) -> None:
        """Also after a fork, when the lock may have been held by a thread that is gone."""
        self._lock = threading.Lock()
        self._entries = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def _drop(self, id: bytes) -> None:
        entry = self._entries.pop(id, None)
        if entry is not None:
            self._bytes -= entry.size
