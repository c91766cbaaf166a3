"""The hammer on SQLite: for seconds, with ONCEKEY_SOAK=1 for a minute (I1-I7, I9, I12).

It prints what it did, and fails if that was too little to prove anything.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hammer.hammer_runs import SOAK, caught_at, run_until_enough
from tests.support.hammer import HammerPlan

SECONDS = 60.0 if SOAK else 4.0

# The least that must happen in a run of seconds, or in several; a long run must do more.
LEAST = {
    "claims": 2_000,
    "grants": 300,
    "takeovers": 20,
    "give-ups": 30,
    "fenced zombies": 50,
    "lost replies": 150,
    "lost commands": 50,
    "bodies": 15,
    "results": 70,
    "replays": 700,
    "mismatches": 150,
    "in flight": 120,
    "renewals": 60,
    "releases": 30,
    "resolved": 25,
    "decided by operators": 5,
    "operators came too late": 3,
    "generations": 200,
    "crashes": 10,
    "swept": 150,
}

# The rule that each broken store must violate, among others.
CAUGHT_AT = {
    "FinishWithoutOwner": "i2_",
    "StealsLeases": "i5_leases_never_overlap",
    "ForgetsEarly": "i4_what_was_stored_stays",
    "BlindToRequests": "i7_mismatch_exactly_when_it_differs",
    "EveryoneIsRetrySafe": "i1_every_run_has_its_reason",
}


def test_the_hammer_finds_no_violation_on_sqlite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan(run: int) -> HammerPlan:
        return HammerPlan(f"sqlite:///{tmp_path}/{run}.db", seconds=SECONDS, seed=run)

    least = {what: number * (8 if SOAK else 1) for what, number in LEAST.items()}
    counts = run_until_enough("SQLite", plan, least, capsys)
    assert counts["store errors"] == 0


@pytest.mark.parametrize("sabotage", CAUGHT_AT)
def test_the_hammer_finds_a_store_that_is_broken_on_purpose(tmp_path: Path, sabotage: str) -> None:
    def plan(run: int) -> HammerPlan:
        url = f"sqlite:///{tmp_path}/{run}.db"
        return HammerPlan(url, seconds=1.5, processes=8, keys=12, sabotage=sabotage, seed=run)

    assert caught_at(CAUGHT_AT[sabotage], plan)
