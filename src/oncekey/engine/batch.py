"""How many commands go in one batch, and how a poisoned one is told from its neighbours.

What both coalescers share. Knows no thread, loop or store.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncekey.core.commands import Command, Reply
from oncekey.core.errors import StoreUnavailable

BATCH_MAX = 256
SHARE_MIN = 16  # a smaller batch costs a store nearly as much as one of this size

Outcome = Reply | Exception


def batch_size(queued: int, in_flight: int, lanes: int, most: int) -> int:
    """How many of the queued commands go now: one lane's share of all that is under way.

    Were a free lane to take all, a crowd would move as one: the other lanes would stay empty, and
    Python and the store would work in turns instead of side by side. A few are not split.
    """
    share = -(-(queued + in_flight) // lanes)
    return min(queued, max(share, SHARE_MIN), most)


def check_replies(commands: Sequence[Command], replies: Sequence[Reply]) -> None:
    """A store that answers too few or too many would hand one caller another one's reply."""
    if len(replies) != len(commands):
        raise AssertionError(f"the store gave {len(replies)} replies to {len(commands)} commands")


def shared_by_all(error: Exception) -> bool:
    """Whether a failed batch fails for everyone, or must be tried again one by one.

    An unavailable store is the whole batch's fate. Anything else is the fault of one command,
    and its neighbours must not suffer for it.
    """
    return isinstance(error, StoreUnavailable)
