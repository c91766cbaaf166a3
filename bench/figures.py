"""What a benchmark gives, and how it is shown."""

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
    """How a contestant compares; `wanted` is the figure to reach, None where it is for context."""

    what: str
    value: float
    wanted: float | None = None
    at_most: bool = False

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


def in_turns(contestants: dict[str, Callable[[int], float]], rounds: int) -> dict[str, Timing]:
    """Run each contestant once per round, in turns; each returns its microseconds per operation."""
    seen: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds):
        for name, run in contestants.items():
            seen[name].append(run(turn))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {
        name: Timing(name, statistics.median(values), min(values), max(values))
        for name, values in seen.items()
    }


def per_operation(operations: int, work: Callable[[], object]) -> float:
    """Microseconds per operation of `work`, which does that many."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) / operations * 1_000_000


def show(reports: Sequence[Report]) -> None:
    console = Console()
    for report in reports:
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
        console.print(table)
        for ratio in report.ratios:
            sign = "≤" if ratio.at_most else "≥"
            goal = "for context" if ratio.wanted is None else f"wanted {sign} {ratio.wanted:g}×"
            mark = "" if ratio.wanted is None else (" ✔" if ratio.reached else " ✘")
            console.print(f"  {ratio.what}: {ratio.value:.2f}×  ({goal}){mark}", highlight=False)
        console.print()


def save(reports: Sequence[Report], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "bench.json"
    path.write_text(json.dumps([asdict(report) for report in reports], indent=2) + "\n")
    return path
