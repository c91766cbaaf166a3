"""The timeline of a key: its attempts, steps, decisions and end, placed on one axis of time.

The axis is not linear, since a key may live for milliseconds and then wait for days: the width of
an interval grows with the logarithm of its length. Positions are percentages. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from oncekey.core.record import decision, lines
from oncekey.dashboard.display import span, when
from oncekey.engine.keys.key_status import KeyStatus, time_of

LABEL_MIN_PERCENT: Final = 12.0  # narrower intervals have no room for their length

_LEAST_WIDTH: Final = 0.35
_NOTE_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) ")
_RIGHTMOST: Final = 96.0  # room for the last mark


class Bar(NamedTuple):
    """A bar of a row. `kind` is its look: held, lease, silent, earlier or open."""

    kind: str
    x: float
    width: float


class Row(NamedTuple):
    """One line of the drawing. `mark` is the look of the sign at `at`; "" if there is none."""

    title: str
    text: str
    bars: tuple[Bar, ...] = ()
    mark: str = ""
    at: float = 0.0


class Interval(NamedTuple):
    """The time between two neighbouring events."""

    x: float
    width: float
    label: str


class Timeline(NamedTuple):
    rows: tuple[Row, ...]
    intervals: tuple[Interval, ...]


class Axis:
    """Where a time is on the drawing."""

    def __init__(self, times: Iterable[datetime]) -> None:
        self.times = sorted(set(times))
        gaps = [_weight(b - a) for a, b in zip(self.times, self.times[1:], strict=False)]
        total = sum(gaps) or 1.0
        self._at = {self.times[0]: 0.0}
        x = 0.0
        for time, gap in zip(self.times[1:], gaps, strict=True):
            x += _RIGHTMOST * gap / total
            self._at[time] = x

    def x(self, time: datetime) -> float:
        return self._at[time]

    def bar(self, kind: str, start: datetime, end: datetime) -> Bar:
        return Bar(kind, self._at[start], max(self._at[end] - self._at[start], _LEAST_WIDTH))

    def intervals(self) -> tuple[Interval, ...]:
        found = []
        for a, b in zip(self.times, self.times[1:], strict=False):
            x, width = self._at[a], self._at[b] - self._at[a]
            label = span((b - a).total_seconds()) if width >= LABEL_MIN_PERCENT else ""
            found.append(Interval(x, width, label))
        return tuple(found)


def timeline_of(status: KeyStatus) -> Timeline:
    """The timeline of what a key is now, or of one of its past generations."""
    claimed = max(time_of(status.fence), status.created_at)
    end = max(_end_of(status), claimed)
    held_until = max(min(status.lease_until, end), claimed) if is_open(status) else end
    notes = [(_note_time(line), line) for line in lines(status.note)]
    times = [status.created_at, claimed, held_until, end]
    times += [step.at for step in status.steps]
    if status.finished_at is not None and not is_open(status):
        times.append(status.finished_at)
    times += [at for at, _ in notes if at is not None]
    if status.state == "pending":
        times.append(max(status.lease_until, end))
    axis = Axis(times)
    rows = [
        *_attempts(status, axis, claimed, held_until, end),
        *_steps(status, axis, claimed, end),
        *_decisions(notes, axis),
        *_ending(status, axis),
    ]
    return Timeline(tuple(rows), axis.intervals())


def is_open(status: KeyStatus) -> bool:
    """True if this generation of the key has not come to an end."""
    return status.state in ("pending", "unknown")


def _end_of(status: KeyStatus) -> datetime:
    """Until when the present attempt is drawn: to its end, or to now."""
    if is_open(status):
        return status.seen_at
    # A freed key has no end of its own; its lease was ended when it was freed.
    return status.finished_at or min(status.lease_until, status.seen_at)


def _attempts(
    status: KeyStatus, axis: Axis, claimed: datetime, held_until: datetime, end: datetime
) -> Sequence[Row]:
    rows = []
    if status.attempt > 1:
        count = status.attempt - 1
        title = "Attempt 1" if count == 1 else f"Attempts 1 to {count}"
        earlier = axis.bar("earlier", status.created_at, claimed)
        text = f"first claimed {when(status.created_at)}; it did not end"
        rows.append(Row(title, text, (earlier,)))
    bars: tuple[Bar, ...] = (axis.bar("held", claimed, held_until),)
    text = f"claimed {when(claimed)}"
    if status.state == "pending" and status.lease_until > end:
        bars = (*bars, axis.bar("lease", end, status.lease_until))
        text += f"; its lease lasts {span((status.lease_until - end).total_seconds())} more"
    elif held_until < end:
        bars = (*bars, axis.bar("silent", held_until, end))
        text += f"; silent for {span((end - held_until).total_seconds())} after its lease"
    elif decision(status.note):
        # When its owner fell silent is not stored any more.
        bars = (axis.bar("silent", claimed, end),)
        text += f"; decided {span((end - claimed).total_seconds())} later, not by its owner"
    else:
        text += f"; it took {span((end - claimed).total_seconds())}"
    return [*rows, Row(f"Attempt {status.attempt}", text, bars, "claim", axis.x(claimed))]


def _steps(status: KeyStatus, axis: Axis, claimed: datetime, end: datetime) -> Sequence[Row]:
    """The steps. Of a finished one only the end is stored: it began some time after what was
    before it."""
    rows = []
    before = min([claimed, *(step.at for step in status.steps)])
    for step in sorted(status.steps, key=lambda step: step.at):
        title = f"Step {step.name}"
        if step.done:
            bars = (axis.bar("step", before, step.at),)
            took = span((step.at - before).total_seconds())
            rows.append(Row(title, f"done within {took}", bars, "done", axis.x(step.at)))
            before = step.at
        else:
            bars = (axis.bar("open", step.at, max(end, step.at)),)
            text = f"begun {when(step.at)}; no result is stored"
            rows.append(Row(title, text, bars, "begun", axis.x(step.at)))
    return rows


def _decisions(notes: Sequence[tuple[datetime | None, str]], axis: Axis) -> Sequence[Row]:
    return [
        Row("Decision", line, (), "decision" if at else "", axis.x(at) if at else 0.0)
        for at, line in notes
    ]


def _ending(status: KeyStatus, axis: Axis) -> Sequence[Row]:
    if status.finished_at is None or is_open(status):
        return []
    title = {"succeeded": "Succeeded", "failed": "Failed", "freed": "Freed"}
    text = when(status.finished_at)
    x = axis.x(status.finished_at)
    return [Row(title.get(status.state, "Ended"), text, (), f"end-{status.state}", x)]


def _note_time(line: str) -> datetime | None:
    found = _NOTE_TIME.match(line)
    if found is None:
        return None
    try:
        return datetime.strptime(found[1], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def _weight(gap: timedelta) -> float:
    return 0.5 + math.log10(1 + gap.total_seconds() * 1_000)
