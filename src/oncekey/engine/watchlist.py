"""What a completer has seen and when it looks again, without doing any of it.

The store is asked for unfinished records once, by when they were claimed last; each is remembered
until it ends and looked at by its id. So a round costs what is new and what is due, not what is
stored. Owns the cursor, the list and its limit. Knows no store and no thread.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final, NamedTuple

from oncekey.core.abandoned import backoff, has_begun_steps
from oncekey.core.record import State
from oncekey.core.store import Unfinished

WATCHED_MAX: Final = 10_000
PAGE: Final = 500  # how many are listed at a time
LOOKS: Final = 100  # ... and looked at
# A claim may become visible some time after the moment it is dated to.
MARGIN_US: Final = 15_000_000
# What came later than that, or while the store's clock was set, is found by listing all again.
WHOLE_US: Final = 3_600_000_000


class _Watched(NamedTuple):
    due: int
    asked: int = 0
    driven: bool = False
    left: str = ""  # why nothing is done about it, as it was told


class Watchlist:
    """Times are the engine's own clock's, `due` and `now` alike; the cursor is the store's."""

    def __init__(self) -> None:
        self.after = 0
        self._whole_at = 0
        self._watched: dict[bytes, _Watched] = {}

    def __len__(self) -> int:
        return len(self._watched)

    def begin(self, now: int) -> None:
        """A round of listing begins."""
        if not self._whole_at or now >= self._whole_at:
            self._whole_at = now + WHOLE_US
            self.after = 0

    def list_all(self) -> None:
        """Something is wanted now that was passed over before."""
        self._whole_at = 0

    def has_room(self) -> bool:
        """Whether more can be watched. Before there is none, those go that are left alone."""
        if len(self._watched) >= WATCHED_MAX:
            self._watched = {id: seen for id, seen in self._watched.items() if not seen.left}
        return len(self._watched) < WATCHED_MAX

    def add(self, found: Unfinished, operations: Container[str], now: int) -> bool:
        """Remember what was listed of these; whether there may be more of it to list at once."""
        for record in found.records:
            # One freed before any step is its caller's; claimed again, it is listed again.
            is_open = record.state is not State.ABSENT or has_begun_steps(record)
            if record.operation in operations and is_open:
                self._watched.setdefault(record.id, _Watched(now))
        if len(found.records) < PAGE:
            self.after = found.now - MARGIN_US
            return False
        self.after = found.records[-1].fence
        return True

    def due(self, now: int) -> list[bytes]:
        """Those whose time has come, longest waiting first."""
        return [id for id, watched in self._watched.items() if watched.due <= now]

    def asked(self, id: bytes) -> int:
        watched = self._watched.get(id)
        return watched.asked if watched is not None else 0

    def driven(self, id: bytes) -> bool:
        watched = self._watched.get(id)
        return watched is not None and watched.driven

    def forget(self, id: bytes) -> None:
        self._watched.pop(id, None)

    def later(self, id: bytes, due: int) -> None:
        self._set(id, due=due)

    def leave(self, id: bytes, due: int, why: str) -> bool:
        """Whether that is news."""
        watched = self._watched.get(id)
        self._set(id, due=due, left=why)
        return watched is not None and watched.left != why

    def asked_in_vain(self, id: bytes, now: int) -> None:
        asked = self.asked(id)
        self._set(id, due=now + backoff(asked), asked=asked + 1)

    def run_in_vain(self, id: bytes, now: int) -> None:
        """Its record tells when it may be run again; look at it soon."""
        self._set(id, due=now, driven=True)

    def _set(self, id: bytes, **changes: Any) -> None:
        watched = self._watched.pop(id, None)
        if watched is not None:
            # At the end of the list: of many that are due, those come first that waited longest.
            self._watched[id] = watched._replace(**{"left": "", **changes})
