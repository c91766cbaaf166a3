"""Draws reports as bars: operations per second, with the median, the lowest and the highest, and
below them the processor time per operation, where a report has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench.figures import MICROSECONDS, Ratio, Report, Timing

OURS = "#1f6feb"
OTHERS = "#9aa4b2"
_ROW_INCHES = 0.36


def draw(reports: Sequence[Report], path: Path) -> Path:
    """One panel for each report that has timings, and one for each that has processor times."""
    panels: list[tuple[int, Callable[[Axes], None]]] = []
    for report in reports:
        if report.timings:
            panels.append((len(report.timings), partial(_bars, report.title, report.timings)))
        spent = [ratio for ratio in report.ratios if ratio.unit == MICROSECONDS]
        if spent:
            panels.append((len(spent), partial(_times, spent)))
    heights = [rows + 1.6 for rows, _ in panels]
    figure, axes = plt.subplots(
        len(panels),
        figsize=(9, sum(heights) * _ROW_INCHES + 0.4),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for (_, fill), panel in zip(panels, axes[:, 0], strict=True):
        fill(panel)
        panel.invert_yaxis()
        panel.tick_params(labelsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _times(ratios: Sequence[Ratio], panel: Axes) -> None:
    reach = max(ratio.value for ratio in ratios)
    panel.barh([ratio.what for ratio in ratios], [ratio.value for ratio in ratios], color=OURS)
    for row, ratio in enumerate(ratios):
        panel.text(ratio.value + reach * 0.01, row, f"{ratio.value:,.0f}", va="center", fontsize=9)
    panel.set_xlim(0, reach * 1.12)
    panel.set_xlabel("µs", fontsize=9)


def _bars(title: str, timings: Sequence[Timing], panel: Axes) -> None:
    rates = [timing.per_second for timing in timings]
    below = [rate - 1_000_000 / timing.high for rate, timing in zip(rates, timings, strict=True)]
    above = [1_000_000 / timing.low - rate for rate, timing in zip(rates, timings, strict=True)]
    names = [timing.name for timing in timings]
    panel.barh(
        names,
        rates,
        xerr=[below, above],
        color=[OURS if name.startswith("oncekey") else OTHERS for name in names],
        error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "#444c56"},
    )
    reach = max(rate + more for rate, more in zip(rates, above, strict=True))
    for row, (rate, more) in enumerate(zip(rates, above, strict=True)):
        panel.text(rate + more + reach * 0.01, row, f"{rate:,.0f}", va="center", fontsize=9)
    panel.set_xlim(0, reach * 1.12)
    panel.set_title(title, loc="left", fontsize=10)
    panel.set_xlabel("per second", fontsize=9)
