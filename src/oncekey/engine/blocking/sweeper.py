"""A thread that sweeps the store while its engine is elected to.

Owns the thread; when and how much is in engine/sweeping.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from oncekey.core.contract import Store
from oncekey.engine.clock import Clock, new_owner
from oncekey.engine.sweeping import SweepPlan, rest_after, warn

_JOIN_SECONDS = 5


class Sweeper:
    def __init__(
        self, store: Store, plan: SweepPlan, clock: Clock, ready: Callable[[], None]
    ) -> None:
        self._store = store
        self._plan = plan
        self._clock = clock
        self._ready = ready
        self._stopped = False
        self.reset()

    def reset(self) -> None:
        """No thread yet: at the start, and in a forked child, which is another candidate."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._token = new_owner()

    def start(self) -> None:
        with self._lock:
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(
                    target=self._run, name="oncekey-sweeper", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._clock.wait(self._stop, self._clock.jitter(self._plan.every)):
            try:
                self._ready()
                self._sweep()
            except Exception as error:  # whatever it was: the next period is another try
                if not self._stop.is_set():
                    warn(error)

    def _sweep(self) -> None:
        """Until nothing is left or the next period is due, if we are the elected one."""
        due = self._clock.now() + self._plan.every
        if not self._store.elect(self._token, self._plan.lease):
            return
        began = self._clock.now()
        while self._store.sweep(self._plan.limit):
            ended = self._clock.now()
            if self._stop.is_set() or ended >= due:
                return
            if self._clock.wait(self._stop, rest_after(ended - began)):
                return
            began = self._clock.now()
