"""The pytest plugin of oncekey: fixtures for tests of code that uses it.

    def test_a_charge_runs_once(oncekey_once, oncekey_effects):
        for _ in range(2):
            oncekey_once.run("charge", "order-17", lambda attempt: oncekey_effects.record())
        assert len(oncekey_effects) == 1

pytest loads this module in every project that has oncekey installed. So it is outside of the
package, and imports nothing of it before a fixture is asked for.

The store is in memory, unless the command line (`--oncekey-store sqlite`), the configuration
(`oncekey_store = sqlite`) or a marker (`@pytest.mark.oncekey_store("memory", "sqlite")`) says
otherwise; the marker counts most. With several stores a test runs once for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from oncekey import AsyncOnce, Once, Policy
    from oncekey.testing import (
        AsyncEffects,
        AsyncFaultyStore,
        Effects,
        Failpoints,
        FakeClock,
        FaultyStore,
    )

STORE = "oncekey_store"
STORE_FIXTURE = "oncekey_store_name"

# The asserts of the contract suites then say what they compared, as those of a test do.
pytest.register_assert_rewrite("oncekey.testing.contract")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "the store of the oncekey fixtures: memory (the default), sqlite, or a URL"
    group = parser.getgroup("oncekey")
    group.addoption(
        "--oncekey-store",
        action="append",
        dest=STORE,
        metavar="STORE",
        help=f"{text}; given several times, tests run once for each",
    )
    parser.addini(STORE, f"{text}; several are separated by spaces", type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{STORE}(name, ...): the stores of the oncekey fixtures in this test"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if STORE_FIXTURE in metafunc.fixturenames and not _is_parametrized(metafunc):
        marker = metafunc.definition.get_closest_marker(STORE)
        names = _names(metafunc.config, marker)
        if len(names) > 1:
            metafunc.parametrize(STORE_FIXTURE, names, indirect=True)


def _is_parametrized(metafunc: pytest.Metafunc) -> bool:
    """True if a test names its stores by `parametrize` itself."""
    marks = metafunc.definition.iter_markers("parametrize")
    return any(mark.args and STORE_FIXTURE in mark.args[0] for mark in marks)


def _names(config: pytest.Config, marker: pytest.Mark | None) -> list[str]:
    """The names of the stores that a test runs on."""
    if marker is not None:
        return list(marker.args)
    return config.getoption(STORE) or config.getini(STORE) or ["memory"]


# --- time and faults ------------------------------------------------------------------------------


@pytest.fixture
def oncekey_store_name(request: pytest.FixtureRequest) -> str:
    """The store of the other fixtures: "memory", "sqlite" or a URL."""
    if hasattr(request, "param"):
        name: str = request.param
        return name
    names = _names(request.config, request.node.get_closest_marker(STORE))
    if not names:
        pytest.fail(f'the marker names stores: @pytest.mark.{STORE}("sqlite")', pytrace=False)
    return names[0]


@pytest.fixture
def oncekey_clock(oncekey_store_name: str) -> FakeClock:
    """The clock of the store and of the engines. It stands still until the test moves it."""
    from oncekey.testing import FakeClock
    from oncekey.testing.throwaway_stores import has_own_clock

    if has_own_clock(oncekey_store_name):
        pytest.fail(
            f"oncekey_clock cannot move the clock of {oncekey_store_name}; mark this test with "
            "@pytest.mark.oncekey_store('memory')",
            pytrace=False,
        )
    return FakeClock()


@pytest.fixture
def oncekey_failpoints(oncekey_store_name: str, request: pytest.FixtureRequest) -> Failpoints:
    """The failpoints of the stores of the other fixtures."""
    from oncekey.testing import Failpoints
    from oncekey.testing.throwaway_stores import has_own_clock

    if has_own_clock(oncekey_store_name):
        return Failpoints()
    return Failpoints(request.getfixturevalue("oncekey_clock"))


@pytest.fixture
def oncekey_effects() -> Effects:
    """A counter for a fake of the outside world: `oncekey_effects.record()`."""
    from oncekey.testing import Effects

    return Effects()


@pytest.fixture
def oncekey_async_effects() -> AsyncEffects:
    """The same for async code: `await oncekey_async_effects.record()`."""
    from oncekey.testing import AsyncEffects

    return AsyncEffects()


# --- stores and engines ---------------------------------------------------------------------------


@pytest.fixture
def oncekey_policy() -> Policy:
    """The policy of the engines; override it with a fixture of the same name."""
    from oncekey import Policy

    return Policy()


@pytest.fixture
def oncekey_store(
    oncekey_store_name: str, oncekey_failpoints: Failpoints, tmp_path: Path
) -> Iterator[FaultyStore]:
    """A throwaway store with failpoints."""
    from oncekey.testing.throwaway_stores import open_throwaway

    opened = open_throwaway(oncekey_store_name, tmp_path, oncekey_failpoints.clock)
    yield oncekey_failpoints.wrap(opened)
    opened.close()


@pytest.fixture
def oncekey_async_store(
    oncekey_store_name: str, oncekey_failpoints: Failpoints, tmp_path: Path
) -> Iterator[AsyncFaultyStore]:
    """An async throwaway store with failpoints."""
    from oncekey.testing.throwaway_stores import close_async, open_throwaway_async

    opened = open_throwaway_async(oncekey_store_name, tmp_path, oncekey_failpoints.clock)
    yield oncekey_failpoints.wrap(opened)
    close_async(opened.close)


@pytest.fixture
def oncekey_once(
    oncekey_store: FaultyStore, oncekey_failpoints: Failpoints, oncekey_policy: Policy
) -> Iterator[Once]:
    """An `Once` on `oncekey_store`."""
    from oncekey import Once

    once = Once(oncekey_store, policy=oncekey_policy, clock=oncekey_failpoints.clock)
    yield once
    oncekey_failpoints.clear()
    once.close()


@pytest.fixture
def oncekey_async_once(
    oncekey_async_store: AsyncFaultyStore, oncekey_failpoints: Failpoints, oncekey_policy: Policy
) -> Iterator[AsyncOnce]:
    """An `AsyncOnce` on `oncekey_async_store`."""
    from oncekey import AsyncOnce
    from oncekey.testing.throwaway_stores import close_async

    once = AsyncOnce(oncekey_async_store, policy=oncekey_policy, clock=oncekey_failpoints.clock)
    yield once
    oncekey_failpoints.clear()
    close_async(once.close)
