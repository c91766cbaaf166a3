"""Rates of the last minute, second by second: how many calls came in, and how many of them were
duplicates. Only the process that serves the calls knows this; a store does not."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from oncekey.core.events import Event, EventKind

RATE_SECONDS: Final = 60
CURVE_POINTS_MAX: Final = 120

# What was decided for a caller at its claim. Events that follow a claim are not calls.
_FIRST_RUNS: Final = frozenset((EventKind.CLAIMED, EventKind.TAKEOVER))
_DUPLICATES: Final = frozenset((EventKind.REPLAYED, EventKind.IN_FLIGHT, EventKind.WAIT_TIMEOUT))


class Calls(NamedTuple):
    """The calls of the last minute. `duplicates` were answered without running anything."""

    runs: int
    duplicates: int

    @property
    def share(self) -> float | None:
        """The dedup rate; None if nothing was called."""
        total = self.runs + self.duplicates
        return self.duplicates / total if total else None


class LiveRates:
    """A subscriber that counts. Events come from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds: deque[tuple[int, list[int]]] = deque(maxlen=RATE_SECONDS)

    def __call__(self, event: Event) -> None:
        if event.kind in _DUPLICATES:
            column = 1
        elif event.kind in _FIRST_RUNS:
            column = 0
        else:
            return
        second = int(self._clock())
        with self._lock:
            if not self._seconds or self._seconds[-1][0] != second:
                self._seconds.append((second, [0, 0]))
            self._seconds[-1][1][column] += 1

    def last_minute(self) -> Calls:
        since = int(self._clock()) - RATE_SECONDS
        with self._lock:
            counted = [counts for second, counts in self._seconds if second > since]
        return Calls(sum(runs for runs, _ in counted), sum(twice for _, twice in counted))


class RateCurve:
    """The claims per second that the overview has shown lately, with their times in seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=CURVE_POINTS_MAX)

    def add(self, at: float, rate: float) -> None:
        if not self._points or at > self._points[-1][0]:
            self._points.append((at, rate))

    @property
    def points(self) -> tuple[tuple[float, float], ...]:
        return tuple(self._points)
