"""Runs of the hammer until enough has happened, with a summary of what did.

On a busy machine a run may do too little; then another one follows.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping

import pytest
from tests.support.hammer import HammerPlan, HammerReport, run_hammer

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
RUNS_MAX = 10


def run_until_enough(
    name: str,
    make_plan: Callable[[int], HammerPlan],
    least: Mapping[str, float],
    capsys: pytest.CaptureFixture[str],
) -> Counter[str]:
    """Run plans until the counts reach `least` in all; no run may have a violation."""
    counts: Counter[str] = Counter()
    missing: dict[str, int] = {}
    for run in range(RUNS_MAX):
        report = run_hammer(make_plan(run))
        counts.update(report.counts)
        show(name, counts, report, capsys)
        assert not report.violations, "\n".join(report.violations[:20])
        missing = {what: counts[what] for what, number in least.items() if counts[what] < number}
        if not missing:
            return counts
    raise AssertionError(f"too little happened: {missing}")


def show(
    name: str, counts: Counter[str], report: HammerReport, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        words = ", ".join(f"{number} {what}" for what, number in counts.items())
        text = f"\n  hammer on {name}: {words}; {len(report.violations)} violations\n"
        os.write(1, text.encode())


def caught_at(rule: str, make_plan: Callable[[int], HammerPlan]) -> list[str]:
    """Run plans on a store that is broken on purpose until this rule is violated."""
    for run in range(RUNS_MAX):
        report = run_hammer(make_plan(run))
        assert not [words for words in report.violations if "ended with" in words]
        caught = [words for words in report.violations if words.startswith(rule)]
        if caught:
            return caught
    return []
