"""The pytest plugin: its fixtures, how their store is chosen, and what loading it costs."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.docs.pages import DOCS, files

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# Tests of somebody who uses the fixtures.
USERS_TESTS = """
import asyncio

import pytest

from oncekey import OutcomeUnknown, Policy
from oncekey.testing import SimulatedCrash


def store_class(store):
    return type(store.inner).__name__


@pytest.mark.parametrize("oncekey_store_name", ["sqlite"], indirect=True)
def test_a_test_may_name_its_stores_itself(oncekey_store):
    assert store_class(oncekey_store) == "SQLiteStore"


def test_an_operation_runs_once(oncekey_once, oncekey_effects):
    for _ in range(2):
        oncekey_once.run("charge", "order-17", lambda attempt: oncekey_effects.record())
    assert len(oncekey_effects) == 1


@pytest.mark.oncekey_store("memory", "sqlite")
def test_a_crash_is_unknown_after_its_lease(oncekey_once, oncekey_clock, oncekey_failpoints):
    oncekey_failpoints.crash(before="finish")
    with pytest.raises(SimulatedCrash):
        oncekey_once.run("charge", "order-17", lambda attempt: None)
    oncekey_clock.advance(5_000_000)
    with pytest.raises(OutcomeUnknown):
        oncekey_once.run("charge", "order-17", lambda attempt: None)


@pytest.mark.oncekey_store("memory", "sqlite")
def test_async_engines_have_fixtures_too(oncekey_async_once, oncekey_async_effects):
    async def body(attempt):
        await oncekey_async_effects.record()

    async def main():
        for _ in range(2):
            await oncekey_async_once.run("charge", "order-17", body)

    asyncio.run(main())
    assert len(oncekey_async_effects) == 1


def test_the_store_comes_from_the_configuration(oncekey_store):
    assert store_class(oncekey_store) == "SQLiteStore"


@pytest.mark.oncekey_store("memory")
def test_a_marker_counts_more(oncekey_store, oncekey_store_name):
    assert (store_class(oncekey_store), oncekey_store_name) == ("MemoryStore", "memory")


@pytest.mark.oncekey_store("postgresql://localhost/test")
def test_a_store_at_a_url_has_its_own_clock(oncekey_failpoints):
    assert oncekey_failpoints.clock is None


@pytest.mark.oncekey_store("postgresql://localhost/test")
def test_its_clock_cannot_be_moved(oncekey_clock):
    raise NotImplementedError


@pytest.mark.oncekey_store(name="sqlite")
def test_a_marker_without_a_name(oncekey_clock):
    raise NotImplementedError


@pytest.mark.oncekey_store("postgres")
def test_a_name_that_is_no_store(oncekey_clock):
    raise NotImplementedError


@pytest.fixture
def oncekey_policy():
    return Policy(lease="5s")
"""


def run_pytest(folder: Path, *arguments: str) -> str:
    """Run the tests of a folder in a process of their own, with the plugin."""
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "pytest", "-p", "oncekey_pytest"),
            *("-p", "no:cacheprovider", "-q", "-rA", "--strict-markers", *arguments),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout + done.stderr


def test_fixtures_give_engines_on_the_chosen_store(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(USERS_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\noncekey_store = sqlite\n")
    output = run_pytest(tmp_path)
    assert "9 passed, 3 errors" in output, output
    for store in ("memory", "sqlite"):
        assert f"PASSED test_shop.py::test_a_crash_is_unknown_after_its_lease[{store}]" in output
    assert "oncekey_clock cannot move the clock of postgresql://localhost/test" in output
    assert 'the marker names stores: @pytest.mark.oncekey_store("sqlite")' in output
    assert "'postgres' is no store for tests; give memory, sqlite, or a URL" in output


def test_the_command_line_can_name_several_stores(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(USERS_TESTS)
    stores = ("--oncekey-store=memory", "--oncekey-store=sqlite")
    output = run_pytest(tmp_path, *stores, "-k", "runs_once or itself")
    assert "3 passed" in output, output
    assert "test_an_operation_runs_once[sqlite]" in output


def test_pytest_finds_the_plugin_in_the_wheel() -> None:
    """An entry point is named like its module, so that `-p` does not load it a second time."""
    points = PROJECT["project"]["entry-points"]["pytest11"]
    assert points == {"oncekey_pytest": "oncekey_pytest"}
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "src/oncekey_pytest.py" in wheel["only-include"]


def test_loading_the_plugin_imports_nothing_of_oncekey() -> None:
    """pytest loads it in every project that has oncekey installed."""
    script = (
        "import pytest, sys, oncekey_pytest\n"
        "print(*[name for name in sys.modules if name.partition('.')[0] == 'oncekey'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")


# --- the wheel ------------------------------------------------------------------------------------

OF_THE_WHEEL = ("src", "pyproject.toml", "README.md", "LICENSE")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def install_wheel(folder: Path) -> Path:
    """Build a wheel of this tree, and install it; the folder it is installed in."""
    source, wheels, site = folder / "source", folder / "wheels", folder / "site"
    listed = subprocess.check_output(["git", "ls-files", "-z", *OF_THE_WHEEL], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    alone = ("--no-deps", "--no-index")
    subprocess.check_call(
        [*PIP, "wheel", *alone, "--no-build-isolation", "--wheel-dir", wheels, source]
    )
    (wheel,) = wheels.iterdir()
    subprocess.check_call([*PIP, "install", *alone, "--target", site, wheel])
    return site


@pytest.mark.soak  # it builds and installs a wheel
def test_an_installed_wheel_brings_the_contract_suite_and_the_fixtures(tmp_path: Path) -> None:
    site, project = install_wheel(tmp_path), tmp_path / "project"
    project.mkdir()
    for name, code in files(DOCS / "reference" / "testing.md").items():
        (project / name).write_text(code)
    (project / "test_wheel.py").write_text(
        "import oncekey\n\n"
        "def test_the_wheel_is_used_and_its_fixtures_are_found(oncekey_once):\n"
        f"    assert oncekey.__file__.startswith({str(site)!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
