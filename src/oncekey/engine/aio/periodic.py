"""A task that does one thing again and again while its engine lives.

It lives on the event loop that first used the engine; when that loop ends, the next use starts the
task again on its own loop. `drive` performs what such a thing is made of: a generator of effects.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from contextvars import Context
from typing import Any, TypeVar

from oncekey.engine.aio.heartbeat import sleep
from oncekey.engine.clock import Clock
from oncekey.engine.lifetime import weak_method
from oncekey.engine.periodic_base import PeriodicTaskBase

T = TypeVar("T")


async def drive(flow: Generator[object, Any, T], perform: Callable[[Any], Awaitable[object]]) -> T:
    """Perform each effect of the flow and send back its result."""
    result: object = None
    while True:
        try:
            effect = flow.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        result = await perform(effect)


class AsyncPeriodicTask(PeriodicTaskBase):
    """`ready` is awaited before `work`, since the store may not have been reached yet. `ended` is
    called when the loop ended and took the task with it."""

    def __init__(
        self,
        name: str,
        every: int,
        work: Callable[[], Awaitable[object]],
        clock: Clock,
        ready: Callable[[], Awaitable[None]],
        ended: Callable[[], None],
    ) -> None:
        self._ready = weak_method(ready)
        self._call_ended = weak_method(ended)
        super().__init__(name, every, work, clock)

    def reset(self) -> None:
        self._lock = threading.Lock()  # loops in several threads may share an engine
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start on the running loop, unless it runs already."""
        with self._lock:
            if self._task is None and not self._stopped:
                # In an empty context: it must not keep alive what the first caller's holds.
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
        """The engine was dropped, on whichever thread: stop, without waiting for it."""
        self._stopped = True
        task = self._task
        if task is not None:
            with suppress(RuntimeError):  # that loop is closed already
                task.get_loop().call_soon_threadsafe(task.cancel)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The loop is about to end, or the engine was closed."""
        if self._task is task:
            self._task = None
            call_ended = self._call_ended()
            if call_ended is not None:
                call_ended()

    async def _run(self) -> None:
        while True:
            await sleep(self._clock, self._clock.jitter(self._every))
            ready, work = self._ready(), self._work()
            if ready is None or work is None:
                return  # the engine was dropped
            try:
                await ready()
                await work()
            except Exception as error:  # whatever it was, it is tried again in the next period
                if not self._stopped:
                    self._log_failure(error)
            del ready, work  # while this sleeps, nothing of the engine is held
