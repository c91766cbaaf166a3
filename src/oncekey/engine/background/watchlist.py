"""The unfinished records that a completer knows of, and when it looks at each again.

The store lists unfinished records once, in the order of their latest claims. Each is remembered
until it ends, and looked at by its id. So a batch of completions costs what is new and what is due,
not what is stored. Must not know stores, threads or event loops.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final, NamedTuple

from oncekey.core.abandoned import backoff, has_begun_steps
from oncekey.core.record import State
from oncekey.core.store import Unfinished

WATCHED_MAX: Final = 10_000
PAGE: Final = 500  # how many records are listed at a time
LOOKS: Final = 100  # how many are looked at in one command batch
# A claim may become visible some time after the moment it is dated to.
MARGIN_US: Final = 15_000_000
# Records that became visible later than that, or while the store's clock was set, are found when
# everything is listed again.
LIST_ALL_US: Final = 3_600_000_000


class _Watched(NamedTuple):
    """One record.

    due            when to look at it again
    recover_calls  how often `recover` was called and could not tell
    ran_here       it was run again here, and that failed
    left           why nothing is done about it, as it was reported
    """

    due: int
    recover_calls: int = 0
    ran_here: bool = False
    left: str = ""


class Watchlist:
    """Due times and `now` are readings of the engine's own clock; the cursor `after` is the
    store's."""

    def __init__(self) -> None:
        self.after = 0
        self._list_all_at = 0
        self._watched: dict[bytes, _Watched] = {}

    def __len__(self) -> int:
        return len(self._watched)

    def begin_listing(self, now: int) -> None:
        """Go back to the first record, if it is time to list everything again."""
        if not self._list_all_at or now >= self._list_all_at:
            self._list_all_at = now + LIST_ALL_US
            self.after = 0

    def list_all(self) -> None:
        """List everything next time: an operation was registered whose records were skipped."""
        self._list_all_at = 0

    def has_room(self) -> bool:
        """Whether more records can be watched. If not, those that are left alone are dropped."""
        if len(self._watched) >= WATCHED_MAX:
            self._watched = {id: seen for id, seen in self._watched.items() if not seen.left}
        return len(self._watched) < WATCHED_MAX

    def add(self, found: Unfinished, operations: Container[str], now: int) -> bool:
        """Watch the listed records of these operations; True if there may be more to list now."""
        for record in found.records:
            # A record that was freed before any step is its caller's; a new claim is listed again.
            is_open = record.state is not State.ABSENT or has_begun_steps(record)
            if record.operation in operations and is_open:
                self._watched.setdefault(record.id, _Watched(now))
        if len(found.records) < PAGE:
            self.after = found.now - MARGIN_US
            return False
        self.after = found.records[-1].fence
        return True

    def due(self, now: int) -> list[bytes]:
        """The ids of the records that are due, those that have waited longest first."""
        return [id for id, watched in self._watched.items() if watched.due <= now]

    def recover_calls(self, id: bytes) -> int:
        watched = self._watched.get(id)
        return watched.recover_calls if watched is not None else 0

    def ran_here(self, id: bytes) -> bool:
        watched = self._watched.get(id)
        return watched is not None and watched.ran_here

    def forget(self, id: bytes) -> None:
        self._watched.pop(id, None)

    def postpone(self, id: bytes, due: int) -> None:
        self._set(id, due=due)

    def leave(self, id: bytes, due: int, why: str) -> bool:
        """Do nothing about a record until `due`; True if the reason was not reported before."""
        watched = self._watched.get(id)
        self._set(id, due=due, left=why)
        return watched is not None and watched.left != why

    def recover_failed(self, id: bytes, now: int) -> None:
        """Its `recover` could not tell, or raised: call it again after a growing pause."""
        calls = self.recover_calls(id)
        self._set(id, due=now + backoff(calls), recover_calls=calls + 1)

    def run_failed(self, id: bytes, now: int) -> None:
        """Look at it soon: its record says when it may be run again."""
        self._set(id, due=now, ran_here=True)

    def _set(self, id: bytes, **changes: Any) -> None:
        watched = self._watched.pop(id, None)
        if watched is not None:
            # At the end of the dict, so that `due` begins with those that have waited longest.
            self._watched[id] = watched._replace(**{"left": "", **changes})
