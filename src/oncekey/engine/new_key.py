"""New keys: random, or random and in the order of their making.

Owns the randomness and the clock that keys need, which is why it is not in the core. What is
made here is stored by its caller before the first attempt; what cannot be stored is derived
instead, by `key_for` in core/derived_keys.py.
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
    """A key nobody had before: a random UUID. Store it with the intent, before the first attempt.

    `sortable` gives a UUID (version 7) that tells when it was made and is greater than all that
    this process made before: good for indexes, bad where that time is nobody's business.
    `namespace` marks the key: "v2:...".
    """
    return in_namespace(str(_sortable() if sortable else uuid4()), namespace)


class SortableUUIDs:
    """UUIDs of version 7 (RFC 9562), each greater than the one before, whatever the clock does.

    48 bits of milliseconds, 12 bits of ticks within them, 62 random bits. Where the clock stands
    still or steps back, the next tick is taken instead of the clock's. The random bits are drawn
    anew for each from the operating system, so a forked child shares none with its parent.
    """

    def __init__(
        self,
        clock: Callable[[], int] = time.time_ns,
        randomness: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._clock = clock
        self._randomness = randomness
        self._last = 0
        self._lock = threading.RLock()  # a signal's handler may want a key in the middle of one

    def __call__(self) -> UUID:
        random = int.from_bytes(self._randomness(8), "big") >> (64 - _RANDOM_BITS)
        with self._lock:
            # Read inside: else a thread that was held up could bring an older reading.
            now = (self._clock() << _TICK_BITS) // _NS_PER_MS
            self._last = ticks = max(now, self._last + 1)
        ms, tick = ticks >> _TICK_BITS, ticks & ((1 << _TICK_BITS) - 1)
        return UUID(int=ms << 80 | 0x7 << 76 | tick << 64 | 0b10 << 62 | random)

    def renew_lock(self) -> None:
        """In a forked child: whoever held the lock is not here to give it back."""
        self._lock = threading.RLock()


_sortable = SortableUUIDs()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_sortable.renew_lock)
