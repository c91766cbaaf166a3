"""Keeps the commands that a store did not take while their callers waited.

A claim that may have been made although no answer came is given back, so that the key is not held,
and then unknown, though nothing ran. An outcome that could not be stored in the caller's time is
offered on, for the attempt that reached it is the one witness. Both are compare-and-set on their
owner: whoever goes on with the key has another.

Owns the list and its limits. Knows no store, thread or loop; blocking/deferred_writer.py and
aio/deferred_writer.py offer what is in it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from oncekey.core.commands import Command, Lost, Release
from oncekey.core.effects import CommandResult
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.batch import size_of

LEFTOVERS_MAX: Final = 10_000
LEFTOVERS_BYTES_MAX: Final = 64 * 1024 * 1024
LEFTOVER_KEPT_US: Final = 3_600_000_000
OFFER_EVERY_US: Final = 1_000_000
# A release that found nothing is made once more: the claim may just have been on its way in.
RELEASE_AGAIN_US: Final = 5_000_000


class _DeferredWrite(NamedTuple):
    command: Command
    since: int
    due: int
    found_nothing: bool = False


class DeferredWrites:
    """The list of such commands. Its times are those of the engine's own clock."""

    def __init__(self) -> None:
        self._kept: dict[Command, _DeferredWrite] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, command: Command, now: int) -> None:
        """Keep it; where there is no more room, the oldest goes, or the oldest large one."""
        self._drop(command)
        while len(self._kept) >= LEFTOVERS_MAX:
            self._drop(next(iter(self._kept)))
        self._bytes += size_of(command)
        while self._bytes > LEFTOVERS_BYTES_MAX and (large := self._oldest_large()) is not None:
            self._drop(large)
        self._kept[command] = _DeferredWrite(command, now, now)

    def due(self, now: int) -> list[Command]:
        for deferred in tuple(self._kept.values()):
            if now - deferred.since >= LEFTOVER_KEPT_US:
                self._drop(deferred.command)
        return [deferred.command for deferred in self._kept.values() if deferred.due <= now]

    def take(self, command: Command, result: CommandResult) -> None:
        """What the store said to one of them."""
        deferred = self._kept.get(command)
        if deferred is None:
            return
        reply = result.reply
        if isinstance(reply, StoreUnavailable) and not reply.final:
            return
        if isinstance(command, Release) and reply == Lost() and not deferred.found_nothing:
            due = result.at + RELEASE_AGAIN_US
            self._kept[command] = deferred._replace(due=due, found_nothing=True)
        else:
            self._drop(command)

    def _oldest_large(self) -> Command | None:
        return next((command for command in self._kept if size_of(command)), None)

    def _drop(self, command: Command) -> None:
        if self._kept.pop(command, None) is not None:
            self._bytes -= size_of(command)
