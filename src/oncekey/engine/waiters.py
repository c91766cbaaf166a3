"""Who in this process waits for which key.

A duplicate that waits for an attempt in the same process is woken when that attempt ends,
instead of polling the store. Owns the registry only; a missed wake-up costs one poll.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

Wake = Callable[[], None]


class Waiters:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakes: dict[bytes, list[Wake]] = {}

    def add(self, id: bytes, wake: Wake) -> None:
        with self._lock:
            self._wakes.setdefault(id, []).append(wake)

    def remove(self, id: bytes, wake: Wake) -> None:
        with self._lock:
            wakes = self._wakes.get(id, [])
            if wake in wakes:
                wakes.remove(wake)
            if not wakes:
                self._wakes.pop(id, None)

    def ended(self, id: bytes) -> None:
        """The attempt on this key is over in this process: wake all who wait for it."""
        if not self._wakes:
            return
        with self._lock:
            wakes = self._wakes.pop(id, [])
        for wake in wakes:
            try:
                wake()
            except RuntimeError:
                pass  # its event loop is closed: nobody waits there any more

    def reset(self) -> None:
        """After a fork nobody waits, and the lock may have been held."""
        self._lock = threading.Lock()
        self._wakes = {}
