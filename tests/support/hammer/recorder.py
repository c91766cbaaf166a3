"""A store that logs every command with its reply, and gets in the way.

Some commands are dropped before they reach the store, some replies on their way back, and sometimes
the process ends. The log knows what was applied; the worker does not.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from typing import Any

from tests.support.hammer.command_log import Log, entry, monotonic_us

from oncekey.core.commands import Command, Reply, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import Record
from oncekey.core.search import Cursor, Measures, Page, Query
from oncekey.core.store import SWEEP_LIMIT_DEFAULT, CallerTransaction, Store, Unfinished

CRASHED = 7  # the exit code of a worker that crashed on purpose

LOSE_REPLY = 0.05
LOSE_COMMAND = 0.02
CRASH = 0.003


class Recorder:
    """A store that logs every command, and sometimes drops the command or its reply, or ends the
    process."""

    immediate = True  # no batches by the engine: the worker makes batches itself
    max_in_flight = 1

    def __init__(self, inner: Store, log: Log, dice: random.Random, *, crashes: bool) -> None:
        self.inner = inner
        self.guarantee = inner.guarantee
        self.lazy = inner.lazy
        self._log = log
        self._dice = dice
        self._crashes = crashes
        self._in_flight = 0
        self._lock = threading.Lock()

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        fate = self._dice.random()
        if fate < LOSE_COMMAND:
            self._log.count("lost commands", len(commands))
            raise StoreUnavailable("the hammer lost this command", ambiguous=True)
        seen = fate > LOSE_COMMAND + LOSE_REPLY
        replies = self._applied(commands, seen=seen)
        if self._crashes and fate > 1 - CRASH:
            self._crash()
        if not seen:
            self._log.count("lost replies", len(commands))
            raise StoreUnavailable("the hammer lost this reply", ambiguous=True)
        return replies

    def _applied(self, commands: Sequence[Command], *, seen: bool) -> list[Reply]:
        with self._lock:
            self._in_flight += 1
        try:
            sent = monotonic_us()
            try:
                replies = self.inner.apply(commands)
            except Exception:  # whatever was raised, the commands may have been applied
                came = monotonic_us()
                self._log.write(*(entry(one, None, sent, came, seen=False) for one in commands))
                raise
            came = monotonic_us()
            pairs = zip(commands, replies, strict=True)
            self._log.write(*(entry(one, reply, sent, came, seen=seen) for one, reply in pairs))
            return replies
        finally:
            with self._lock:
                self._in_flight -= 1

    def _crash(self) -> None:
        """End the process, unless a call of another thread is in flight, whose reply would not be
        logged."""
        with self._lock:
            if not self._in_flight:
                self._log.count("crashes")
                os._exit(CRASHED)

    def bind(self, check: bytes, /) -> Seen:
        return self.inner.bind(check)

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int:
        return self.inner.sweep(limit)

    def elect(self, token: bytes, lease: int, /) -> bool:
        return self.inner.elect(token, lease)

    def unfinished(self, after: int, limit: int, /) -> Unfinished:
        return self.inner.unfinished(after, limit)

    def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        return self.inner.search(query, limit, after)

    def history(self, id: bytes, /) -> list[Record]:
        return self.inner.history(id)

    def measure(self) -> Measures:
        return self.inner.measure()

    def join(self, connection: Any, /) -> CallerTransaction:
        return self.inner.join(connection)

    def close(self) -> None:
        self.inner.close()
