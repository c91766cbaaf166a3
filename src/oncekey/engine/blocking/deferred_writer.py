"""Sends deferred writes to the store from a thread, which ends when the store has taken them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from oncekey.core.commands import Command
from oncekey.core.effects import CommandResult
from oncekey.engine.clock import Clock
from oncekey.engine.deferred_writes import SEND_EVERY_US, DeferredWrites

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
