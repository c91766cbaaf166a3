"""What is installed with oncekey and what stays beside the tests, and the map of the tests."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.docs.pages import DOCS, files

import oncekey.testing
import oncekey.testing.contract

TESTS = Path(__file__).parent
ROOT = TESTS.parent
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


# --- what is built --------------------------------------------------------------------------------


def builds(call: str, folder: Path, into: Path) -> Path:
    """Build as a front-end does, in the tree itself and without the network; return the file."""
    script = f"import hatchling.build, sys; print(hatchling.build.{call}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", script, into], cwd=folder, capture_output=True, text=True, check=True
    )
    return into / done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of what a build reads, with files that a working tree has and no clone."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.fail("the build back-end is not installed: make setup")
    copy = tmp_path / "tree"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"):
        shutil.copy(ROOT / name, copy)
    for left in ("tests/servers.log", "build/lib/oncekey/old.py", "src/oncekey/__pycache__/a.pyc"):
        (copy / left).parent.mkdir(parents=True, exist_ok=True)
        (copy / left).touch()
    return copy


def contents(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def test_an_install_leaves_nothing_in_the_tree_that_a_later_wheel_takes(
    tree: Path, tmp_path: Path
) -> None:
    removed = tree / "src" / "oncekey" / "removed.py"
    removed.touch()
    before = contents(tree)
    options = ["--no-build-isolation", "--no-index", "--no-deps", "--no-compile", "--quiet"]
    install = [sys.executable, "-m", "pip", "install", ".", *options]
    subprocess.run([*install, "--target", tmp_path / "installed"], cwd=tree, check=True)
    assert (tmp_path / "installed" / "oncekey" / "removed.py").exists()
    assert contents(tree) == before
    removed.unlink()
    with zipfile.ZipFile(builds("build_wheel", tree, tmp_path)) as wheel:
        assert "oncekey/removed.py" not in wheel.namelist()
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    sources = contents(ROOT / "src")
    assert packed == {path.as_posix() for path in sources if "__pycache__" not in path.parts}


def test_the_source_distribution_has_the_package_and_no_more(tree: Path, tmp_path: Path) -> None:
    with tarfile.open(builds("build_sdist", tree, tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    beside = {name for name in names if not name.startswith("src/")}
    assert beside == {
        *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore", "PKG-INFO")
    }
    assert "src/oncekey/py.typed" in names
    assert not any("__pycache__" in name for name in names)


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
