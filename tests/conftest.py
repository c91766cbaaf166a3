"""Fixtures for every folder: the stores of the table, which are closed when the run ends."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:
    # So that plain `pytest` finds `tests.support`, as `python -m pytest` does.
    sys.path.insert(0, str(ROOT))

pytest.register_assert_rewrite("oncekey.testing.contract")

# Before gRPC is imported: what it does in a fork crashes some of them, and no fork here uses it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from tests.support import quick_tests, reused_redis_stores, reused_stores  # noqa: E402
from tests.support.covering_sets import left_to_soak  # noqa: E402
from tests.support.run_order import put_in_order  # noqa: E402
from tests.support.run_report import pytest_terminal_summary  # noqa: E402, F401
from tests.support.run_seed import USUAL, run_seed, seed_of  # noqa: E402
from tests.support.servers import processes  # noqa: E402
from tests.support.store_table import STORES, Opener  # noqa: E402

# The examples of Hypothesis are the same in every run with the usual seed, too, and none is judged
# by the time that it took.
settings.register_profile(
    "proof",
    derandomize=run_seed() == USUAL,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("proof")

# The folders of tests are in memory where the system allows it, as the servers' are: processes are
# killed here, machines are not, and thousands of tests would wait for a disk. The run begins here,
# in the process that starts the others, so that all of them have its folders and its reaper.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(processes.memory_scratch()))

# A run in the background of a shell inherits that Ctrl-C is ignored, and so would every program
# that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    return f"seed: {run_seed()} (ONCEKEY_SEED={run_seed()} draws the same lots again)"


@pytest.hookimpl(tryfirst=True)  # pytest then puts cases together that share a fixture
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left = set(left_to_soak(items))
    if quick_tests.is_asked_for():
        left |= {item for item in items if not quick_tests.is_quick(item)}
    if left:
        config.hook.pytest_deselected(items=sorted(left, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in left]
    put_in_order(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector a million objects of pytest, which stay until the run ends."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


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
