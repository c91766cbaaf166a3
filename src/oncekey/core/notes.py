"""The note of a record: one line for each time that somebody else than its owner decided the key.

A line that is ended by a newline is of an earlier attempt: the key was freed and claimed again.
Owns the format of the note. Pure.
"""

from __future__ import annotations

from typing import Final

NOTE_MAX_CHARS: Final = 1_000  # of one line
NOTE_KEPT_CHARS: Final = 4_000  # of all lines, when a freed key is claimed again
_LATE_OWNER: Final = "; its late owner then reported: "


def ended(note: str) -> str:
    """The note of a key that is claimed or decided again: its lines are ended, and the first ones
    are cut off if they are too many."""
    if not note or note.endswith("\n"):
        return note
    return note[-NOTE_KEPT_CHARS:] + "\n"


def decision(note: str) -> str:
    """The line about the present attempt, without its late owner's report; "" if nobody but the
    owner has decided it."""
    return note.rpartition("\n")[2].partition(_LATE_OWNER)[0]


def with_late_report(note: str, state: str) -> str:
    """The note after the late owner of a decided key has reported its own state."""
    earlier, newline, line = note.rpartition("\n")
    return earlier + newline + line.partition(_LATE_OWNER)[0] + _LATE_OWNER + state


def lines(note: str) -> list[str]:
    """The decisions, oldest first."""
    return note.splitlines()
