"""A task that does one thing again and again while its engine lives.

It lives on the event loop that first used the engine; when that loop ends, the next use starts it
again on its own. Owns the task, also across fork. What it does, and what of it may fail, is its
owner's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context

from oncekey.engine.aio.heartbeat import sleep
from oncekey.engine.clock import Clock
from oncekey.engine.lifetime import weakly
from oncekey.engine.periodic_base import warn


class AsyncPeriodicTask:
    """`work` is awaited every `every` microseconds, more or less; what it raises is logged and the
    next period is another try. `ended` is told when the loop took the task with it."""

    def __init__(
        self,
        name: str,
        every: int,
        work: Callable[[], Awaitable[object]],
        clock: Clock,
        ended: Callable[[], None],
    ) -> None:
        self._name = name
        self._every = every
        self._work = weakly(work)
        self._clock = clock
        self._tell_ended = weakly(ended)
        self._stopped = False
        self.reset()

    def reset(self) -> None:
        """No task yet: at the start, and in a forked child."""
        self._lock = threading.Lock()  # loops in several threads may share an engine
        self._task: asyncio.Task[None] | None = None

    def restart(self) -> None:
        """The engine was closed and is opened again."""
        self.reset()
        self._stopped = False

    def start(self) -> None:
        """On the running loop, unless it runs already."""
        with self._lock:
            if self._task is None and not self._stopped:
                # In no context: it must not keep alive what the first caller's holds.
                create_task = asyncio.get_running_loop().create_task
                self._task = Context().run(create_task, self._run())
                self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        with self._lock:
            self._stopped = True
            task = self._task
        if task is None:
            return
        if task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])
        else:
            with suppress(RuntimeError):  # that loop is closed already
                task.get_loop().call_soon_threadsafe(task.cancel)

    def abandon(self) -> None:
        """Its engine was dropped, on whichever thread: stop, without waiting for it."""
        self._stopped = True
        task = self._task
        if task is not None:
            with suppress(RuntimeError):  # that loop is closed already
                task.get_loop().call_soon_threadsafe(task.cancel)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Its loop is about to end, or the engine was closed."""
        if self._task is task:
            self._task = None
            tell_ended = self._tell_ended()
            if tell_ended is not None:
                tell_ended()

    async def _run(self) -> None:
        while True:
            await sleep(self._clock, self._clock.jitter(self._every))
            work = self._work()
            if work is None:
                return  # its engine was dropped
            try:
                await work()
            except Exception as error:  # whatever it was: the next period is another try
                warn(self._name, error)
            del work  # while it sleeps nothing of the engine is held
