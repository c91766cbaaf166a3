"""The commands that a store did not take while their callers waited, to be sent again later.

1. A claim that may have been made although no reply came is released. Otherwise the key would be
   held, and then unknown, though nothing ran.
2. An outcome that could not be stored while the caller waited is sent again, because only the
   attempt that reached it knows it.

Both are conditional on their owner, so they change nothing once another attempt has the key. The
commands are sent by deferred_writer.py in blocking/ and aio/. Must not know stores, threads or
event loops.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from oncekey.core.commands import Command, Lost, Release
from oncekey.core.effects import CommandResult
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.batch import size_of

DEFERRED_MAX: Final = 10_000
DEFERRED_BYTES_MAX: Final = 64 * 1024 * 1024
DEFERRED_FOR_US: Final = 3_600_000_000
SEND_EVERY_US: Final = 1_000_000
# A release that found nothing is sent once more: the claim may have reached the store after it.
RELEASE_AGAIN_US: Final = 5_000_000


class _DeferredWrite(NamedTuple):
    command: Command
    since: int
    due: int
    found_nothing: bool = False


class DeferredWrites:
    """The list of such commands, with its limits. Times are readings of the engine's clock."""

    def __init__(self) -> None:
        self._kept: dict[Command, _DeferredWrite] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, command: Command, now: int) -> None:
        """Add a command. If there is no room, the oldest is dropped, or the oldest large one."""
        self._drop(command)
        while len(self._kept) >= DEFERRED_MAX:
            self._drop(next(iter(self._kept)))
        self._bytes += size_of(command)
        while self._bytes > DEFERRED_BYTES_MAX and (large := self._oldest_large()) is not None:
            self._drop(large)
        self._kept[command] = _DeferredWrite(command, now, now)

    def due(self, now: int) -> list[Command]:
        """The commands to send now; those that were sent for too long are dropped."""
        for deferred in tuple(self._kept.values()):
            if now - deferred.since >= DEFERRED_FOR_US:
                self._drop(deferred.command)
        return [deferred.command for deferred in self._kept.values() if deferred.due <= now]

    def sent(self, command: Command, result: CommandResult) -> None:
        """The store's reply to a command: keep the command only if it has to be sent again."""
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
