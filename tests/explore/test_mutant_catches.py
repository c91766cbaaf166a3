"""Each of the twelve mutants is caught by two tools, here by the two that cost the least.

These are the contract suite, by the one test that must fail, and the simulation; for bugs in the
statements of a store it is the explorer instead. `make mutants` runs every tool on every mutant.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.mutants import __main__ as command
from tests.support.mutants.catch_table import Cell, TableRow, as_json, as_markdown, run_table
from tests.support.mutants.contract_tool import run_tests
from tests.support.mutants.core_mutants import TWELVE, Mutant
from tests.support.mutants.expected_catches import ALL_TWELVE, EXPECTED, run_expected
from tests.support.mutants.explorer_tool import explore_mutant
from tests.support.mutants.no_op_mutants import NO_OPS
from tests.support.mutants.simulation_tool import is_simulated, simulate_mutant
from tests.support.mutants.sql_mutants import SQLMutant

SEEDS_OF_A_NO_OP = 300


# A test of the contract that is a race catches its mutant after some tries; the explorer plays the
# same race in every order, always.
RACES = [mutant for mutant in ALL_TWELVE if EXPECTED[mutant.number].tries > 1]
CERTAIN = [mutant for mutant in ALL_TWELVE if mutant not in RACES]
# One is caught on the memory store, one on SQLite, one by the engine's contract. The others are as
# many proofs of the same tools, which `make mutants` repeats.
IN_EVERY_RUN = {"m1", "m3", "m6"}


def name_of(mutant: Mutant | SQLMutant) -> str:
    return f"{mutant.number} {mutant.name}"


@pytest.mark.parametrize("mutant", RACES, ids=name_of)
def test_a_mutant_that_loses_a_race_is_caught_by_the_explorer(mutant: SQLMutant) -> None:
    violation = explore_mutant(mutant)
    assert violation is not None
    assert violation.invariant == mutant.breaks


@pytest.mark.soak
@pytest.mark.seeded
@pytest.mark.parametrize("mutant", RACES, ids=name_of)
def test_a_mutant_that_loses_a_race_is_caught_by_the_contract(mutant: SQLMutant) -> None:
    run = run_expected(mutant)
    assert [test.name for test in run.failed] == [EXPECTED[mutant.number].test]


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, marks=() if mutant.number in IN_EVERY_RUN else pytest.mark.soak)
        for mutant in CERTAIN
    ],
    ids=name_of,
)
def test_a_mutant_is_caught_by_two_tools(mutant: Mutant | SQLMutant) -> None:
    expected = EXPECTED[mutant.number]
    run = run_expected(mutant)
    assert run.tests == 1
    assert [test.name for test in run.failed] == [expected.test]
    if is_simulated(mutant):
        assert isinstance(mutant, Mutant)
        found = simulate_mutant(mutant)
        assert found is not None
        assert found[1].invariant == mutant.breaks
    else:
        violation = explore_mutant(mutant)
        assert violation is not None
        assert violation.invariant == mutant.breaks


def test_an_edit_that_changes_nothing_is_caught_by_no_tool() -> None:
    """So the tests that catch the twelve fail because of them. `make mutants` has the hammer, too,
    and the SQL."""
    no_op = NO_OPS[0]
    assert isinstance(no_op, Mutant)
    on_postgres = EXPECTED["m11"].test_id
    ids = sorted({expected.test_id for expected in EXPECTED.values()} - {on_postgres})
    run = run_tests(no_op, ids)
    assert (run.tests, run.failed) == (11, ())
    assert simulate_mutant(no_op, SEEDS_OF_A_NO_OP) is None


def test_every_mutant_of_the_design_has_what_must_catch_it() -> None:
    assert {mutant.number for mutant in ALL_TWELVE} == EXPECTED.keys() == TWELVE


# --- the table ------------------------------------------------------------------------------------


def row(number: str, *caught_by: str) -> TableRow:
    return TableRow(number, "a bug", "I1", tuple(Cell("tool", by, "effort") for by in caught_by))


@pytest.mark.parametrize(
    ("made", "right"),
    [
        (row("m1", "I1", "I2", ""), True),
        (row("m1", "I1", "", ""), False),
        (row("m1", "I1"), True),  # only one tool was asked for
        (row("m1", ""), False),
        (row("n1", "", ""), True),
        (row("n1", "", "I1"), False),
    ],
)
def test_the_table_is_wrong_if_a_mutant_is_caught_too_seldom_or_a_no_op_at_all(
    made: TableRow, right: bool
) -> None:
    assert made.is_right is right
    assert as_json([row("m2", "I1", "I2"), made])["right"] is right
    assert ("wrong" in command.summary([made])) is not right


def test_a_tool_that_finds_another_bug_has_not_caught_the_mutant() -> None:
    (m1,) = [mutant for mutant in ALL_TWELVE if mutant.number == "m1"]
    assert isinstance(m1, Mutant)
    other = Mutant(m1.number, m1.name, m1.module, m1.edits, m1.where, "I11")
    lines: list[str] = []
    (found,) = run_table([other], ["explorer"], lines.append)
    assert (found.cells[0].caught_by, found.cells[0].effort) == ("", "found only I2")
    assert "not caught; found only I2" in lines[-1]


def test_the_page_has_the_table_of_today_s_mutants() -> None:
    """Written by `make mutants ARGS=--docs`."""
    text = command.PAGE.read_text("utf-8")
    table = text.partition(command.BEGIN)[2].partition(command.END)[0]
    rows = {line.split()[1]: line for line in table.splitlines() if re.match(r"\| [mn]\d", line)}
    assert rows.keys() == TWELVE | {mutant.number for mutant in NO_OPS}
    for mutant in (*ALL_TWELVE, *NO_OPS):
        tools = int(rows[mutant.number].split("|")[-2])
        expected = EXPECTED.get(mutant.number)
        assert f"| {mutant.number} {mutant.name} |" in rows[mutant.number]
        assert tools >= 2 if expected else tools == 0
        assert expected is None or f"`{expected.test}`" in rows[mutant.number]


def test_a_page_gets_a_new_table_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{command.BEGIN}old{command.END}after\n", "utf-8")
    command.write_page(page, [row("m1", "I1", "test_i1_it")])
    text = page.read_text("utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert as_markdown([row("m1", "I1", "test_i1_it")]) in text
