"""Sends deferred writes to the store from a task, which ends when the store has taken them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context

from oncekey.core.commands import Command
from oncekey.core.effects import CommandResult
from oncekey.engine.aio.heartbeat import sleep
from oncekey.engine.clock import Clock
from oncekey.engine.deferred_writes import SEND_EVERY_US, DeferredWrites


class AsyncDeferredWriter:
    """One per event loop: all its calls must come from that loop."""

    def __init__(self, apply: Callable[[Command], Awaitable[CommandResult]], clock: Clock) -> None:
        self._apply = apply
        self._clock = clock
        self._writes = DeferredWrites()
        self._task: asyncio.Task[None] | None = None

    def add(self, command: Command) -> None:
        self._writes.add(command, self._clock.now())
        if self._task is None:
            # In an empty context: it must not keep alive what the caller's holds.
            self._task = Context().run(asyncio.get_running_loop().create_task, self._run())

    async def stop(self) -> None:
        """Send once more, and then no more."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        await self.send()

    async def _run(self) -> None:
        while len(self._writes):
            await sleep(self._clock, SEND_EVERY_US)
            await self.send()
        self._task = None

    async def send(self) -> None:
        """Send what is due now."""
        due = self._writes.due(self._clock.now())
        # Whatever else the store raises for one of them, that one is sent again.
        results = await asyncio.gather(*map(self._apply, due), return_exceptions=True)
        for command, result in zip(due, results, strict=True):
            if isinstance(result, CommandResult):
                self._writes.sent(command, result)
