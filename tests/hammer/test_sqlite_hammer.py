"""The hammer on SQLite: some rounds, with ONCEKEY_SOAK=1 a minute (I1-I7, I9, I12).

It prints what it did. What it finds in stores that are broken on purpose is forced in
test_hammer_saboteurs.py; `make soak` lets it find them by itself.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.hammer.hammer_runs import LONG, ROUNDS_SECONDS_MAX, SHORT, caught_at, run_safely
from tests.support.hammer import HammerPlan
from tests.support.hammer.saboteurs import CAUGHT_AT

# No call may fail because the machine is busy.
PATIENT = "busy_timeout=120s"


@pytest.mark.seeded
@pytest.mark.parametrize("is_long", [SHORT, LONG])
def test_the_hammer_finds_no_violation_on_sqlite(
    tmp_path: Path, is_long: bool, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/keys.db?{PATIENT}"
    plan = HammerPlan(url, seconds=ROUNDS_SECONDS_MAX, processes=8, rounds=60, seed=seed)
    if is_long:
        plan = HammerPlan(url, seconds=60, seed=seed)
    counts = run_safely("SQLite", plan, capsys)
    assert counts["claims"]


@pytest.mark.soak
@pytest.mark.seeded
@pytest.mark.parametrize("sabotage", CAUGHT_AT)
def test_the_hammer_finds_a_store_that_is_broken_on_purpose(
    tmp_path: Path, sabotage: str, seed: int
) -> None:
    def plan(run: int) -> HammerPlan:
        url = f"sqlite:///{tmp_path}/{run}.db"
        broken = HammerPlan(url, seconds=1.5, processes=8, keys=12, sabotage=sabotage)
        return replace(broken, seed=seed + run)

    assert caught_at(CAUGHT_AT[sabotage], plan)
