"""Rules that several stores share: the host's clock, how long an election holds, one secret, and
commands of one batch that have the same id.

A store that lives on this host (SQLite, memory) reads the host's clock once per decision; the clock
is injected, so that tests can move it. In a herd on one key most claims of a batch have the same
id. They are applied one after the other, and the reply to the second and later ones usually follows
from the reply to the first, so they are answered without a statement. This module knows no store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from oncekey.core.commands import Claim, Claimed, Command, Reply
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.state_machine import reply_to_duplicate

StoreClock = Callable[[], int]


def wall_clock() -> int:
    """The host's clock in microseconds."""
    return time.time_ns() // 1_000


def election_holds(since: int, until: int, now: int) -> bool:
    """True if an election is still valid at `now`.

    It is valid for its lease. If the clock was set back, it also stays valid for one lease before
    it began, and not longer: a process that died must not stay elected until the clock catches up.
    """
    return 2 * since - until < now < until


def check_same_secret(remembered: bytes, given: bytes) -> None:
    """Raise ConfigurationError if the check values differ: a store has one secret for its whole
    life (S8), because under a second secret no key would find its record."""
    if remembered != given:
        raise ConfigurationError(
            "this store was first opened with another secret; with two secrets no key "
            "would meet its earlier record. Use the first secret, or an empty store"
        )


# Some commands of a batch, by their position in it.
Positioned = dict[int, Command]


def split_by_id(commands: Sequence[Command]) -> list[Positioned]:
    """The commands in groups of distinct ids: one group, unless an id occurs twice."""
    if len({command.id for command in commands}) == len(commands):
        return [dict(enumerate(commands))]
    groups: list[Positioned] = [{}]
    seen: dict[bytes, int] = {}
    for i, command in enumerate(commands):
        number = seen.get(command.id, 0)
        seen[command.id] = number + 1
        if number == len(groups):
            groups.append({})
        groups[number][i] = command
    return groups


class EarlierReplies:
    """The replies to a batch's claims, for later claims of the same ids."""

    def __init__(self) -> None:
        self.owners: dict[bytes, bytes | None] = {}  # of the records that were read
        self._last: dict[bytes, tuple[Claim, Reply] | None] = {}

    def note(self, group: Positioned, replies: list[Reply | None]) -> None:
        """Remember the replies to a group of commands."""
        for i, command in group.items():
            reply = replies[i]
            if not isinstance(command, Claim) or reply is None:
                self._last[command.id] = None
                continue
            # If it was claimed again, the record need not have this claim's fingerprint.
            is_again = type(reply) is Claimed and self.owners.get(command.id) == command.owner
            self._last[command.id] = None if is_again else (command, reply)
            if type(reply) is Claimed:
                self.owners[command.id] = command.owner

    def reply_to(self, i: int, command: Command, replies: list[Reply | None]) -> bool:
        """Set the reply to the command at position `i`, if it follows from an earlier one. True if
        it does."""
        last = self._last.get(command.id)
        if last is None or type(command) is not Claim or command.id not in self.owners:
            return False
        if command.owner in (last[0].owner, self.owners[command.id]):
            return False  # the same claim again, because its reply was lost
        replies[i] = reply_to_duplicate(*last, command)
        return replies[i] is not None


def raise_if_all_failed(replies: list[Any]) -> None:
    """Errors in place of all replies are the error of the whole batch. If one of the commands may
    have taken effect, so may the batch."""
    if replies and all(isinstance(reply, StoreUnavailable) for reply in replies):
        raise next((error for error in replies if error.ambiguous), replies[0])
