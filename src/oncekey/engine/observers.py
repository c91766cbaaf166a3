"""Observers watch attempts more closely than events can: from inside, for histograms and spans.

An `Observer` gets the events, and is called around each body and step and after each batch. Without
subscribers and observers nothing is measured: a runner makes a `Measured` only if somebody listens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from oncekey.core.events import Event

_log = logging.getLogger("oncekey")

End = Callable[[], object]


class Observer:
    """What an observer may do; each method does nothing by default.

    `on_body` and `on_step` are called in the thread or task of the body, directly before the body
    or the step's function. What they return is called directly after it, there too, unless it is
    None; so a context variable that was set can be set back.
    """

    def on_event(self, event: Event) -> None:
        """A decision was made."""

    def on_body(self, event: Event) -> End | None:
        """A body is about to run; the event is that of its claim."""

    def on_step(self, operation: str, tag: str, step: str) -> End | None:
        """A step's function is about to be called."""

    def on_batch(self, size: int, elapsed_us: int) -> None:
        """A batch of commands was sent to the store, and took so long."""


class Measured:
    """The event of one attempt's claim, when its body began and ended on the engine's clock, and
    what the observers want to be called at its end."""

    __slots__ = ("began_at", "claimed", "ended_at", "ends")

    def __init__(self, claimed: Event) -> None:
        self.claimed = claimed
        self.began_at = 0
        self.ended_at = 0
        self.ends: Sequence[End] = ()

    def end(self, now: int) -> None:
        """The body has ended. Called again, or if it never began, this changes nothing."""
        if self.began_at and not self.ended_at:
            self.ended_at = now
            if self.ends:
                ends, self.ends = self.ends, ()
                call_ends(ends)


def call_ends(ends: Sequence[End]) -> None:
    for end in ends:
        try:
            end()
        except Exception:
            _log.exception("an observer failed")


@contextmanager
def observed(ends: Sequence[End]) -> Iterator[None]:
    """Call what observers want to be called, however the block ends."""
    try:
        yield
    finally:
        call_ends(ends)
