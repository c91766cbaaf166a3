"""Keeps calls from waiting for a server that does not reply.

After one call without a reply, the calls queued behind it fail at once, until one of them gets
through. This module knows no driver and no statement.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

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
