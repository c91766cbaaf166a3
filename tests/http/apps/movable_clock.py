"""A clock that a test moves while the app runs in another process.

It is the system's clock, plus what the file `ahead` in the shared folder says, in microseconds. The
engine and the store of an app share it, so that leases and retentions end when the test says so,
and not when a busy machine is late.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

from oncekey.engine.clock import SystemClock
from oncekey.stores.store_rules import wall_clock

FILE = "ahead"
_GLANCE_US = 20_000


class MovableClock(SystemClock):
    """The clock of an engine; `wall` is that of its store."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE

    def ahead(self) -> int:
        try:
            return int(self._file.read_text())
        except FileNotFoundError:
            return 0

    def now(self) -> int:
        return super().now() + self.ahead()

    def wall(self) -> int:
        return wall_clock() + self.ahead()

    def wait(self, event: threading.Event, us: int) -> bool:
        due = self.now() + us
        while (left := due - self.now()) > 0:
            if super().wait(event, min(left, _GLANCE_US)):
                return True
        return event.is_set()

    def later(self, us: int, call: Callable[[], None]) -> _Timer:
        return _Timer(self, self.now() + us, call)


class _Timer:
    """A timer that looks at the clock again and again, because the test may have moved it."""

    def __init__(self, clock: MovableClock, due: int, call: Callable[[], None]) -> None:
        self._clock = clock
        self._due = due
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._plan(due - clock.now())

    def cancel(self) -> None:
        self._handle.cancel()

    def _plan(self, left: int) -> None:
        self._handle = self._loop.call_later(min(left, _GLANCE_US) / 1_000_000, self._glance)

    def _glance(self) -> None:
        left = self._due - self._clock.now()
        if left > 0:
            self._plan(left)
        else:
            self._call()
