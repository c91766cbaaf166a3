"""How many commands go in one batch, and how a poisoned one is told from its neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from oncekey.core.commands import Command, Reply
from oncekey.core.errors import StoreUnavailable

BATCH_MAX = 256

Outcome = Reply | Exception


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
