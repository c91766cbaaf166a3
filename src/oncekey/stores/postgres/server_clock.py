"""Decides how long a call may take, until when a claim may be made, and when not to ask at all.

A caller that was told "nothing ran" must be right, also where the server goes on later with what it
finds in its sockets. So each claim names the moment, on the server's clock, after which it is not
to be made. And one call that got no answer is enough for those behind it: they are told at once,
until one of them gets through.

Knows no driver and no statement.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from oncekey.core.errors import StoreUnavailable

# After a call without an answer nobody asks for this long, so that those who were queued behind it
# need not wait as long again; then one at a time does.
REST_SECONDS: Final = 0.1


# The answer is waited for a little longer than the server's statement_timeout, which ends most
# things and says so. It does not end a commit that waits for a standby, and it is not heard of
# when the network is silent.
MARGIN_SECONDS: Final = 0.5
# What is left of a call then: to have the server stop, and to hear that it has.
STOP_SECONDS: Final = 1.0


def answer_by(now: float, patience: float, end: float) -> float:
    """Until when the answer to a statement is waited for."""
    return min(now + patience, end - STOP_SECONDS)


class ServerClock:
    """The server's clock, as far as its replies have told."""

    def __init__(self, patience: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        """`patience`: for how many seconds the answer to a statement is waited for."""
        self._patience = patience
        self._now = now
        self._ahead: int | None = None  # microseconds before our monotonic clock, at most

    def sending(self) -> int:
        """The moment something is sent, to be given to `heard`."""
        return int(self._now() * 1_000_000)

    def heard(self, at: int, sent: int) -> None:
        """The server read its clock after `sent`, so it is no further ahead than this. The smallest
        such bound is the best; a clock that was set back gives smaller ones."""
        ahead = at - sent
        if self._ahead is None or ahead < self._ahead:
            self._ahead = ahead

    def forget(self) -> None:
        """The server's clock was set ahead: what was learnt of it is of no use."""
        self._ahead = None

    def not_after(self, end: float) -> int | None:
        """When, on the server's clock, nobody waits any more for the answer to what is sent now, in
        a call that ends at `end`; None while nothing is known of that clock."""
        if self._ahead is None:
            return None
        return self._ahead + int(answer_by(self._now(), self._patience, end) * 1_000_000)


class SettingsWatch:
    """When to have the server's settings told along with a claim, and whom to tell them."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._now = now
        self._due = 0.0
        self.tell: Callable[[str], None] = lambda settings: None

    def is_due(self) -> bool:
        """Whether this claim asks; the next one then need not."""
        if self._now() < self._due:
            return False
        self.renew()
        return True

    def renew(self) -> None:
        """They were read just now."""
        self._due = self._now() + self._seconds

    def expire(self) -> None:
        """Something has happened: the next claim asks."""
        self._due = 0.0


class Breaker:
    """Keeps calls from waiting for a server that does not answer.

    Many threads, event loops and processes may use one. Who tries has a time for it, not a lock:
    were it interrupted in the wrong place, nobody would ever try again.
    """

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        """`seconds`: how long a call takes at most."""
        self._seconds = seconds
        self._now = now
        self._rests_until: float | None = None  # None: the last call was answered

    def enter(self) -> bool:
        """Whether this call is the one that tries; raises where it need not be tried."""
        rests_until = self._rests_until
        if rests_until is None:
            return False
        now = self._now()
        if now < rests_until:
            raise StoreUnavailable(
                "the server gave no answer to the calls before this one; nothing was sent",
                ambiguous=False,
            )
        self._rests_until = now + self._seconds
        return True

    def leave(self, tries: bool, *, answered: bool | None) -> None:
        """After the call: whether the server has said anything at all; None where it was not
        waited for."""
        if answered is not None:
            self._rests_until = None if answered else self._now() + REST_SECONDS
        elif tries:
            self._rests_until = self._now()
