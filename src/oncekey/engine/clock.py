"""The engine's clock and the random owner tokens.

The flows of core/ get readings only. In tests `FakeClock` of oncekey.testing replaces the clock.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """Monotonic microseconds, and waiting on them from threads and from event loops."""

    def now(self) -> int: ...

    def wait(self, event: threading.Event, us: int) -> bool:
        """Block until the event is set (True) or `us` have passed (False)."""

    def later(self, us: int, call: Callable[[], None]) -> Timer:
        """Call back on the running event loop after `us`."""

    def jitter(self, us: int) -> int:
        """A random delay near `us`, so that waiters do not all wake at once."""


# It goes on while the host is suspended, as the store's clock does; CLOCK_MONOTONIC does not.
if hasattr(time, "CLOCK_BOOTTIME"):
    _nanoseconds = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
else:
    _nanoseconds = partial(time.monotonic_ns)


class SystemClock:
    def now(self) -> int:
        return _nanoseconds() // 1_000

    def wait(self, event: threading.Event, us: int) -> bool:
        return event.wait(us / 1_000_000)

    def later(self, us: int, call: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(us / 1_000_000, call)

    def jitter(self, us: int) -> int:
        return int(us * random.uniform(0.5, 1.0))


# Random tokens are drawn in bulk: a system call for each would cost a tenth of a run.
_TOKEN_BYTES = 16
_TOKENS_DRAWN = 256
_tokens: list[bytes] = []


def new_owner() -> bytes:
    """A random token no other attempt has, in any thread or process."""
    try:
        return _tokens.pop()  # atomic: no two threads get the same one
    except IndexError:
        drawn = os.urandom(_TOKEN_BYTES * _TOKENS_DRAWN)
        fresh = [drawn[i : i + _TOKEN_BYTES] for i in range(0, len(drawn), _TOKEN_BYTES)]
        token = fresh.pop()
        _tokens.extend(fresh)
        return token


if hasattr(os, "register_at_fork"):
    # A child must not use tokens that its parent has drawn.
    os.register_at_fork(after_in_child=_tokens.clear)


async def sleep(clock: Clock, us: int) -> None:
    """asyncio.sleep on the engine's own clock."""
    future = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    timer = clock.later(us, wake)
    try:
        await future
    finally:
        timer.cancel()
