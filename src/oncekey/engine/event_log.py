"""The log of what is rare and matters: the logger `oncekey`, at WARNING, without configuration.

Contains which events are worth a line, the text of each, and the limits on repeated ones. A line
names the operation, the scope and the tag; never the key, a request or an answer. The engine gives
rare events to its log always, the usual ones only while the store is down, so that the log costs
nothing where all is well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from oncekey.core.events import Event, EventKind
from oncekey.core.origin import FUNCTION

_log = logging.getLogger("oncekey")

# What a client or an outage can repeat at will gets one line per operation and period, the rest is
# counted. Of the others each is an incident of its own, up to a number per period.
LOG_PERIOD_US: Final = 10_000_000
LINES_MAX: Final = 20
OPERATIONS_MAX: Final = 1_000
SCOPE_MAX_CHARS: Final = 100

_ONE_LINE: Final = frozenset((EventKind.MISMATCH, EventKind.UNPROTECTED))
_TEXTS: Final = {
    EventKind.UNKNOWN: "its outcome is unknown: retries are refused until somebody decides "
    "(recover=, or `oncekey resolve`)",
    EventKind.TAKEOVER: "attempt %(attempt)d took over: the owner before it fell silent",
    EventKind.LOST: "an attempt lost its lease: it was overtaken, and its outcome refused",
    EventKind.UNRECORDED: "the body has ended and its outcome could not be stored",
    EventKind.UNPROTECTED: "the store is down, a request runs without protection",
    EventKind.MISMATCH: "the key belongs to another request, and was refused",
    EventKind.DEAD_LETTER: "its message became a dead letter, with the error attached",
    EventKind.PARKED: "its message is parked until somebody decides the key",
}
# The consumers of queues write these lines themselves, because they know the reason.
_WRITTEN_BY_CONSUMERS: Final = frozenset((EventKind.DEAD_LETTER, EventKind.PARKED))
# The kinds that have lines of their own; of some only a part is written.
RARE: Final = frozenset((*_TEXTS, EventKind.UNAVAILABLE))
# Everything that says that the store has answered.
_ANSWERED: Final = frozenset(
    (
        EventKind.CLAIMED,
        EventKind.TAKEOVER,
        EventKind.FINISHED,
        EventKind.RELEASED,
        EventKind.REPLAYED,
        EventKind.MISMATCH,
        EventKind.IN_FLIGHT,
        EventKind.WAIT_TIMEOUT,
        EventKind.UNKNOWN,
        EventKind.LOST,
    )
)


class LogLine(NamedTuple):
    """One line: its level, what happened, how often that was left out before it, and its name if
    that is not the event's own."""

    level: int
    text: str
    left_out: int = 0
    name: str = ""


class LogLines:
    """Which events become lines, in the order in which they come. Has no logger of its own, so that
    every subscriber that writes lines can have one."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self.store_is_down = False
        # By kind and operation: when the period began, its lines, and what was left out.
        self._periods: dict[tuple[EventKind, str], tuple[int, int, int]] = {}

    def lines_for(self, event: Event) -> list[LogLine]:
        """The lines that an event is worth; most are worth none."""
        kind = event.kind
        lines = []
        if kind is EventKind.UNAVAILABLE:
            if not self.store_is_down:
                self.store_is_down = True
                text = "the store does not answer; nothing is logged of it until it is back"
                lines.append(LogLine(logging.WARNING, text, name="store_down"))
        elif self.store_is_down and kind in _ANSWERED and not event.from_cache:
            self.store_is_down = False
            lines.append(LogLine(logging.WARNING, "the store is back", name="store_back"))
        text = _TEXTS.get(kind, "")
        if text:
            left_out = self._admit(kind, event.operation)
            if left_out is not None:
                text = text % {"attempt": event.attempt}
                lines.append(LogLine(logging.WARNING, text, left_out))
        return lines

    def _admit(self, kind: EventKind, operation: str) -> int | None:
        """How many lines were left out before this one; None if it is left out too."""
        now = self._now()
        most = 1 if kind in _ONE_LINE else LINES_MAX
        if len(self._periods) >= OPERATIONS_MAX:
            self._periods.clear()
        began, count, left_out = self._periods.get((kind, operation), (now, 0, 0))
        if now - began >= LOG_PERIOD_US:
            began, count = now, 0
        if count >= most:
            self._periods[kind, operation] = (began, count, left_out + 1)
            return None
        self._periods[kind, operation] = (began, count + 1, 0)
        return left_out


class EventLog:
    """Writes the lines to the logger `oncekey`."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._lines = LogLines(now)

    @property
    def store_is_down(self) -> bool:
        """True from the event that says so until one that says that it is back."""
        return self._lines.store_is_down

    def write(self, event: Event) -> None:
        if event.kind in _WRITTEN_BY_CONSUMERS:
            return
        for line in self._lines.lines_for(event):
            _log.log(line.level, "%s", sentence(event, line))


def sentence(event: Event, line: LogLine) -> str:
    """The line as text: `charge [5f2d9c01aa34] scope 'acct_1' POST /charges: ...`."""
    parts = [shown(event.operation) or "(no operation)"]
    if event.tag:
        parts.append(f"[{event.tag}]")
    if event.scope:
        parts.append(f"scope {event.scope[:SCOPE_MAX_CHARS]!r}")
    if event.surface != FUNCTION.surface and event.route:
        parts.append(shown(event.route))
    more = f" ({line.left_out} more like this were left out)" if line.left_out else ""
    return f"{' '.join(parts)}: {line.text}{more}"


def shown(text: str) -> str:
    """A name as it may stand in a line: a line break in it must not begin another one."""
    return text if text.isprintable() else repr(text)
