"""What every suite needs: stores of each kind in turn, and that nothing outlives the run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(
        0, str(ROOT)
    )  # plain `pytest` finds `tests.support`, as `python -m pytest` does

pytest.register_assert_rewrite("oncekey.testing.contract")

from tests.support import reused_stores  # noqa: E402
from tests.support.store_table import STORES, Opener  # noqa: E402


@pytest.fixture(params=STORES)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens an empty store of each kind in turn."""
    name: str = request.param
    return lambda clock: STORES[name](tmp_path, clock)


def pytest_sessionfinish() -> None:
    reused_stores.end_all()
