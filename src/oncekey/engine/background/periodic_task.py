"""A thread or a task that does one thing again and again while its engine lives.

It sweeps the store, or completes abandoned operations. The thread begins again in a forked child.
The task lives on the event loop that first used the engine; when that loop ends, the next use
starts it again on its own loop. The checks of the options that say how often are here too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from typing import Any, Final, TypeVar

from oncekey.core.duration import Duration, human, microseconds
from oncekey.core.errors import ConfigurationError, OncekeyError
from oncekey.engine.clock import Clock, sleep
from oncekey.engine.lifetime import weak_method

EVERY_MIN_US: Final = 100_000
EVERY_MAX_US: Final = 24 * 3_600_000_000

_log = logging.getLogger("oncekey")


class PeriodicTaskBase(ABC):
    """`work` is called about every `every` microseconds; what it raises is logged, and it is tried
    again in the next period. Its object is not kept alive."""

    def __init__(self, name: str, every: int, work: Callable[[], object], clock: Clock) -> None:
        self._name = name
        self._every = every
        self._work = weak_method(work)
        self._clock = clock
        self._stopped = False
        self.reset()

    @abstractmethod
    def reset(self) -> None:
        """Begin without a thread or task: at the start, and in a forked child."""

    def restart(self) -> None:
        """The engine was closed and is reopened."""
        self.reset()
        self._stopped = False

    def _log_failure(self, error: Exception) -> None:
        """Of an error that is not ours only the type is logged: its text might contain data."""
        reason = str(error) if isinstance(error, OncekeyError) else "see the store's own log"
        kind = type(error).__name__
        _log.warning("the %s failed, %s: %s; it tries again", self._name, kind, reason)


def check_period(name: str, every: Duration | None) -> int | None:
    """The option `name` in microseconds, checked; None if there is no such period."""
    if every is None:
        return None
    us = microseconds(every, name=name)
    if not EVERY_MIN_US <= us <= EVERY_MAX_US:
        low, high = human(EVERY_MIN_US), human(EVERY_MAX_US)
        raise ConfigurationError(f"{name}={every!r} must be {low} to {high}, None for never")
    return us


def check_limit(name: str, limit: Any, what: str) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ConfigurationError(f"{name}={limit!r} must be a number of {what}, 1 or more")
    return limit


_JOIN_SECONDS = 5

T = TypeVar("T")


class PeriodicTask(PeriodicTaskBase):
    """`ready` is called before `work`, since a store may be lazy."""

    def __init__(
        self,
        name: str,
        every: int,
        work: Callable[[], object],
        clock: Clock,
        ready: Callable[[], None],
    ) -> None:
        self._ready = weak_method(ready)
        super().__init__(name, every, work, clock)

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        with self._lock:
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(
                    target=self._run, name=f"oncekey-{self._name}", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def abandon(self) -> None:
        """The engine was dropped: stop, without waiting for it."""
        self._stopped = True
        self._stop.set()

    def _run(self) -> None:
        while not self._clock.wait(self._stop, self._clock.jitter(self._every)):
            ready, work = self._ready(), self._work()
            if ready is None or work is None:
                return  # the engine was dropped
            try:
                ready()
                work()
            except Exception as error:  # whatever it was, it is tried again in the next period
                if not self._stop.is_set():
                    self._log_failure(error)
            del ready, work  # while this sleeps, nothing of the engine is held


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
