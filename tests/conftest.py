"""Fixtures for every folder: the stores of the table, which are closed when the run ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:
    # So that plain `pytest` finds `tests.support`, as `python -m pytest` does.
    sys.path.insert(0, str(ROOT))

pytest.register_assert_rewrite("oncekey.testing.contract")

from tests.support import reused_redis_stores, reused_stores  # noqa: E402
from tests.support.covering_sets import left_to_soak  # noqa: E402
from tests.support.run_seed import run_seed, seed_of  # noqa: E402
from tests.support.servers import processes  # noqa: E402
from tests.support.store_table import STORES, Opener  # noqa: E402

# The folders of tests are in memory where the system allows it, as the servers' are: processes are
# killed here, machines are not, and thousands of tests would wait for a disk.
if os.access(processes.MEMORY, os.W_OK):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(processes.MEMORY))


# `make test` tries the same examples every time, and none is judged by the time that it took.
settings.register_profile(
    "oncekey",
    deadline=None,
    derandomize=not os.environ.get("ONCEKEY_SOAK"),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("oncekey")

# The folders with the files that take longest. They come first, so that no core is left with one of
# them when the other has run out of files.
FIRST = (
    "contract",
    "explore",
    "fleet",
    "hammer",
    "demo",
    "model",
    "queues",
    "fault",
    "docs",
    "http",
)


def pytest_report_header() -> str:
    return f"seed: {run_seed()} (ONCEKEY_SEED={run_seed()} draws the same lots again)"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left = set(left_to_soak(items))
    if left:
        config.hook.pytest_deselected(items=sorted(left, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in left]
    ranks = {ROOT / "tests" / folder: rank for rank, folder in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.parent, len(FIRST)))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Return the seed of this test, for `random.Random`; it comes from the seed of the run."""
    return seed_of(request.node.nodeid)


@pytest.fixture(params=STORES)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Return a function that opens an empty store; the test runs once per store of the table."""
    name: str = request.param
    return lambda clock: STORES[name](tmp_path, clock)


def pytest_sessionfinish() -> None:
    reused_redis_stores.close_all()
    reused_stores.close_all()
