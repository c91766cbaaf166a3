"""The multi-process hammer on SQLite: seconds here, a minute with ONCEKEY_SOAK=1 (I1-I7, I9, I12).

It prints what it did, and fails if that was too little to mean anything.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from oncekey.testing.hammer import Hammer, hammer

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
SECONDS = 60.0 if SOAK else 8.0
RUNS_MAX = 5  # a busy machine gets more time, not less to do

# At least so much must have happened; a long run must do in proportion.
LEAST = {
    "claims": 2_000,
    "grants": 300,
    "takeovers": 20,
    "give-ups": 30,
    "fenced zombies": 50,
    "lost replies": 150,
    "replays": 700,
    "mismatches": 150,
    "in flight": 120,
    "renewals": 60,
    "releases": 30,
    "resolved": 25,
    "generations": 200,
    "crashes": 10,
    "swept": 150,
}

# What each broken store must be caught at, among other things.
CAUGHT_AT = {
    "FinishWithoutOwner": "i2_",
    "StealsLeases": "i5_leases_never_overlap",
    "ForgetsEarly": "i4_what_was_stored_stays",
    "BlindToRequests": "i7_mismatch_exactly_when_it_differs",
    "EveryoneIsRetrySafe": "i1_every_run_has_its_reason",
}


def show(counts: Counter[str], violations: int, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        words = ", ".join(f"{number} {name}" for name, number in counts.items())
        os.write(1, f"\n  hammer: {words}; {violations} violations\n".encode())


def test_the_hammer_finds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts: Counter[str] = Counter()
    missing: set[str] = set()
    for run in range(RUNS_MAX):
        plan = Hammer(f"sqlite:///{tmp_path}/{run}.db", seconds=SECONDS, seed=run)
        verdict = hammer(plan)
        counts.update(verdict.counts)
        show(counts, len(verdict.violations), capsys)
        assert verdict.violations == []
        assert verdict.counts["store errors"] == 0
        missing = {name for name, least in LEAST.items() if counts[name] < least * SECONDS / 8}
        if not missing:
            break
    assert not missing, f"too little happened: {missing}"


@pytest.mark.parametrize("sabotage", CAUGHT_AT)
def test_the_hammer_finds_a_broken_store(tmp_path: Path, sabotage: str) -> None:
    caught: list[str] = []
    for run in range(RUNS_MAX):
        plan = Hammer(
            f"sqlite:///{tmp_path}/{run}.db",
            seconds=1.5,
            processes=8,
            keys=12,
            sabotage=sabotage,
            seed=run,
        )
        verdict = hammer(plan)
        assert not [words for words in verdict.violations if "ended with" in words]
        caught = [w for w in verdict.violations if w.startswith(CAUGHT_AT[sabotage])]
        if caught:
            break
    assert caught
