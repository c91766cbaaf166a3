"""What a store keeps in mind of its server between calls: whether it replies, its clock, its
settings.

1. After one call without a reply, the calls queued behind it fail at once, until one of them gets
   through (`CircuitBreaker`).
2. If a caller gets the error that nothing ran, nothing may run later, even if the server goes on
   with what it finds in its sockets. So each claim carries the time, on the server's clock, after
   which it must not be made (`ServerClock`).
3. The settings that a guarantee rests on are read again beside a claim, every few seconds
   (`SettingsWatch`).

This module knows no driver, no statement and no setting.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from oncekey.core.errors import StoreUnavailable

# For how long no call is sent after a call without a reply, so that the calls queued behind it do
# not wait as long again. Then one call at a time is sent.
REST_SECONDS: Final = 0.1


class CircuitBreaker:
    """Decides whether a call is sent. Many threads, event loops and processes may use one.

    The call that tries the server again has a deadline for it, not a lock: if it were interrupted
    while it held a lock, no call would ever try again.
    """

    def __init__(
        self,
        seconds: float,
        now: Callable[[], float] = time.monotonic,
        rest_seconds: float | None = None,
    ) -> None:
        """`seconds`: how long a call takes at most; `rest_seconds`: REST_SECONDS if not given."""
        self._seconds = seconds
        self._rest_seconds = REST_SECONDS if rest_seconds is None else rest_seconds
        self._now = now
        self._rests_until: float | None = None  # None: the last call got a reply

    def enter(self) -> bool:
        """True if this call tries whether the server replies again. Raises if the call must not be
        sent."""
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

    def leave(self, is_trial: bool, *, replied: bool | None) -> None:
        """After the call. `replied` says whether the server replied at all; None if the call did
        not wait for that."""
        if replied is not None:
            self._rests_until = None if replied else self._now() + self._rest_seconds
        elif is_trial:
            self._rests_until = self._now()


# The reply is awaited a little longer than the server's statement_timeout, which ends most
# statements with an error. It does not end a commit that waits for a standby, and its error does
# not arrive if the network is silent.
MARGIN_SECONDS: Final = 0.5
# What is left of a call then: to make the server cancel the statement, and to receive that it has.
STOP_SECONDS: Final = 1.0


def reply_deadline(now: float, timeout: float, end: float) -> float:
    """Until when the reply to a statement is awaited, in a call that ends at `end`."""
    return min(now + timeout, end - STOP_SECONDS)


class ServerClock:
    """What the server's replies have revealed of its clock."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._ahead: int | None = (
            None  # at most this many microseconds ahead of our monotonic clock
        )

    def send_time(self) -> int:
        """The time at which something is sent, to be passed to `observe`."""
        return int(self._now() * 1_000_000)

    def observe(self, at: int, sent: int) -> None:
        """The server read its clock as `at` after `sent`, so it is no further ahead than the
        difference. The smallest such bound is the best; a clock that was set back gives smaller
        ones."""
        ahead = at - sent
        if self._ahead is None or ahead < self._ahead:
            self._ahead = ahead

    def forget(self) -> None:
        """The server's clock was set ahead, so the bound is wrong."""
        self._ahead = None

    def at(self, deadline: float) -> int | None:
        """The time on the server's clock, or later, at this time of our monotonic clock: nobody
        waits any more then for what is sent now. None while the server's clock is unknown."""
        return None if self._ahead is None else self._ahead + int(deadline * 1_000_000)


class SettingsWatch:
    """Decides when a claim also reads the server's settings, and passes them on to `notify`."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._now = now
        self._due = 0.0
        self.notify: Callable[[Any], None] = lambda settings: None

    def is_due(self) -> bool:
        """True if this claim must read the settings. So must those that are sent beside it, until
        one of them has: after a pause, what was read before it says nothing."""
        return self._now() >= self._due

    def renew(self) -> None:
        """The settings were read just now."""
        self._due = self._now() + self._seconds

    def expire(self) -> None:
        """Something has happened, so the next claim must read the settings."""
        self._due = 0.0
