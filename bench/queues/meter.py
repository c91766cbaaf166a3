"""Measures a steady state: from one handled message to another one, far enough apart.

What comes before (connecting, joining a group, the first batch) and after (leaving) is not counted.
"""

from __future__ import annotations

import asyncio
import threading
import time

MESSAGES = 6_000
WARM_UP = 1_000
SLOW_S = 0.001  # the handler that does something
PATIENCE_S = 120.0


class Meter:
    """Counts handled messages. `handle` and `handle_async` are handlers that take `seconds`."""

    def __init__(self, seconds: float = 0.0, messages: int = MESSAGES) -> None:
        self.seconds = seconds
        self.messages = messages
        self.warm_up = messages * WARM_UP // MESSAGES
        self._count = 0
        self._begun = 0.0
        self._ended = 0.0
        self._lock = threading.Lock()
        self.done = threading.Event()

    def handle(self, message: object) -> None:
        if self.seconds:
            time.sleep(self.seconds)
        self._tick()

    async def handle_async(self, message: object) -> None:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        self._tick()

    def _tick(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == self.warm_up:
                self._begun = time.perf_counter()
            elif self._count == self.messages:
                self._ended = time.perf_counter()
                self.done.set()

    async def wait_async(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while not self.done.is_set():
            if time.monotonic() > until:
                raise TimeoutError(f"{self._count} of {self.messages} messages were handled")
            await asyncio.sleep(0.02)

    def wait(self) -> None:
        if not self.done.wait(PATIENCE_S):
            raise TimeoutError(f"{self._count} of {self.messages} messages were handled")

    @property
    def us(self) -> float:
        """Microseconds per message."""
        return (self._ended - self._begun) / (self.messages - self.warm_up) * 1_000_000
