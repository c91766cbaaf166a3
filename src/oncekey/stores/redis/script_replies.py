"""What the replies of the scripts mean for the commands of a batch.

A script replies the time, and then something of the commands that it did not simply carry out. This
module turns that into replies, and into records that are still to be decided. It sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from oncekey.core.commands import Done, Lost
from oncekey.stores.record_format import Stored, unpack_record
from oncekey.stores.redis import errors
from oncekey.stores.redis.record_calls import Part
from oncekey.stores.repeated_ids import Positioned

_DONE: Final = Done()
_LOST: Final = Lost()


class Found(NamedTuple):
    """A command that its script left to be decided: its record, None if there is none, and when;
    without a record, the highest fence that its key may have had."""

    stored: Stored | None
    now: int
    floor: int = 0


def read_others(
    part: Part,
    answer: list[Any],
    commands: Positioned,
    replies: list[Any],
    left: dict[int, Found],
) -> None:
    """The replies to finishes and renewals, and the records that were looked at."""
    positions = part.positions
    if part.call.script == "look":
        for i, value in zip(positions, answer[1:], strict=True):
            note_found(i, value, int(answer[0]), commands, replies, left)
        return
    for i in positions:
        replies[i] = _DONE
    if part.call.script == "renew":
        for number in answer[1:]:
            replies[positions[number - 1]] = _LOST
    else:
        read_exceptions(positions, answer, commands, replies, left)


def read_exceptions(
    positions: Sequence[int],
    answer: list[Any],
    commands: Positioned,
    replies: list[Any],
    left: dict[int, Found],
) -> None:
    """The commands that a script left alone, each with the record it found."""
    for at in range(1, len(answer), 2):
        i, value = positions[answer[at] - 1], answer[at + 1]
        note_found(i, value, int(answer[0]), commands, replies, left)


def note_found(
    i: int,
    value: bytes | int,
    now: int,
    commands: Positioned,
    replies: list[Any],
    left: dict[int, Found],
) -> None:
    """Take in the record that a command has found: empty if there is none, or a number, the highest
    fence that its key may have had. One that cannot be read is an error of this command alone,
    since the others of its batch have taken effect."""
    replies[i] = None
    if isinstance(value, int):
        left[i] = Found(None, now, value)
        return
    try:
        stored = unpack_record(commands[i].id, value) if value else None
    except ValueError as error:
        replies[i] = errors.unreadable(error)
    else:
        left[i] = Found(stored, now)
