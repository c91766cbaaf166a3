"""Every crossing of the covering set: what can work keeps every rule, the others are refused."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crossings.axes import Crossing
from tests.crossings.covering_cases import refused, working
from tests.crossings.judge import Judge
from tests.crossings.refusals import Refusal
from tests.crossings.refused_calls import refused_with
from tests.crossings.worlds import world_of

Said = Callable[[], str]


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str]) -> Said:
    """Return what was printed since the last time; what went to stderr stays for the report."""

    def read() -> str:
        captured = capfd.readouterr()
        sys.stderr.write(captured.err)
        return captured.out

    return read


# `make soak` runs every combination of three values.
STRENGTH = 3 if os.environ.get("ONCEKEY_SOAK") else 2


@pytest.mark.parametrize("crossing", working(STRENGTH), ids=str)
def test_a_crossing_that_can_work_keeps_every_rule(
    crossing: Crossing, tmp_path: Path, said: Said
) -> None:
    with world_of(crossing, tmp_path) as world:
        Judge(world).play(said)


@pytest.mark.parametrize(
    ("crossing", "refusal"), refused(), ids=[str(crossing) for crossing, _ in refused()]
)
def test_a_crossing_that_cannot_work_is_refused_before_anything_runs(
    crossing: Crossing,
    refusal: Refusal,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = refused_with(crossing, tmp_path, capfd)
    assert refusal.error in said.errors, said
    assert re.search(refusal.says, said.text + caplog.text, re.S), said
