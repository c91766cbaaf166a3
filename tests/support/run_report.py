"""The end of a run, for the person who reads it: what failed and how to repeat it, what was slow,
and what was skipped, in groups.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import pytest
from tests.support.run_seed import VARIABLE, run_seed

SLOWEST: Final = 10
_DIGITS: Final = re.compile(r"\d+")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    write = terminalreporter.write_line
    stats = terminalreporter.stats
    ran = [report for each in stats.values() for report in each if _has_duration(report)]
    if ran and len({_file(report.nodeid) for report in ran}) > 1:
        terminalreporter.section("slowest files")
        for line in slowest_files((report.nodeid, report.duration) for report in ran):
            write(line)
    skipped = stats.get("skipped", [])
    if skipped:
        terminalreporter.section("skipped")
        for line in skipped_groups([(each.nodeid, _reason(each)) for each in skipped]):
            write(line)
    failed = [*stats.get("failed", []), *stats.get("error", [])]
    if failed:
        terminalreporter.section("repeat what failed")
        for line in repeat_lines(report.nodeid for report in failed):
            write(line)


def slowest_files(durations: Iterable[tuple[str, float]]) -> list[str]:
    """Return a line for each of the files that took longest, with their fixtures."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for node_id, duration in durations:
        seconds[_file(node_id)] += duration
    total = sum(seconds.values())
    first = sorted(seconds.items(), key=lambda item: -item[1])[:SLOWEST]
    return [
        *(f"{spent:7.1f} s  {file}" for file, spent in first),
        f"{total:7.1f} s  in all {len(seconds)} files, added up over the processes of the run",
    ]


def skipped_groups(skipped: Sequence[tuple[str, str]]) -> list[str]:
    """Return a line for each reason, with how many tests gave it, and in which files."""
    groups: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for node_id, reason in skipped:
        groups[_DIGITS.sub("N", reason)][_file(node_id)] += 1
    examples = {_DIGITS.sub("N", reason): reason for _, reason in skipped}
    lines = []
    for group, files in sorted(groups.items(), key=lambda item: -item[1].total()):
        places = ", ".join(f"{file} {count}" for file, count in sorted(files.items()))
        lines.append(f"{files.total():7d}  {examples[group]} ({places})")
    return lines


def repeat_lines(node_ids: Iterable[str]) -> list[str]:
    """Return the command that repeats each test, once."""
    return [
        f"{VARIABLE}={run_seed()} .venv/bin/python -m pytest {shlex.quote(node_id)}"
        for node_id in dict.fromkeys(node_ids)
    ]


def _has_duration(report: object) -> bool:
    return isinstance(report, pytest.TestReport)


def _file(node_id: str) -> str:
    return node_id.partition("::")[0]


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr)
