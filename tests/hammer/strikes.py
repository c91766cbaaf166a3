"""Running the hammer until enough has happened, and saying what did.

A busy machine gets more time, not less to do: a run that did too little is followed by another.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping

import pytest
from tests.support.hammer import Hammer, Verdict, hammer

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
RUNS_MAX = 5


def strike(
    name: str,
    plan_of: Callable[[int], Hammer],
    least: Mapping[str, float],
    capsys: pytest.CaptureFixture[str],
) -> Counter[str]:
    """Run plans until at least `least` was counted in all; no run may violate anything."""
    counts: Counter[str] = Counter()
    missing: dict[str, int] = {}
    for run in range(RUNS_MAX):
        verdict = hammer(plan_of(run))
        counts.update(verdict.counts)
        show(name, counts, verdict, capsys)
        assert not verdict.violations, "\n".join(verdict.violations[:20])
        missing = {what: counts[what] for what, number in least.items() if counts[what] < number}
        if not missing:
            return counts
    raise AssertionError(f"too little happened: {missing}")


def show(
    name: str, counts: Counter[str], verdict: Verdict, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        words = ", ".join(f"{number} {what}" for what, number in counts.items())
        told = f"\n  hammer on {name}: {words}; {len(verdict.violations)} violations\n"
        os.write(1, told.encode())


def caught_at(rule: str, plan_of: Callable[[int], Hammer]) -> list[str]:
    """Run plans on a store that is broken on purpose until this rule fires."""
    for run in range(RUNS_MAX):
        verdict = hammer(plan_of(run))
        assert not [words for words in verdict.violations if "ended with" in words]
        caught = [words for words in verdict.violations if words.startswith(rule)]
        if caught:
            return caught
    return []
