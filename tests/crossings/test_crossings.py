"""Every crossing of the covering set: what can work keeps every rule, and what cannot is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crossings.axes import Crossing
from tests.crossings.covering_cases import refused, working
from tests.crossings.judge import Judge
from tests.crossings.worlds import world_of

Said = Callable[[], str]


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str]) -> Said:
    return lambda: capfd.readouterr().out


@pytest.mark.parametrize("crossing", working(), ids=str)
def test_a_crossing_that_can_work_keeps_every_rule(
    crossing: Crossing, tmp_path: Path, said: Said
) -> None:
    with world_of(crossing, tmp_path) as world:
        Judge(world).play(said)
