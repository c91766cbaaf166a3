"""The tools that run these tests: order, seeds, the end of a run, repeated runs, versions."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import quick_tests, repeated_runs
from tests.support.python_versions import Interpreter, Row, interpreters
from tests.support.python_versions import table as version_table
from tests.support.repeated_runs import Run, counts, table
from tests.support.run_order import FIRST, shuffled
from tests.support.run_report import repeat_lines, skipped_groups, slowest_files
from tests.support.run_seed import run_seed, seed_of
from tests.support.servers import processes

ROOT = Path(__file__).parents[1]
GREEN = Run("2026-01-02 03:04:05", "1234567", 7, True, 61.0, 0, 12, 2, [], "3.11.7")
RED = Run("2026-01-02 03:05:06", "1234567", 8, True, 62.0, 1, 12, 2, ["tests.a::test_b"], "3.11.7")


# --- seeds and order ------------------------------------------------------------------------------


def test_each_test_has_its_own_seed_and_the_same_in_each_run(seed: int) -> None:
    here = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    assert seed == seed_of(here) == seed_of(here) != seed_of(here + "x")


def test_another_seed_of_the_run_gives_another_seed_to_each_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ONCEKEY_SEED", "41")
    first = seed_of("tests/a.py::test_b")
    monkeypatch.setenv("ONCEKEY_SEED", "42")
    assert run_seed() == 42
    assert seed_of("tests/a.py::test_b") != first


def test_without_a_seed_make_test_has_the_usual_one_and_soak_draws_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ONCEKEY_SEED", "x")  # so that it is put back as it was
    monkeypatch.delenv("ONCEKEY_SEED")
    monkeypatch.delenv("ONCEKEY_SOAK", raising=False)
    assert run_seed() == 1
    monkeypatch.delenv("ONCEKEY_SEED")
    monkeypatch.setenv("ONCEKEY_SOAK", "1")
    drawn = run_seed()
    assert os.environ["ONCEKEY_SEED"] == str(drawn)
    assert run_seed() == drawn


def test_a_shuffle_keeps_files_and_the_cases_of_a_test_together(
    request: pytest.FixtureRequest,
) -> None:
    items = [item for item in request.session.items if item.path.parent.name == "tests"]
    mixed = shuffled(items, random.Random(3))
    assert sorted(map(id, mixed)) == sorted(map(id, items))
    for names in (
        [str(item.path) for item in mixed],
        [item.nodeid.partition("[")[0] for item in mixed],
    ):
        changes = sum(name != following for name, following in itertools.pairwise(names))
        assert changes == len(set(names)) - 1


@pytest.mark.parametrize("file", FIRST)
def test_a_file_that_comes_first_exists(file: str) -> None:
    assert (ROOT / "tests" / file).exists()


# --- the end of a run -----------------------------------------------------------------------------


def test_a_run_lists_failures_with_the_line_that_repeats_them_and_skips_in_groups(
    tmp_path: Path,
) -> None:
    """A run of three tests in a process of its own."""
    (tmp_path / "test_example.py").write_text(
        "import pytest\n"
        "def test_fails(): assert False\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_skips(n): pytest.skip(f'no port {n}')\n",
        encoding="utf-8",
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.support.run_report", "-p", "no:xdist"],
        cwd=tmp_path,
        env={**os.environ, "ONCEKEY_SEED": "77", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 1
    assert "ONCEKEY_SEED=77 .venv/bin/python -m pytest test_example.py::test_fails" in done.stdout
    assert "      2  no port 2 (test_example.py 2)" in done.stdout


def test_slow_files_are_added_up_and_the_slowest_come_first() -> None:
    durations = [("a.py::x", 1.0), ("b.py::x", 2.5), ("a.py::y[1]", 2.0)]
    assert slowest_files(durations) == [
        "    3.0 s  a.py",
        "    2.5 s  b.py",
        "    5.5 s  in all 2 files, added up over the processes of the run",
    ]


def test_skips_that_differ_in_a_number_are_one_group() -> None:
    skipped = [("t/a/f.py::x", "port 1"), ("t/b/f.py::x", "port 22"), ("t/a/f.py::y", "no java")]
    assert skipped_groups(skipped) == [
        "      2  port 22 (t/a/f.py 1, t/b/f.py 1)",
        "      1  no java (t/a/f.py 1)",
    ]


def test_a_line_repeats_a_case_whose_id_a_shell_would_read() -> None:
    (line,) = repeat_lines(["t/f.py::x[a b-$c]", "t/f.py::x[a b-$c]"])
    assert line == f"ONCEKEY_SEED={run_seed()} .venv/bin/python -m pytest 't/f.py::x[a b-$c]'"


# --- repeated runs and versions -------------------------------------------------------------------


def test_the_table_counts_what_failed_and_the_green_runs_at_the_end() -> None:
    lines = table([GREEN, RED, GREEN, GREEN])
    assert "3 of 4 green, the last 2" in lines
    assert lines[-1] == "   1 x  tests.a::test_b (seed 8)"


def test_a_run_without_any_test_is_not_green(tmp_path: Path) -> None:
    assert counts(tmp_path / "missing.xml") == (0, 0, [])
    assert not Run("", "", 1, False, 1.0, 0, 0, 0, [], "").is_green


def test_failures_errors_and_skips_are_read_from_junit(tmp_path: Path) -> None:
    junit = tmp_path / "run.xml"
    junit.write_text(
        "<testsuites><testsuite>"
        "<testcase classname='t.a' name='ok'/>"
        "<testcase classname='t.a' name='bad'><failure/></testcase>"
        "<testcase classname='t.a' name='worse'><error/></testcase>"
        "<testcase classname='t.a' name='left'><skipped/></testcase>"
        "</testsuite></testsuites>",
        encoding="utf-8",
    )
    assert counts(junit) == (4, 1, ["t.a::bad", "t.a::worse"])


def test_repeated_runs_say_what_make_test_says() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"PARALLEL = {' '.join(repeated_runs.PARALLEL)}\n" in makefile


def test_make_quick_collects_the_folders_of_the_quick_part() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"$(addprefix tests/,{' '.join(quick_tests.FOLDERS)})" in makefile


def test_this_python_is_found_and_what_does_not_run_is_passed_over(tmp_path: Path) -> None:
    broken = tmp_path / "python3.99"
    broken.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    broken.chmod(0o755)
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info[1]}"
    assert interpreters([broken, tmp_path / "none", Path(sys.executable), base, base]) == [
        Interpreter(base, sys.version_info[:3])
    ]


def test_a_version_that_failed_is_red_in_the_table() -> None:
    python = Interpreter(Path("/p"), (3, 12, 1))
    lines = version_table(
        [Row(python, 61.0, True, "3 passed"), Row(python, 5.0, False, "1 failed")]
    )
    assert lines[1:] == [
        "3.12.1     1:01 min  green: 3 passed",
        "3.12.1     0:05 min  RED: 1 failed",
    ]


def test_the_versions_of_the_classifiers_begin_where_requires_python_does() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'requires-python = ">=3.11"' in project
    for minor in (11, 12, 13):
        assert f'"Programming Language :: Python :: 3.{minor}"' in project


def test_a_server_does_not_start_in_the_quick_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(quick_tests.VARIABLE, "1")
    with pytest.raises(AssertionError, match="make quick"):
        processes.launch(
            "sleep", ["sleep", "1"], processes.User(), tmp_path, death_signal="SIGKILL"
        )
