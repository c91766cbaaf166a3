"""Whether the contract suite catches a mutant: the tests that fail, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.support.mutants.core_mutants import Mutant
from tests.support.mutants.source_tree import ROOT, source_tree
from tests.support.mutants.sql_mutants import SQLMutant

STORE_TESTS = "tests/contract/test_store_contract.py"
POSTGRES_TESTS = "tests/contract/test_postgres_store_contract.py"
ENGINE_TESTS = "tests/contract/test_engine_contract.py"
CHEAP_TESTS = "tests/support/mutants/contract_rows.py"
TEST_TIMEOUT_SECONDS = 20
RUN_TIMEOUT_SECONDS = 900


@dataclass(frozen=True)
class FailedTest:
    """A test of the contract that failed: its name, its row, and the first line of why."""

    name: str
    row: str
    why: str


@dataclass(frozen=True)
class ContractRun:
    """How many tests of the contract ran, and which failed."""

    tests: int
    failed: tuple[FailedTest, ...]


def run_rows(mutant: Mutant | SQLMutant | None, rows: Sequence[str]) -> ContractRun:
    """Run both contracts of these rows, as `make test` does."""
    chosen = " or ".join(f"({row} and not moving)" for row in rows)
    return _run(mutant, [STORE_TESTS, POSTGRES_TESTS, ENGINE_TESTS, "-k", chosen])


def run_tests(mutant: Mutant | SQLMutant | None, ids: Sequence[str]) -> ContractRun:
    """Run these tests alone, by their ids."""
    if all(id.startswith(CHEAP_TESTS) for id in ids):
        # Without the fixtures of tests/conftest.py, which import what every store needs.
        return _run(mutant, ["--noconftest", *ids])
    return _run(mutant, ids)


def _run(mutant: Mutant | SQLMutant | None, arguments: Sequence[str]) -> ContractRun:
    with source_tree(mutant) as environment, tempfile.TemporaryDirectory() as name:
        report = Path(name) / "report.xml"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-p", "pytest_timeout", "--timeout", str(TEST_TIMEOUT_SECONDS)),
            *("--junitxml", str(report), *arguments),
        ]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": "true"},
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode not in (0, 1) or not report.exists():
            raise AssertionError(f"the contract suite itself failed:\n{done.stdout}{done.stderr}")
        return _read(report)


def _read(report: Path) -> ContractRun:
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = []
    for case in cases:
        problem = case.find("failure") if case.find("error") is None else case.find("error")
        if problem is not None:
            name, _, row = case.get("name", "").partition("[")
            why = problem.get("message", "").partition("\n")[0]
            failed.append(FailedTest(name, row.rstrip("]"), why))
    return ContractRun(sum(case.find("skipped") is None for case in cases), tuple(failed))
