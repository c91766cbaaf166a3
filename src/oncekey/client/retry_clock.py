"""The client's time and chance, in one replaceable object per colour.

The rules and the flow only ever see readings; who waits is here. Sleeping goes through anyio where
there is an event loop, so that asyncio and trio serve alike.
"""

from __future__ import annotations

import random
import time
from typing import Protocol

from oncekey.client.retry_effects import SECOND_US


class Readings(Protocol):
    """What both colours can tell at once."""

    def now(self) -> int:
        """Monotonic microseconds."""

    def wall(self) -> int:
        """Microseconds since 1970, for servers that name a date."""

    def chance(self) -> float:
        """A random number from 0 up to 1."""


class Clock(Readings, Protocol):
    def sleep(self, us: int) -> None: ...


class AsyncClock(Readings, Protocol):
    async def sleep(self, us: int) -> None: ...


class _System:
    def now(self) -> int:
        return time.monotonic_ns() // 1_000

    def wall(self) -> int:
        return time.time_ns() // 1_000

    def chance(self) -> float:
        return random.random()


class SystemClock(_System):
    """The host's clock, for threads."""

    def sleep(self, us: int) -> None:
        time.sleep(us / SECOND_US)


class AsyncSystemClock(_System):
    """The host's clock, for event loops."""

    async def sleep(self, us: int) -> None:
        import anyio  # comes with httpx; who has only requests never gets here

        await anyio.sleep(us / SECOND_US)
