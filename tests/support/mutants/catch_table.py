"""The table of mutants and tools: which test or invariant catches what, and how long that took.

A cell is one tool run on one mutant. Caught means: by what `expected_catches` and the mutant itself
name. Of a mutant that is none, anything that a tool finds counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any, Final

from tests.support.mutants.contract_tool import run_rows
from tests.support.mutants.core_mutants import TWELVE, Mutant
from tests.support.mutants.expected_catches import (
    EXPECTED,
    ROWS,
    ROWS_ON_POSTGRES,
    run_expected,
)
from tests.support.mutants.explorer_tool import explore_mutant
from tests.support.mutants.hammer_tool import RUNS_MAX, hammer_mutant
from tests.support.mutants.simulation_tool import SEEDS, is_simulated, simulate_mutant
from tests.support.mutants.sql_mutants import SQLMutant

AnyMutant = Mutant | SQLMutant
LEAST_TOOLS: Final = 2
NO_OP_HAMMER_RUNS: Final = 3


@dataclass(frozen=True)
class Cell:
    """What one tool says of one mutant. `caught_by` is a test or an invariant, "" if it is not
    caught; `effort` is what that took, or why the tool was not run."""

    tool: str
    caught_by: str
    effort: str
    seconds: float = 0.0
    ran: bool = True


@dataclass(frozen=True)
class TableRow:
    """One mutant and what every tool says of it."""

    number: str
    name: str
    breaks: str
    cells: tuple[Cell, ...]

    @property
    def tools(self) -> int:
        """How many tools have caught it."""
        return sum(bool(cell.caught_by) for cell in self.cells)

    @property
    def is_right(self) -> bool:
        """Caught by two tools or more (by one, if only one was run), or by none if nothing is
        wrong."""
        if self.number not in TWELVE:
            return self.tools == 0
        return self.tools >= min(LEAST_TOOLS, len(self.cells))


def by_explorer(mutant: AnyMutant) -> Cell:
    found = explore_mutant(mutant)
    if found is None:
        return Cell("explorer", "", "nothing found")
    right = mutant.number not in EXPECTED or found.invariant == mutant.breaks
    effort = found.effort if right else f"found only {found.invariant}"
    return Cell("explorer", found.invariant if right else "", effort)


def by_contract(mutant: AnyMutant) -> Cell:
    rows = ROWS_ON_POSTGRES if isinstance(mutant, SQLMutant) else ROWS
    run = run_rows(mutant, rows)
    failed = list(dict.fromkeys(test.name for test in run.failed))
    expected = EXPECTED.get(mutant.number)
    effort = f"{len(run.failed)} of {run.tests:,} tests fail"
    if expected is None:
        return Cell("contract", next(iter(failed), ""), effort)
    if expected.test not in failed and expected.tries > 1:
        failed += [test.name for test in run_expected(mutant).failed]
    return Cell("contract", expected.test if expected.test in failed else "", effort)


def by_hammer(mutant: AnyMutant) -> Cell:
    expected = EXPECTED.get(mutant.number)
    rule = "" if expected is None else expected.rule
    run = hammer_mutant(mutant, rule, NO_OP_HAMMER_RUNS if expected is None else RUNS_MAX)
    found = [words.split()[0] for words in run.violations if words.startswith(rule)]
    return Cell("hammer", next(iter(found), ""), f"{run.commands:,} commands")


def by_simulation(mutant: AnyMutant) -> Cell:
    if not is_simulated(mutant):
        return Cell("simulation", "", "the bug is in a store's statements", ran=False)
    assert isinstance(mutant, Mutant)
    found = simulate_mutant(mutant)
    if found is None:
        return Cell("simulation", "", f"{SEEDS:,} seeds")
    seed, broken = found
    right = mutant.number not in EXPECTED or broken.invariant == mutant.breaks
    return Cell("simulation", broken.invariant if right else "", f"seed {seed}")


TOOLS: Final[dict[str, Callable[[AnyMutant], Cell]]] = {
    "explorer": by_explorer,
    "contract": by_contract,
    "hammer": by_hammer,
    "simulation": by_simulation,
}


def run_table(
    mutants: Iterable[AnyMutant], tools: Sequence[str], progress: Callable[[str], None]
) -> list[TableRow]:
    """Run every tool on every mutant, and say what goes on."""
    rows = []
    for mutant in mutants:
        cells = []
        for tool in tools:
            progress(f"{mutant.number} {mutant.name}: {tool} ...")
            began = time.perf_counter()
            cell = TOOLS[tool](mutant)
            seconds = round(time.perf_counter() - began, 1)
            cells.append(Cell(cell.tool, cell.caught_by, cell.effort, seconds, cell.ran))
        row = TableRow(mutant.number, mutant.name, mutant.breaks, tuple(cells))
        progress("\n".join(as_lines(row)))
        rows.append(row)
    return rows


def as_lines(row: TableRow) -> list[str]:
    """A row for a terminal: the mutant, and a line for each tool."""
    head = f"{row.number:<4} {row.name} ({row.breaks})"
    lines = [f"{head:<62} caught by {row.tools} {'' if row.is_right else ' <- WRONG'}".rstrip()]
    for cell in row.cells:
        what = cell.caught_by or ("not caught" if cell.ran else "-")
        lines.append(f"       {cell.tool:<11}{what}; {cell.effort}; {cell.seconds:.1f} s")
    return lines


def as_markdown(rows: Sequence[TableRow]) -> str:
    """The table for the page in the docs."""
    tools = [cell.tool for cell in rows[0].cells]
    lines = [
        f"Measured on {date.today().isoformat()} by `make mutants`.",
        "",
        f"| mutant | breaks | {' | '.join(tools)} | tools |",
        f"|---|---|{'---|' * len(tools)}---|",
    ]
    for row in rows:
        cells = " | ".join(_markdown_cell(cell) for cell in row.cells)
        lines.append(f"| {row.number} {row.name} | {row.breaks} | {cells} | {row.tools} |")
    return "\n".join(lines) + "\n"


def _markdown_cell(cell: Cell) -> str:
    if not cell.ran:
        return "does not run this code"
    what = f"`{cell.caught_by}`" if "_" in cell.caught_by else cell.caught_by
    return f"{what or 'nothing'}; {cell.effort}; {cell.seconds:.1f} s"


def as_json(rows: Sequence[TableRow]) -> dict[str, Any]:
    """The table as data."""
    return {
        "mutants": [{**asdict(row), "tools": row.tools, "right": row.is_right} for row in rows],
        "right": all(row.is_right for row in rows),
    }
