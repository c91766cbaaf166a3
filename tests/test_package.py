"""What is installed with oncekey and what stays beside the tests, and the map of the tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import DOCS, files

import oncekey.testing
import oncekey.testing.contract

TESTS = Path(__file__).parent
PACKAGE = Path(oncekey.__file__).parent
GUIDE = DOCS / "reference" / "testing.md"
MAP = (TESTS / "README.md").read_text(encoding="utf-8")
FOLDERS = sorted({path.parent.name for path in TESTS.glob("*/*.py")})
HELPERS = sorted(
    path.stem
    for path in (TESTS / "support").iterdir()
    if path.suffix == ".py" or (path / "__init__.py").exists()
)


# --- what is installed ----------------------------------------------------------------------------


def test_the_tools_of_our_own_tests_are_not_in_the_package() -> None:
    """The explorer, the hammer and the server helpers start processes and call apt-get."""
    names = {path.stem for path in (PACKAGE / "testing").rglob("*.py")}
    folders = {path.parent.name for path in (PACKAGE / "testing").rglob("*.py")}
    own = {"explore", "explorer", "hammer", "mutants", "servers"}
    assert own & (names | folders) == set()
    assert folders == {"testing", "contract", "app_check"}


def test_only_the_demo_and_a_counter_of_the_verifier_start_processes() -> None:
    """The demo's are its own workers; the verifier runs the user's program that counts effects."""
    starting = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"\b(subprocess|multiprocessing|os\.fork)\b", path.read_text("utf-8"))
    }
    assert starting == {"demo/workers.py", "verify/effect_counters.py"}


def test_the_testing_tools_import_without_pytest() -> None:
    """An application's own test runner may be another one."""
    script = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['pytest', 'hypothesis']))\n"  # None: ImportError
        "import oncekey.testing as testing\n"
        "assert all(hasattr(testing, name) for name in testing.__all__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


# --- what is documented ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *(f"oncekey.testing.{name}" for name in oncekey.testing.__all__),
        *(f"oncekey.testing.contract.{name}" for name in oncekey.testing.contract.__all__),
    ],
)
def test_a_testing_tool_is_in_the_guide_and_in_the_api_reference(name: str) -> None:
    reference = DOCS / "reference" / "api" / "testing.md"
    assert f"\n::: {name}\n" in reference.read_text(encoding="utf-8")
    assert f"`{name.rpartition('.')[2]}`" in GUIDE.read_text(encoding="utf-8")


def test_the_contract_suites_of_the_guide_are_collected_and_pass(tmp_path: Path) -> None:
    (code,) = files(GUIDE).values()
    (tmp_path / "test_my_store.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "claim", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 20


# --- the map of the tests -------------------------------------------------------------------------


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_of_tests_is_on_the_map(folder: str) -> None:
    assert f"`tests/{folder}`" in MAP


@pytest.mark.parametrize("helper", HELPERS)
def test_a_helper_in_support_is_on_the_map(helper: str) -> None:
    assert f"\n| `{helper}` | " in MAP


def test_the_map_names_nothing_that_is_gone() -> None:
    named = re.findall(r"`tests/([\w/.]+)`", MAP)
    assert [path for path in named if not (TESTS / path).exists()] == []
    assert set(re.findall(r"^\| `(\w+)` \| ", MAP, re.M)) <= set(HELPERS)
