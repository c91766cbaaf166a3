"""Every order of the statements of two and three SQLite programs, on a real file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.explorer.race_scenarios import RACES, Race
from tests.support.explorer.sqlite_races import race_on_sqlite


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.name)
def test_every_order_of_statements_gives_the_result_of_some_order_of_commands(
    race: Race, tmp_path: Path, summary: list[str]
) -> None:
    report = race_on_sqlite(race, tmp_path / "race.db")
    summary.append(str(report))
    assert not report.invariant, f"\n{report}"
    assert report.runs > 5
