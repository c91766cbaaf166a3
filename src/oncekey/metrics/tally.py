"""Collects events at the price of an append, and hands them over summed up.

A client library's counter takes longer than an event itself, so events are counted many at a time:
`take` is called with what has come after every TALLY_MAX events, and TALLY_SECONDS after the first
of them at the latest. Must not know any client library.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.core.events import Event, EventKind
from oncekey.engine.event_bus import Observer

TALLY_MAX: Final = 256
TALLY_SECONDS: Final = 1.0

T = TypeVar("T")
_LABELS: Final = itemgetter(*map(Event._fields.index, ("kind", "operation", "route", "surface")))
_CLAIMS: Final = frozenset((EventKind.CLAIMED, EventKind.TAKEOVER))


class Counted(NamedTuple):
    """What events are counted under."""

    kind: EventKind
    operation: str
    route: str
    surface: str


class Durations(NamedTuple):
    """Durations of one operation on one surface, in seconds."""

    claim: list[float]
    body: list[float]
    finish: list[float]


class Sums(NamedTuple):
    """What has come since the last time: decisions by label, durations by operation and surface,
    and the sizes of batches."""

    decisions: dict[Counted, int]
    durations: dict[tuple[str, str], Durations]
    batches: list[int]


class Tally(Observer):
    """Collects events and batches of one engine, and calls `take` with their sums."""

    def __init__(self, take: Callable[[Sums], None]) -> None:
        self._take = take
        self._reset()
        _alive.add(self)

    def _reset(self) -> None:
        """Begin with nothing: at the start, and in a forked child, whose parent counts its own."""
        self._events: deque[Event] = deque()
        self._batches: deque[int] = deque()
        self._lock = threading.Lock()
        self._is_due = False

    def on_event(self, event: Event) -> None:
        self._events.append(event)
        if not self._is_due:
            self._make_due()
        elif len(self._events) >= TALLY_MAX:
            self.flush()

    def on_batch(self, size: int, elapsed_us: int) -> None:
        self._batches.append(size)

    def flush(self) -> None:
        """Hand over what has come so far."""
        with self._lock:
            events, batches = _taken(self._events), _taken(self._batches)
            if events or batches:
                self._take(sums_of(events, batches))

    def _make_due(self) -> None:
        """Have a thread hand over what comes until a second from now, also if nothing comes."""
        self._is_due = True
        # It keeps this tally until then: an engine that is closed and forgotten was counted, too.
        timer = threading.Timer(TALLY_SECONDS, self._flush_due)
        timer.daemon = True
        timer.name = "oncekey-tally"
        try:
            timer.start()
        except RuntimeError:  # the interpreter ends; what has come is handed over at its exit
            pass

    def _flush_due(self) -> None:
        self._is_due = False  # first: whoever comes from now on starts the next timer
        self.flush()


def _taken(queue: deque[T]) -> list[T]:
    """What is in the queue now; others may append meanwhile."""
    return [queue.popleft() for _ in range(len(queue))]


def sums_of(events: list[Event], batches: list[int]) -> Sums:
    """Sum up events and batches."""
    groups: dict[tuple[Any, ...], list[Event]] = {}
    for event in events:
        labels = _LABELS(event)
        group = groups.get(labels)
        if group is None:
            groups[labels] = [event]
        else:
            group.append(event)
    durations: dict[tuple[str, str], Durations] = {}
    for (kind, operation, _, surface), group in groups.items():
        lists = durations.setdefault((operation, surface), Durations([], [], []))
        if kind in _CLAIMS:
            lists.claim.extend([event.elapsed_us / 1_000_000 for event in group])
        else:
            ran = [event for event in group if event.body_us or event.finish_us]
            lists.body.extend([event.body_us / 1_000_000 for event in ran])
            lists.finish.extend([event.finish_us / 1_000_000 for event in ran])
    decisions = {Counted(*labels): len(group) for labels, group in groups.items()}
    return Sums(decisions, durations, batches)


_alive: weakref.WeakSet[Tally] = weakref.WeakSet()


def _flush_all() -> None:
    for tally in list(_alive):
        tally.flush()


def _after_fork() -> None:
    for tally in list(_alive):
        tally._reset()


atexit.register(_flush_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
