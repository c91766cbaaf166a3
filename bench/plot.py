"""Draws reports as bars: operations per second, with the median, the lowest and the highest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench.figures import Report, Timing

OURS = "#1f6feb"
OTHERS = "#9aa4b2"
_ROW_INCHES = 0.36


def draw(reports: Sequence[Report], path: Path) -> Path:
    """One panel for each report that has timings."""
    drawn = [report for report in reports if report.timings]
    heights = [len(report.timings) + 1.6 for report in drawn]
    figure, panels = plt.subplots(
        len(drawn),
        figsize=(9, sum(heights) * _ROW_INCHES + 0.4),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for report, panel in zip(drawn, panels[:, 0], strict=True):
        _bars(panel, report.title, report.timings)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _bars(panel: Axes, title: str, timings: Sequence[Timing]) -> None:
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
    panel.invert_yaxis()
    panel.set_title(title, loc="left", fontsize=10)
    panel.set_xlabel("per second", fontsize=9)
    panel.tick_params(labelsize=9)
    panel.spines[["top", "right"]].set_visible(False)
