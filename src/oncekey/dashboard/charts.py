"""The geometry of the overview's charts: pending ages, rows against their projection, and the rate
of claims. Templates draw it as SVG.

Horizontal figures are percentages of the drawing's width, so that charts grow with the window and
their texts do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

# The ages of a column, in seconds, end before these.
AGE_EDGES: Final = (
    (1.0, "< 1 s"),
    (5.0, "< 5 s"),
    (30.0, "< 30 s"),
    (300.0, "< 5 min"),
    (3_600.0, "< 1 h"),
    (float("inf"), "≥ 1 h"),
)
HISTOGRAM_HEIGHT: Final = 120
CURVE_WIDTH: Final = 600
CURVE_HEIGHT: Final = 60

CURVE_MIN_SECONDS: Final = 10.0

# A bar for one among thousands must be seen.
_LEAST_HEIGHT: Final = 3.0
_LEAST_WIDTH: Final = 0.5


class Column(NamedTuple):
    """A column of a histogram; x and width in percent, y and height in pixels."""

    label: str
    keys: int
    x: float
    width: float
    y: float
    height: float
    is_old: bool

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


def age_histogram(ages: Sequence[float], old: float) -> list[Column]:
    """How many keys have been pending for how long; ages from `old` on are marked."""
    counts = [0] * len(AGE_EDGES)
    for age in ages:
        counts[next(i for i, (edge, _) in enumerate(AGE_EDGES) if age < edge)] += 1
    most = max(counts) or 1
    room = 100 / len(AGE_EDGES)
    columns = []
    lower = 0.0
    for i, (number, (edge, label)) in enumerate(zip(counts, AGE_EDGES, strict=True)):
        height = max(HISTOGRAM_HEIGHT * number / most, _LEAST_HEIGHT) if number else 0.0
        y = HISTOGRAM_HEIGHT - height
        columns.append(
            Column(label, number, i * room + 2, room - 4, y, height, is_old=lower >= old)
        )
        lower = edge
    return columns


class Bar(NamedTuple):
    """A horizontal bar; width in percent."""

    label: str
    value: int
    width: float


def size_bars(rows: int, projected: int) -> list[Bar]:
    """What is stored beside what the present rate leads to."""
    most = max(rows, projected, 1)
    counted = (("Rows now", rows), ("Rows at this rate", projected))
    return [
        Bar(label, count, max(100 * count / most, _LEAST_WIDTH) if count else 0.0)
        for label, count in counted
    ]


class Curve(NamedTuple):
    """A line through points, as SVG writes them, and its highest value."""

    points: str
    most: float
    seconds: float


def rate_curve(points: Sequence[tuple[float, float]]) -> Curve | None:
    """The claims per second over time; None as long as there is no line to draw."""
    if not points or points[-1][0] - points[0][0] < CURVE_MIN_SECONDS:
        return None
    first, last = points[0][0], points[-1][0]
    most = max(rate for _, rate in points) or 1.0
    places = [
        f"{CURVE_WIDTH * (at - first) / (last - first):.1f},"
        f"{CURVE_HEIGHT - (CURVE_HEIGHT - 4) * rate / most - 2:.1f}"
        for at, rate in points
    ]
    return Curve(" ".join(places), most, last - first)
