"""A thread that does one thing again and again while its engine lives, also across fork.

`drive` performs what such a thing is made of: a generator of effects.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from oncekey.engine.clock import Clock
from oncekey.engine.lifetime import weak_method
from oncekey.engine.periodic_base import PeriodicTaskBase

_JOIN_SECONDS = 5

T = TypeVar("T")


def drive(flow: Generator[object, Any, T], perform: Callable[[Any], object]) -> T:
    """Perform each effect of the flow and send back its result."""
    result: object = None
    while True:
        try:
            effect = flow.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        result = perform(effect)


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
