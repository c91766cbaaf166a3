"""A thread that does one thing again and again while its engine lives.

Owns the thread, also across fork. What it does, and what of it may fail, is its owner's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from oncekey.engine.clock import Clock
from oncekey.engine.lifetime import weakly
from oncekey.engine.periodic_base import warn

_JOIN_SECONDS = 5


class PeriodicTask:
    """`work` is called every `every` microseconds, more or less; what it raises is logged and the
    next period is another try. `ready` is called before, since a store may be lazy."""

    def __init__(
        self,
        name: str,
        every: int,
        work: Callable[[], object],
        clock: Clock,
        ready: Callable[[], None],
    ) -> None:
        self._name = name
        self._every = every
        self._work = weakly(work)
        self._clock = clock
        self._ready = weakly(ready)
        self._stopped = False
        self.reset()

    def reset(self) -> None:
        """No thread yet: at the start, and in a forked child."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def restart(self) -> None:
        """The engine was closed and is opened again."""
        self.reset()
        self._stopped = False

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
        """Its engine was dropped: stop, without waiting for it."""
        self._stopped = True
        self._stop.set()

    def _run(self) -> None:
        while not self._clock.wait(self._stop, self._clock.jitter(self._every)):
            ready, work = self._ready(), self._work()
            if ready is None or work is None:
                return  # its engine was dropped
            try:
                ready()
                work()
            except Exception as error:  # whatever it was: the next period is another try
                if not self._stop.is_set():
                    warn(self._name, error)
            del ready, work  # while it sleeps nothing of the engine is held
