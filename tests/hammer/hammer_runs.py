"""Runs of the hammer, with a summary of what happened in them.

A short run is a number of rounds for each worker, whatever time they take, and a long one lasts for
a time. Both judge safety alone: what has happened depends on the machine, and is only printed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest
from tests.support.hammer import HammerPlan, HammerReport, run_hammer

ROUNDS_SECONDS_MAX = 120.0  # a short run that takes longer ends before its last round
RUNS_MAX = 10
LONG = pytest.param(True, id="long", marks=pytest.mark.soak)
SHORT = pytest.param(False, id="short")


def run_safely(name: str, plan: HammerPlan, capsys: pytest.CaptureFixture[str]) -> Counter[str]:
    """Run the plan, and check that nothing is violated."""
    report = run_hammer(plan)
    show(name, plan, report, capsys)
    assert not report.violations, "\n".join([f"seed {plan.seed}", *report.violations[:20]])
    return Counter(report.counts)


def show(
    name: str, plan: HammerPlan, report: HammerReport, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ", ".join(f"{number} {what}" for what, number in report.counts.items())
    text = f"hammer on {name}, seed {plan.seed}: {words}; {len(report.violations)} violations"
    with capsys.disabled():
        os.write(1, f"\n  {text}\n".encode())


def caught_at(rule: str, make_plan: Callable[[int], HammerPlan]) -> list[str]:
    """Run plans on a store that is broken on purpose until this rule is violated."""
    for run in range(RUNS_MAX):
        report = run_hammer(make_plan(run))
        assert not [words for words in report.violations if "ended with" in words]
        caught = [words for words in report.violations if words.startswith(rule)]
        if caught:
            return caught
    return []
