"""Every seeded bug must be caught, and for the invariant that it breaks.

Each mutant is the real source text with one thing wrong. If one survives, the explorer or the races
on SQLite and PostgreSQL do not check enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.support.explorer.code_under_test import CodeUnderTest
from tests.support.explorer.mutation import Edit, mutated
from tests.support.explorer.scenarios import SCENARIOS
from tests.support.explorer.search import explore
from tests.support.mutants.core_mutants import MORE, MUTANTS, TWELVE, Mutant
from tests.support.mutants.explorer_tool import Violation, explore_mutant
from tests.support.mutants.sql_mutants import M11, SQL_MUTANTS, SQLMutant

from oncekey.core import attempt_flow, heartbeat_flow, state_machine

Add = Callable[[Mutant | SQLMutant, Violation | None], None]


@pytest.fixture(scope="module")
def table(summary: list[str]) -> Iterator[Add]:
    """Collects one line per mutant for the summary at the end of the run."""
    lines: list[str] = []
    caught: dict[str, bool] = {}

    def add(mutant: Mutant | SQLMutant, how: Violation | None) -> None:
        caught[mutant.number] = how is not None and how.invariant == mutant.breaks
        result = f"{how.invariant:<4} {how.effort}" if how else "SURVIVED"
        lines.append(f"{mutant.number:<4} {mutant.name:<44} {result}")

    yield add
    seeded = sum(caught.get(number, False) for number in TWELVE)
    more = [right for number, right in caught.items() if number not in TWELVE]
    lines.append(f"caught {seeded} of 12 seeded mutants, {sum(more)} of {len(more)} more")
    summary.extend(["", *lines])


@pytest.mark.parametrize("mutant", [*MUTANTS, *MORE], ids=lambda m: f"{m.number} {m.name}")
def test_a_mutant_is_caught_for_what_it_breaks(mutant: Mutant, table: Add) -> None:
    how = explore_mutant(mutant)
    table(mutant, how)
    assert how is not None, "it survived"
    assert how.invariant == mutant.breaks, how.what


@pytest.mark.parametrize("mutant", [M11, *SQL_MUTANTS], ids=lambda m: f"{m.number} {m.name}")
def test_a_mutant_of_the_sql_is_caught_for_what_it_breaks(mutant: SQLMutant, table: Add) -> None:
    how = explore_mutant(mutant)
    table(mutant, how)
    assert how is not None, "it survived"
    assert how.invariant == mutant.breaks, how.what


def test_all_twelve_mutants_of_the_design_are_there() -> None:
    assert {mutant.number for mutant in (*MUTANTS, M11)} == TWELVE


def test_an_edit_whose_text_is_not_found_once_is_refused() -> None:
    with pytest.raises(ValueError, match="occurs 0 times"):
        mutated(state_machine, Edit("no such text", ""))
    with pytest.raises(ValueError, match="needs text that occurs once"):
        mutated(state_machine, Edit("return", ""))


def test_an_unchanged_copy_of_the_code_breaks_no_invariant() -> None:
    machines, flows, beats = mutated(state_machine), mutated(attempt_flow), mutated(heartbeat_flow)
    share = machines.reply_to_duplicate
    code = CodeUnderTest(
        machines.decide, machines.is_garbage, flows.attempt, beats.heartbeat, share
    )
    other = next(each for each in SCENARIOS if each.name.startswith("another request"))
    report = explore(other, code)
    assert report.violation is None
    assert report.states > 20_000
