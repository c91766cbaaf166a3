"""The places of a consumer in tasks: no more handlers run than there are."""

from __future__ import annotations

import asyncio
from collections import deque

from oncekey.queues.disposition import ConsumerStops


class Slots:
    """As many places as handlers may run; `async with` waits for one in turn."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiters: deque[asyncio.Future[None]] = deque()
        self.is_closed = False

    async def __aenter__(self) -> None:
        while not self._free and not self.is_closed:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                self._wake()  # it may have been the one that was woken
                raise
        if self.is_closed:
            raise ConsumerStops("the consumer stops")
        self._free -= 1

    async def __aexit__(self, *error: object) -> None:
        self._free += 1
        self._wake()

    def close(self) -> None:
        """Let nobody in any more: whoever waits gets ConsumerStops."""
        self.is_closed = True
        while self._waiters:
            self._wake()

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
