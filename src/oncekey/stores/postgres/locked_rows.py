"""Sends a batch on without those of its rows that another session holds locked.

A batch waits for locks only briefly. Where that was not enough, it is found out whose rows are
locked (an operator's open transaction, a report that locks what it reads); the batch goes again
without them, and they are told by themselves. Which they are is remembered for a moment, so that
the next batch with one of them asks first.

Owns what is set apart and for how long. Runs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from oncekey.core.commands import Command, Reply
from oncekey.core.errors import StoreUnavailable
from oncekey.stores.postgres import errors

# How long a batch waits for a row lock before it is found out whose that is. Other batches are
# done sooner, as a rule.
BATCH_LOCK_US: Final = 100_000
# How long a row that was locked is asked for first, and how many are remembered.
LOCKED_SECONDS: Final = 1.0
LOCKED_MAX: Final = 10_000


class LockedRows:
    """Rows that were locked lately; one such list per store."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until: dict[bytes, float] = {}

    def __bool__(self) -> bool:
        return bool(self._until)

    def among(self, commands: Iterable[Command]) -> set[bytes]:
        now = self._now()
        return {c.id for c in commands if self._until.get(c.id, 0.0) > now}

    def note(self, asked: Iterable[bytes], locked: set[bytes]) -> None:
        now = self._now()
        for id in asked:
            self._until.pop(id, None)
        if len(self._until) + len(locked) > LOCKED_MAX:
            self._until.clear()
        self._until.update(dict.fromkeys(locked, now + LOCKED_SECONDS))


class Isolation:
    """One batch on its way. `suspects` are ids to ask about before it goes (again)."""

    def __init__(self, commands: Sequence[Command], rows: LockedRows, patience: float) -> None:
        self._commands = commands
        self._rows = rows
        self._locked: set[bytes] = set()
        self._end = time.monotonic() + patience
        self.suspects = rows.among(commands) if rows else set()

    @property
    def free(self) -> Sequence[Command]:
        """What is not set apart."""
        if not self._locked:
            return self._commands
        return [c for c in self._commands if c.id not in self._locked]

    def goes_on(self, error: StoreUnavailable) -> bool:
        """Whether the batch failed for a lock and may do without who is locked."""
        if errors.state_of(error.__cause__) != errors.LOCKED or time.monotonic() > self._end:
            return False
        self.suspects = {command.id for command in self.free}
        return True

    def found(self, locked: Iterable[bytes]) -> None:
        """Who is locked among the suspects."""
        these = set(locked)
        self._rows.note(self.suspects, these)
        self._locked |= these
        self.suspects = set()

    def merge(self, replies: Sequence[Reply]) -> list[Reply]:
        """Replies to all commands; those that were set apart get an error in place of one."""
        if not self._locked:
            return list(replies)
        error = StoreUnavailable(
            "another session holds a lock on this key's row; find it in pg_locks, or wait"
        )
        if not replies:
            raise error
        told = iter(replies)
        return [
            error if command.id in self._locked else next(told)  # type: ignore[misc]
            for command in self._commands
        ]
