"""What the suites of the client share: each client by name, and a journal on a calendar."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.callers import NAMES
from tests.client.fake_time import Calendar

from oncekey.client import Journal


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """Every client in turn; see `callers.calling`."""
    given: str = request.param
    return given


@pytest.fixture
def journal_path(tmp_path: Path) -> Path:
    return tmp_path / "keys.journal"


@pytest.fixture
def calendar() -> Calendar:
    return Calendar()


@pytest.fixture
def journal(journal_path: Path, calendar: Calendar) -> Iterator[Journal]:
    with Journal(journal_path, clock=calendar) as opened:
        yield opened
