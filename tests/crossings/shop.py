"""The shop that every surface guards: it charges a card, and counts what it does.

A run is one call of the body, an effect what the outside world sees of it. The provider of a body
that may run again deduplicates by the attempt's child key, as README asks for; in a transaction an
effect is a row of the caller's database.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, NamedTuple

from oncekey import current_attempt


class Answer(NamedTuple):
    """How one call ended, in the same words on every surface.

    kind    "done", "mismatch", "unknown", "failed" for an error that was stored, "raised" for one
            of the body itself, "died", or "refused"
    value   what the body returned, with the status of a response
    error   what it was refused with
    """

    kind: str
    value: Any = None
    error: BaseException | None = None


class Declined(Exception):
    """The body raises it once it has had its effect."""


class Killed(BaseException):
    """The process ends inside the body. In a transaction the database rolls back what it did."""


class Shop:
    """`declines` and `kills` are the keys whose next run ends so."""

    def __init__(self, *, dedups: bool) -> None:
        self.runs: Counter[str] = Counter()
        self.declines: set[str] = set()
        self.kills: set[str] = set()
        self._dedups = dedups
        self._effects: set[tuple[str, str]] = set()
        self._numbers = itertools.count()

    def charge(self, key: str, cents: int) -> dict[str, Any]:
        """The body. Its value tells one run from another."""
        self.runs[key] += 1
        name = str(next(self._numbers))
        if self._dedups:
            attempt = current_attempt()
            assert attempt is not None, "a body has no attempt"
            name = attempt.child_key("charge")
        self._effects.add((key, name))
        return self.end(key, cents)

    def end(self, key: str, cents: int) -> dict[str, Any]:
        if key in self.declines:
            self.declines.remove(key)
            raise Declined("the card was declined")
        if key in self.kills:
            self.kills.remove(key)
            raise Killed
        return {"charge": f"ch_{key}_{self.runs[key]}", "cents": cents}

    def count_run(self, key: str) -> None:
        """A run whose effect is a row."""
        self.runs[key] += 1

    def effects(self) -> Counter[str]:
        return Counter(key for key, _ in self._effects)
