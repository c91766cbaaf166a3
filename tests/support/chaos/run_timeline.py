"""The timeline of a run as one HTML file: faults as bands, answers per second, operations as bars.

Figures are computed here and written by the template beside this module. The page loads nothing.
Of the operations, those that were violated and those that took longest are drawn: the many that
took milliseconds would be a line each of no width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import jinja2
from tests.support.chaos.invariant_rules import OBSERVED, Violation
from tests.support.chaos.operation_history import OperationHistory, RunHistory, Try
from tests.support.chaos.run_summary import explain, summarize
from tests.support.chaos.violation_story import stories

BARS_MAX: Final = 400
SLICES: Final = 40  # parts of the run, each of which has its share of bars
ROW: Final = 18  # the height of a row of faults, in pixels
BAR_ROW: Final = 5  # ... and of a row of operations
CHART: Final = 120  # the height of the chart of answers
WIDTH_MIN: Final = 1_000
WIDTH_MAX: Final = 6_000
PIXELS_PER_SECOND: Final = 10.0
_TICK_SECONDS: Final = (1, 2, 5, 10, 20, 30, 60, 120)
_TICK_PIXELS: Final = 70
_SUBJECTS: Final = (
    *("database", "store network", "new store", "worker", "client network"),
    *("consumer", "broker", "second broker", "rabbitmq"),
)
_ANSWERS: Final = ("first answer", "replay", "refused", "in flight", "store away", "no reply")


class Band(NamedTuple):
    """A fault on the axis of time."""

    x: float
    width: float
    y: int
    subject: str
    title: str


class Column(NamedTuple):
    """One kind of answers in one second."""

    x: float
    width: float
    y: float
    height: float
    kind: str
    title: str


class Bar(NamedTuple):
    """An operation, from its first request to the answer that its client waited for."""

    x: float
    width: float
    y: int
    level: str
    is_violated: bool
    title: str


class Track(NamedTuple):
    """A row of faults, with its name."""

    name: str
    y: int


class Scale:
    """Where a time is on the drawing."""

    def __init__(self, start: float, end: float) -> None:
        self.start = start
        self.end = max(end, start + 1)
        width = (self.end - self.start) * PIXELS_PER_SECOND
        self.width = round(min(max(width, WIDTH_MIN), WIDTH_MAX))
        self._factor = self.width / (self.end - self.start)

    def x(self, at: float) -> float:
        return round((at - self.start) * self._factor, 1)

    def span(self, start: float, end: float, least: float = 1.5) -> tuple[float, float]:
        """Return the place and width of a span, wide enough to be seen."""
        return self.x(start), max(least, round(self.x(end) - self.x(start), 1))

    def ticks(self) -> list[tuple[float, str]]:
        wide_enough = (s for s in _TICK_SECONDS if s * self._factor >= _TICK_PIXELS)
        seconds = next(wide_enough, _TICK_SECONDS[-1])
        first = int(self.start // seconds + 1) * seconds
        return [(self.x(at), _clock(at)) for at in range(first, int(self.end) + 1, seconds)]


def _clock(at: float) -> str:
    return f"{int(at) // 60}:{int(at) % 60:02}"


def page(run: RunHistory, violations: Sequence[Violation]) -> str:
    """Return the HTML page of a run."""
    end = run.ended["at"] if run.ended else max(f["until"] for f in run.faults)
    scale = Scale(0.0, end)
    tracks = _tracks(run)
    bars, rows = _bars(run, violations, scale)
    violated = Counter(one.invariant for one in violations)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("timeline.html.jinja").render(
        summary=summarize(run, violations),
        explanation=explain(run, violations),
        scale=scale,
        ticks=scale.ticks(),
        healed_x=scale.x(run.healed_at),
        tracks=tracks,
        bands=_bands(run, tracks, scale),
        columns=_columns(run, scale),
        peak=_peak(run),
        bars=bars,
        answers=_ANSWERS,
        heights={"faults": len(tracks) * ROW, "chart": CHART, "bars": rows * BAR_ROW, "row": ROW},
        invariants=[(name, how, violated[name]) for name, how in OBSERVED.items()],
        violations=violations,
        stories=stories(violations, run),
    )


# --- faults ---------------------------------------------------------------------------------------


def _tracks(run: RunHistory) -> list[Track]:
    names = sorted({fault["target"] for fault in run.faults}, key=_order)
    return [Track(name, number * ROW) for number, name in enumerate(names)]


def _order(target: str) -> tuple[int, str]:
    return next(n for n, name in enumerate(_SUBJECTS) if target.startswith(name)), target


def _bands(run: RunHistory, tracks: Sequence[Track], scale: Scale) -> list[Band]:
    rows = {track.name: track.y for track in tracks}
    bands = []
    for fault in run.faults:
        x, width = scale.span(fault["at"], fault["until"], least=2.5)
        title = f"{fault['number']}: {fault['what']}, {fault['at']:.1f} to {fault['until']:.1f} s"
        subject = fault["target"].rstrip(" 0123456789").replace(" ", "-")
        bands.append(Band(x, width, rows[fault["target"]], subject, title))
    return bands


# --- answers --------------------------------------------------------------------------------------


def _kinds_by_second(run: RunHistory) -> dict[int, Counter[str]]:
    seconds: dict[int, Counter[str]] = {}
    for operation in run.operations.values():
        for one in operation.tries.values():
            at = int(one.sent if one.came is None else one.came)
            seconds.setdefault(at, Counter())[_answer_kind(one)] += 1
    return seconds


def _answer_kind(one: Try) -> str:
    if one.came is None:
        return "no reply"
    if one.is_success:
        return "replay" if one.replayed else "first answer"
    if one.status >= 500:
        return "store away"
    return "in flight" if one.code == "in-flight" else "refused"


def _peak(run: RunHistory) -> int:
    """Return the most answers in a second, before the clients repeat everything at the end."""
    seconds = _kinds_by_second(run).items()
    return max((counts.total() for at, counts in seconds if at < run.healed_at), default=1)


def _columns(run: RunHistory, scale: Scale) -> list[Column]:
    peak = _peak(run)
    columns = []
    for second, counts in sorted(_kinds_by_second(run).items()):
        x, width = scale.span(second, second + 1)
        below = 0
        for kind in _ANSWERS:
            if not counts[kind]:
                continue
            bottom = min(below / peak, 1.0) * CHART
            height = min((below + counts[kind]) / peak, 1.0) * CHART - bottom
            y = CHART - bottom - height
            title = f"{_clock(second)}: {counts[kind]} {kind}"
            columns.append(Column(x, width, round(y, 1), round(height, 1), kind, title))
            below += counts[kind]
    return columns


# --- operations -----------------------------------------------------------------------------------


def _bars(run: RunHistory, violations: Sequence[Violation], scale: Scale) -> tuple[list[Bar], int]:
    """Return the bars, each in the first row that has room for it, and the number of rows."""
    why = {one.id: f"{one.invariant}: {one.text}" for one in reversed(violations)}
    spans = [(span, one) for one in run.operations.values() if (span := _span(one)) is not None]
    violated = [pair for pair in spans if pair[1].id in why]
    others = [pair for pair in spans if pair[1].id not in why]
    chosen = sorted([*violated, *_longest(others, scale)], key=lambda pair: pair[0])
    ends: list[float] = []
    bars = []
    for (start, end), operation in chosen:
        x, width = scale.span(start, end, least=3.0)
        row = next((n for n, used in enumerate(ends) if used < x), len(ends))
        ends[row : row + 1] = [x + width + 2]
        title = f"{operation.id}, {operation.level}: {start:.2f} to {end:.2f} s"
        if operation.id in why:
            title += f". {why[operation.id]}"
        bars.append(Bar(x, width, row * BAR_ROW, operation.level, operation.id in why, title))
    return bars, len(ends)


Spanned = tuple[tuple[float, float], OperationHistory]


def _longest(spans: list[Spanned], scale: Scale) -> list[Spanned]:
    """Return the operations that took longest, of every part of the run."""
    slices: dict[int, list[Spanned]] = {}
    for pair in sorted(spans, key=lambda pair: pair[0][0] - pair[0][1]):
        part = int((pair[0][0] - scale.start) / (scale.end - scale.start) * SLICES)
        slices.setdefault(part, []).append(pair)
    return [pair for part in slices.values() for pair in part[: BARS_MAX // SLICES]]


def _span(operation: OperationHistory) -> tuple[float, float] | None:
    """Return from when to when an operation was on its way, as its client or its message saw it."""
    if operation.level == "queue":
        times = [*operation.published, *(one["at"] for one in operation.effects)]
        return (min(times), max(times)) if times else None
    asked = [one for one in operation.tries.values() if one.variant == "same"]
    first = next(operation.successes(), None)
    if not asked:
        return None
    return min(one.sent for one in asked), _end(first, asked)


def _end(first: Try | None, asked: Iterable[Try]) -> float:
    if first is not None and first.came is not None:
        return first.came
    return max(one.came or one.sent for one in asked)
