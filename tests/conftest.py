"""Fixtures for every folder: the stores of the table, which are closed when the run ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:
    # So that plain `pytest` finds `tests.support`, as `python -m pytest` does.
    sys.path.insert(0, str(ROOT))

pytest.register_assert_rewrite("oncekey.testing.contract")

from tests.support import reused_redis_stores, reused_stores  # noqa: E402
from tests.support.store_table import STORES, Opener  # noqa: E402


@pytest.fixture(params=STORES)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Return a function that opens an empty store; the test runs once per store of the table."""
    name: str = request.param
    return lambda clock: STORES[name](tmp_path, clock)


def pytest_sessionfinish() -> None:
    reused_redis_stores.close_all()
    reused_stores.close_all()
