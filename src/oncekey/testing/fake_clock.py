"""A clock that stands still until a test moves it.

`FakeClock` is the engine's clock (`Once(..., clock=fake)`) and, through `wall`, the store's
(`MemoryStore(clock=fake.wall)`). It works for threads and for event loops.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

_STORE_EPOCH_US = 1_700_000_000_000_000
_GLANCE_SECONDS = 0.001


class _FakeTimer:
    def __init__(self, due: int, call: Callable[[], None]) -> None:
        self.due = due
        self.call = call
        self.loop = asyncio.get_running_loop()
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def start(self) -> None:
        """Has its event loop call it. A loop that is closed meanwhile has nobody left to call."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._fire)

    def _fire(self) -> None:
        if not self.cancelled:
            self.call()


class FakeClock:
    """A clock for tests: time passes only when the test calls `advance`."""

    def __init__(self) -> None:
        self._now = 1_000_000
        self._changed = threading.Condition()
        self._timers: list[_FakeTimer] = []
        self._waits: list[int] = []

    # --- what the engine calls ----------------------------------------------------------------

    def now(self) -> int:
        return self._now

    def wall(self) -> int:
        """The time as a store reads it: microseconds since an epoch."""
        return _STORE_EPOCH_US + self._now

    def wait(self, event: threading.Event, us: int) -> bool:
        with self._changed:
            due = self._now + us
            self._waits.append(due)
            self._changed.notify_all()
        try:
            # The event may be set without our being notified, so it is polled.
            while self._now < due:
                if event.wait(_GLANCE_SECONDS):
                    return True
            return event.is_set()
        finally:
            with self._changed:
                self._waits.remove(due)
                self._changed.notify_all()

    def later(self, us: int, call: Callable[[], None]) -> _FakeTimer:
        with self._changed:
            timer = _FakeTimer(self._now + us, call)
            self._timers.append(timer)
            self._changed.notify_all()
        return timer

    def jitter(self, us: int) -> int:
        return us

    # --- what the test calls ------------------------------------------------------------------

    def advance(self, us: int) -> None:
        """Moves the clock ahead: wakes sleeping threads and fires the timers of event loops."""
        with self._changed:
            self._now += us
            alive = [timer for timer in self._timers if not timer.cancelled]
            due = sorted((t for t in alive if t.due <= self._now), key=lambda timer: timer.due)
            self._timers = [timer for timer in alive if timer.due > self._now]
        for timer in due:
            timer.start()

    def wait_until_due(self, within: int, count: int = 1, timeout: float = 60.0) -> None:
        """Blocks until `count` threads or timers wait that `advance(within)` would wake."""

        def enough() -> bool:
            limit = self._now + within
            dues = [*self._waits, *(t.due for t in self._timers if not t.cancelled)]
            return sum(self._now < due <= limit for due in dues) >= count

        with self._changed:
            if not self._changed.wait_for(enough, timeout):
                raise AssertionError(f"fewer than {count} are due within {within} us")
