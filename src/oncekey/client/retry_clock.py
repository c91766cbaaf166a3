"""The client's clocks: time, randomness and sleeping, in one replaceable object.

The rules and the flow only see readings. The async clock sleeps through anyio, so that it works on
asyncio and on trio.
"""

from __future__ import annotations

import random
import time
from typing import Protocol

from oncekey.client.retry_effects import SECOND_US, ClockReading


class ClockReader(Protocol):
    """What the sync and the async clock have in common."""

    def now(self) -> int:
        """Monotonic microseconds."""

    def wall(self) -> int:
        """Microseconds since 1970, for servers that name a date."""

    def chance(self) -> float:
        """A random number from 0 up to 1."""


class Clock(ClockReader, Protocol):
    """A clock that a thread sleeps by."""

    def sleep(self, us: int) -> None: ...


class AsyncClock(ClockReader, Protocol):
    """A clock that a task sleeps by."""

    async def sleep(self, us: int) -> None: ...


def read_clock(clock: ClockReader) -> ClockReading:
    """All readings at once."""
    return ClockReading(clock.now(), clock.wall(), clock.chance())


class _SystemReader:
    def now(self) -> int:
        return time.monotonic_ns() // 1_000

    def wall(self) -> int:
        return time.time_ns() // 1_000

    def chance(self) -> float:
        return random.random()


class SystemClock(_SystemReader):
    """The host's clock, for threads."""

    def sleep(self, us: int) -> None:
        time.sleep(us / SECOND_US)


class AsyncSystemClock(_SystemReader):
    """The host's clock, for event loops."""

    async def sleep(self, us: int) -> None:
        import anyio  # it comes with httpx; with requests alone this is never called

        await anyio.sleep(us / SECOND_US)
