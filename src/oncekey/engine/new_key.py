"""Makes new keys: random ones, or random ones that sort by the time they were made.

It is not in core/ because it needs a clock and randomness. A new key must be stored by its caller
before the first attempt; a caller that cannot store one derives it, by `key_for` in
core/derived_keys.py.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final
from uuid import UUID, uuid4

from oncekey.core.derived_keys import in_namespace

_NS_PER_MS: Final = 1_000_000
_TICK_BITS: Final = 12  # of rand_a: a tick is a 4,096th of a millisecond, about 244 ns
_RANDOM_BITS: Final = 62


def new_key(*, sortable: bool = False, namespace: str | None = None) -> str:
    """A new key: a random UUID. Store it with what you intend to do, before the first attempt.

    `sortable` gives a UUID (version 7) that contains the time it was made and is greater than all
    that this process made before: good for indexes, bad if that time must stay private.
    `namespace` is a prefix of the key: "v2:...".
    """
    return in_namespace(str(_sortable() if sortable else uuid4()), namespace)


class SortableUUIDs:
    """UUIDs of version 7 (RFC 9562), each greater than the one before, whatever the clock does.

    48 bits of milliseconds, 12 bits of ticks within them, 62 random bits. If the clock stands
    still or steps back, the next tick is used instead of the clock's. The random bits come from the
    operating system for each UUID, so a forked child shares none with its parent.
    """

    def __init__(
        self,
        clock: Callable[[], int] = time.time_ns,
        randomness: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._clock = clock
        self._randomness = randomness
        self._last = 0
        self._lock = threading.RLock()  # a signal's handler may make a key while this thread does

    def __call__(self) -> UUID:
        random = int.from_bytes(self._randomness(8), "big") >> (64 - _RANDOM_BITS)
        with self._lock:
            # Read under the lock: a thread that was delayed would have an older reading.
            now = (self._clock() << _TICK_BITS) // _NS_PER_MS
            # Nothing is called between these: a signal's handler there would draw the same tick.
            last = self._last
            self._last = ticks = now if now > last else last + 1
        ms, tick = ticks >> _TICK_BITS, ticks & ((1 << _TICK_BITS) - 1)
        return UUID(int=ms << 80 | 0x7 << 76 | tick << 64 | 0b10 << 62 | random)

    def renew_lock(self) -> None:
        """Make a new lock in a forked child: the thread that held the old one is not there."""
        self._lock = threading.RLock()


_sortable = SortableUUIDs()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_sortable.renew_lock)
