"""Fixtures for every folder: the stores of the table, which are closed when the run ends."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:
    # So that plain `pytest` finds `tests.support`, as `python -m pytest` does.
    sys.path.insert(0, str(ROOT))

pytest.register_assert_rewrite("oncekey.testing.contract")

from tests.support import reused_redis_stores, reused_stores  # noqa: E402
from tests.support.servers import processes  # noqa: E402
from tests.support.store_table import STORES, Opener  # noqa: E402


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """Yield an empty folder whose files are in memory where the system allows it.

    A suite of many short tests does not wait for a disk: what survives a crash is for tests/fault.
    """
    folder = processes.memory_scratch() / processes.fresh_name("test")
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=STORES)
def opener(request: pytest.FixtureRequest, memory_folder: Path) -> Opener:
    """Return a function that opens an empty store; the test runs once per store of the table."""
    name: str = request.param
    return lambda clock: STORES[name](memory_folder, clock)


def pytest_sessionfinish() -> None:
    reused_redis_stores.close_all()
    reused_stores.close_all()
