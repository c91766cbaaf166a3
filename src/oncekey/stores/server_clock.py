"""The server's clock as seen from here, and how long the reply to a statement is awaited.

If a caller gets the error that nothing ran, nothing may run later, even if the server goes on with
what it finds in its sockets. So each claim carries the time, on the server's clock, after which it
must not be made. This module knows no driver and no statement.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

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
