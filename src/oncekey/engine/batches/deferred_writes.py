"""The commands that a store did not take while their callers waited, and who sends them again.

1. A claim that may have been made although no reply came is released. Otherwise the key would be
   held, and then unknown, though nothing ran.
2. An outcome that could not be stored while the caller waited is sent again, because only the
   attempt that reached it knows it.

Both are conditional on their owner, so they change nothing once another attempt has the key. A
thread or a task sends them, and ends when the store has taken all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Final, NamedTuple

from oncekey.core.commands import Command, Lost, Release
from oncekey.core.effects import CommandResult
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.batches.batch import size_of
from oncekey.engine.clock import Clock, sleep

DEFERRED_MAX: Final = 10_000
DEFERRED_BYTES_MAX: Final = 64 * 1024 * 1024
DEFERRED_FOR_US: Final = 3_600_000_000
SEND_EVERY_US: Final = 1_000_000
# A release that found nothing is sent once more: the claim may have reached the store after it.
RELEASE_AGAIN_US: Final = 5_000_000


class _DeferredWrite(NamedTuple):
    command: Command
    since: int
    due: int
    found_nothing: bool = False


class DeferredWrites:
    """The list of such commands, with its limits. Times are readings of the engine's clock."""

    def __init__(self) -> None:
        self._kept: dict[Command, _DeferredWrite] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, command: Command, now: int) -> None:
        """Add a command. If there is no room, the oldest is dropped, or the oldest large one."""
        self._drop(command)
        while len(self._kept) >= DEFERRED_MAX:
            self._drop(next(iter(self._kept)))
        self._bytes += size_of(command)
        while self._bytes > DEFERRED_BYTES_MAX and (large := self._oldest_large()) is not None:
            self._drop(large)
        self._kept[command] = _DeferredWrite(command, now, now)

    def due(self, now: int) -> list[Command]:
        """The commands to send now; those that were sent for too long are dropped."""
        for deferred in tuple(self._kept.values()):
            if now - deferred.since >= DEFERRED_FOR_US:
                self._drop(deferred.command)
        return [deferred.command for deferred in self._kept.values() if deferred.due <= now]

    def sent(self, command: Command, result: CommandResult) -> None:
        """The store's reply to a command: keep the command only if it has to be sent again."""
        deferred = self._kept.get(command)
        if deferred is None:
            return
        reply = result.reply
        if isinstance(reply, StoreUnavailable) and not reply.final:
            return
        if isinstance(command, Release) and reply == Lost() and not deferred.found_nothing:
            due = result.at + RELEASE_AGAIN_US
            self._kept[command] = deferred._replace(due=due, found_nothing=True)
        else:
            self._drop(command)

    def _oldest_large(self) -> Command | None:
        return next((command for command in self._kept if size_of(command)), None)

    def _drop(self, command: Command) -> None:
        if self._kept.pop(command, None) is not None:
            self._bytes -= size_of(command)


_JOIN_SECONDS = 5


class DeferredWriter:
    """One per engine; safe from any thread."""

    def __init__(
        self, apply_many: Callable[[Sequence[Command]], list[CommandResult]], clock: Clock
    ) -> None:
        self._apply_many = apply_many
        self._clock = clock
        self._writes = DeferredWrites()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, command: Command) -> None:
        with self._lock:
            self._writes.add(command, self._clock.now())
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="oncekey-deferred-writes", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """Send once more, and then no more."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)

    def abandon(self) -> None:
        """The engine was dropped: send once more, without waiting for it."""
        self._stop.set()

    def _run(self) -> None:
        while True:
            self._clock.wait(self._stop, SEND_EVERY_US)
            self.send()
            with self._lock:
                if not len(self._writes) or self._stop.is_set():
                    self._thread = None
                    return

    def send(self) -> None:
        """Send what is due now."""
        with self._lock:
            due = self._writes.due(self._clock.now())
        for command, result in zip(due, self._apply_many(due) if due else (), strict=True):
            with self._lock:
                self._writes.sent(command, result)


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
