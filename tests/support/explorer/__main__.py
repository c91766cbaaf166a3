"""`python -m tests.support.explorer`: explore every scenario and race, and print the counts."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from tests.support.explorer.race_scenarios import RACES
from tests.support.explorer.scenarios import LONG_SCENARIOS, SCENARIOS
from tests.support.explorer.search import explore
from tests.support.explorer.sqlite_races import race_on_sqlite


def main() -> int:
    """Exit code 0 if every invariant holds."""
    broken = 0
    states = transitions = 0
    seconds = 0.0
    for scenario in SCENARIOS + LONG_SCENARIOS:
        report = explore(scenario, progress=_progress(scenario.name))
        states += report.states
        transitions += report.transitions
        seconds += report.seconds
        _print(f"{report}")
        if report.violation is not None:
            broken += 1
            _print(f"{report.violation}")
    with tempfile.TemporaryDirectory() as directory:
        for number, race in enumerate(RACES):
            raced = race_on_sqlite(race, Path(directory) / f"race{number}.db")
            broken += bool(raced.invariant)
            _print(f"{raced}")
    _print(f"{states:,} states, {transitions:,} transitions, {seconds:.1f} s, {broken} violations")
    return 1 if broken else 0


def _progress(name: str) -> Callable[[int], None] | None:
    if not sys.stderr.isatty():
        return None
    return lambda states: _write(sys.stderr, f"\r{name:<34} {states:>9,} states")


def _print(line: str) -> None:
    lead = "\r" if sys.stderr.isatty() else ""
    _write(sys.stdout, f"{lead}{line}\n")


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
