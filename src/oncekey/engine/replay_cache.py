"""The replay cache: successes that are replayed without a round trip.

A success never changes until it expires (I2), so a copy of it may be replayed. The cache
is bounded in entries and bytes. An entry is valid for a minute at most, so that an erase takes
effect, and its time is counted from before the store was called, so that it never outlives its
record.

Entries are tuples of plain values, because the garbage collector stops tracking those. Visiting
thousands of objects again and again cost a busy process a fifth of its time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

CACHE_ENTRIES_DEFAULT = 10_000
CACHE_BYTES_DEFAULT = 32 * 1024 * 1024
CACHE_AGE_MAX_US = 60_000_000
ENTRY_OVERHEAD = 400


Name = tuple[str, str, str]


# The id, the fingerprint, the packed outcome, the attempt, the fence, until when this entry is
# valid, and when its record expires.
Entry = tuple[bytes, bytes, bytes, int, int, int, int]


class ReplayCache:
    """An LRU of outcomes by (scope, operation, key); safe from any thread. Reading takes no lock:
    each step of it is one operation on a dict."""

    def __init__(
        self, entries: int = CACHE_ENTRIES_DEFAULT, size: int = CACHE_BYTES_DEFAULT
    ) -> None:
        self._most_entries = entries
        self._most_bytes = size
        self._bytes = 0
        self._is_open = True
        self._lock = threading.Lock()
        self.entries: OrderedDict[Name, Entry] = OrderedDict()

    def get(self, name: Name, now: int) -> Entry | None:
        """The outcome, if there is one that is still valid. The caller compares the fingerprint."""
        entries = self.entries
        entry = entries.get(name)
        if entry is None:
            return None
        if now >= entry[5]:
            with self._lock:
                self._drop(name)
            return None
        try:
            entries.move_to_end(name)
        except KeyError:  # another thread has just dropped it; what it held is still true
            pass
        return entry

    def put(self, name: Name, entry: Entry) -> None:
        size = len(entry[2]) + ENTRY_OVERHEAD
        if self._most_entries == 0 or size > self._most_bytes:
            return
        with self._lock:
            if not self._is_open:
                return
            entries = self.entries
            if name in entries:
                self._drop(name)
            entries[name] = entry
            self._bytes += size
            while len(entries) > self._most_entries or self._bytes > self._most_bytes:
                _, oldest = entries.popitem(last=False)
                self._bytes -= len(oldest[2]) + ENTRY_OVERHEAD

    def forget(self, id: bytes) -> None:
        """Remove the entry of the key with this id, because somebody has decided it anew."""
        with self._lock:
            for name in [name for name, entry in self.entries.items() if entry[0] == id]:
                self._drop(name)

    def close(self) -> None:
        """Remove all entries, and accept none until `reopen`."""
        with self._lock:
            self._is_open = False
            self.entries = OrderedDict()
            self._bytes = 0

    def reopen(self) -> None:
        self._is_open = True

    def reset(self) -> None:
        """Begin empty in a forked child, where a thread that is gone may have held the lock."""
        self._lock = threading.Lock()
        self.entries = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self.entries)

    def _drop(self, name: Name) -> None:
        entry = self.entries.pop(name, None)
        if entry is not None:
            self._bytes -= len(entry[2]) + ENTRY_OVERHEAD
