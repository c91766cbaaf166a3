"""Fake clocks: a sleep takes no time and is recorded, and random numbers are given by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat

SECOND = 1_000_000
DAY_NS = 86_400 * 10**9
EPOCH_SECONDS = 1_700_000_000  # Tue, 14 Nov 2023 22:13:20 GMT


class _Fake:
    def __init__(self, chances: Iterable[float] = (), usual: float = 0.5) -> None:
        self.slept: list[int] = []
        self.on_sleep: Callable[[int], None] | None = None
        self._now = 5 * SECOND
        self._chances: Iterator[float] = chain(chances, repeat(usual))

    def now(self) -> int:
        return self._now

    def wall(self) -> int:
        return EPOCH_SECONDS * SECOND + self._now - 5 * SECOND

    def chance(self) -> float:
        return next(self._chances)

    def advance(self, us: int) -> None:
        self._now += us

    def _pass(self, us: int) -> None:
        self.slept.append(us)
        self._now += us
        if self.on_sleep is not None:
            self.on_sleep(us)


class FakeRetryClock(_Fake):
    """For sync clients."""

    def sleep(self, us: int) -> None:
        self._pass(us)


class AsyncFakeRetryClock(_Fake):
    """For async clients."""

    async def sleep(self, us: int) -> None:
        self._pass(us)


class FakeWallClock:
    """The clock of a journal, in nanoseconds since 1970; a test sets `now`."""

    def __init__(self) -> None:
        self.now = 20_000 * DAY_NS

    def __call__(self) -> int:
        return self.now
