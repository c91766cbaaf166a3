"""Timings, ratios and reports of a benchmark, and how they are printed."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

MICROSECONDS = " µs"  # the unit of a figure that is a time


@dataclass(frozen=True)
class Timing:
    """One contestant in one discipline: medians over the rounds, in microseconds per operation."""

    name: str
    us: float
    low: float
    high: float

    @property
    def per_second(self) -> float:
        return 1_000_000 / self.us


@dataclass(frozen=True)
class Ratio:
    """How a contestant compares; `wanted` is the figure to reach, None where it is for context.

    A few figures stand for themselves, such as bytes written; they say so in `unit`.
    """

    what: str
    value: float
    wanted: float | None = None
    at_most: bool = False
    unit: str = "×"

    @property
    def reached(self) -> bool:
        if self.wanted is None:
            return True
        return self.value <= self.wanted if self.at_most else self.value >= self.wanted


@dataclass(frozen=True)
class Report:
    title: str
    timings: Sequence[Timing]
    ratios: Sequence[Ratio]


def in_turns(
    contestants: dict[str, Callable[[int], float]], rounds: int, *, lines: bool = False
) -> dict[str, Timing]:
    """Run each contestant once per round, in turns; each returns its microseconds per operation.

    Shows a dot as each slice ends, or a line with its figure.
    """
    seen: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds):
        for name, run in contestants.items():
            us = run(turn)
            seen[name].append(us)
            if lines:
                progress(f"round {turn + 1}/{rounds}  {name}: {1_000_000 / us:,.0f} per second")
            else:
                print(".", end="", file=sys.stderr, flush=True)
    if not lines:
        print(file=sys.stderr)
    return {name: median(name, values) for name, values in seen.items()}


def median(name: str, values: Sequence[float]) -> Timing:
    return Timing(name, statistics.median(values), min(values), max(values))


def progress(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)


def per_operation(operations: int, work: Callable[[], object]) -> float:
    """Microseconds per operation of `work`, which does that many."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) / operations * 1_000_000


def _table(report: Report) -> Table:
    table = Table(title=report.title, title_justify="left")
    for column in ("contestant", "per second", "median µs", "lowest µs", "highest µs"):
        table.add_column(column, justify="left" if column == "contestant" else "right")
    for timing in report.timings:
        table.add_row(
            timing.name,
            f"{timing.per_second:,.0f}",
            f"{timing.us:,.1f}",
            f"{timing.low:,.1f}",
            f"{timing.high:,.1f}",
        )
    return table


def show(reports: Sequence[Report]) -> None:
    console = Console()
    for report in reports:
        console.print(_table(report) if report.timings else f"[italic]{report.title}[/italic]")
        for ratio in report.ratios:
            sign = "≤" if ratio.at_most else "≥"
            wanted = (
                f"wanted {sign} {ratio.wanted:g}{ratio.unit}" if ratio.wanted is not None else ""
            )
            mark = "" if ratio.wanted is None else (" ✔" if ratio.reached else " ✘")
            value = f"{ratio.value:,.2f}{ratio.unit}"
            line = f"  {ratio.what}: {value}  ({wanted or 'for context'}){mark}"
            console.print(line, highlight=False, soft_wrap=True)
        console.print()


def markdown(reports: Sequence[Report]) -> str:
    """The reports as tables, for a page."""
    parts = []
    for report in reports:
        lines = [f"## {report.title}", ""]
        if report.timings:
            lines += ["| contestant | per second | median µs |", "|---|---|---|"]
            lines += [
                f"| {one.name} | {one.per_second:,.0f} | {one.us:,.1f} |" for one in report.timings
            ]
            lines.append("")
        if report.ratios:
            lines += ["| figure | value | wanted |", "|---|---|---|"]
            lines += [
                f"| {one.what} | {one.value:,.2f}{one.unit} | {_wanted(one)} |"
                for one in report.ratios
            ]
            lines.append("")
        parts.append("\n".join(lines))
    return "\n".join(parts)


def _wanted(ratio: Ratio) -> str:
    if ratio.wanted is None:
        return ""
    sign = "≤" if ratio.at_most else "≥"
    return f"{sign} {ratio.wanted:g}{ratio.unit}, {'reached' if ratio.reached else 'missed'}"


def save(reports: Sequence[Report], folder: Path, name: str = "bench") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps([asdict(report) for report in reports], indent=2) + "\n")
    return path
