"""Lets a batch succeed although another session holds locks on some of its rows.

A batch waits for locks only briefly. If that is not enough, the locked rows are identified (an
operator's open transaction, a report that locks what it reads), the batch is sent again without
their commands, and those commands get an error of their own. The locked rows are remembered for a
moment, so that the next batch with one of them checks first.

This module decides which commands are left out and for how long. It runs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from oncekey.core.commands import Command, Reply
from oncekey.core.errors import StoreUnavailable
from oncekey.stores.postgres import errors

# How long a batch waits for a row lock before locked rows are identified. The lock of another batch
# is usually released sooner.
BATCH_LOCK_US: Final = 100_000
# For how long a locked row is remembered, and how many are remembered at most.
LOCKED_SECONDS: Final = 1.0
LOCKED_MAX: Final = 10_000


class LockedRows:
    """The rows that were locked recently. A store has one such list."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until: dict[bytes, float] = {}

    def __bool__(self) -> bool:
        return bool(self._until)

    def locked_among(self, commands: Iterable[Command]) -> set[bytes]:
        now = self._now()
        return {c.id for c in commands if self._until.get(c.id, 0.0) > now}

    def update(self, checked: Iterable[bytes], locked: set[bytes]) -> None:
        """Some rows were checked, and these of them are locked."""
        now = self._now()
        for id in checked:
            self._until.pop(id, None)
        if len(self._until) + len(locked) > LOCKED_MAX:
            self._until.clear()
        self._until.update(dict.fromkeys(locked, now + LOCKED_SECONDS))


class LockAwareBatch:
    """One batch to be sent. `suspects` are ids to be checked before it is sent (again)."""

    def __init__(self, commands: Sequence[Command], rows: LockedRows, wait_seconds: float) -> None:
        self._commands = commands
        self._rows = rows
        self._locked: set[bytes] = set()
        self._end = time.monotonic() + wait_seconds
        self.suspects = rows.locked_among(commands) if rows else set()

    @property
    def free(self) -> Sequence[Command]:
        """The commands whose rows are not locked."""
        if not self._locked:
            return self._commands
        return [c for c in self._commands if c.id not in self._locked]

    def should_retry(self, error: StoreUnavailable) -> bool:
        """True if the batch failed because of a lock and is to be sent again without the locked
        rows; its rows are then suspects."""
        if errors.sqlstate_of(error.__cause__) != errors.LOCKED or time.monotonic() > self._end:
            return False
        self.suspects = {command.id for command in self.free}
        return True

    def leave_out(self, locked: Iterable[bytes]) -> None:
        """The suspects were checked, and these of them are locked."""
        now_locked = set(locked)
        self._rows.update(self.suspects, now_locked)
        self._locked |= now_locked
        self.suspects = set()

    def merge(self, replies: Sequence[Reply]) -> list[Reply]:
        """The replies to all commands. A command whose row is locked gets an error as its reply."""
        if not self._locked:
            return list(replies)
        error = StoreUnavailable(
            "another session holds a lock on this key's row; find it in pg_locks, or wait"
        )
        if not replies:
            raise error
        remaining = iter(replies)
        return [
            error if command.id in self._locked else next(remaining)  # type: ignore[misc]
            for command in self._commands
        ]
