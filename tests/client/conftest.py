"""Fixtures of the client's tests: each client by name, and a journal with a fake clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.client.clients import CLIENT_NAMES
from tests.client.fake_retry_clock import FakeWallClock

from oncekey.client import Journal


@pytest.fixture(autouse=True)
def patient_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a client wait a minute where it says nothing: a busy machine may cross the five seconds
    of httpx, and then a request is tried once more than the test expects."""
    for name in ("connect", "read", "write", "pool"):
        monkeypatch.setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, name, 60.0)


@pytest.fixture(params=CLIENT_NAMES)
def client_name(request: pytest.FixtureRequest) -> str:
    """A test that takes this runs once per client; see `clients.open_client`."""
    name: str = request.param
    return name


@pytest.fixture
def journal_path(tmp_path: Path) -> Path:
    return tmp_path / "keys.journal"


@pytest.fixture
def wall_clock() -> FakeWallClock:
    return FakeWallClock()


@pytest.fixture
def journal(journal_path: Path, wall_clock: FakeWallClock) -> Iterator[Journal]:
    with Journal(journal_path, clock=wall_clock) as opened:
        yield opened
