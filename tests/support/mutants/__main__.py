"""`python -m tests.support.mutants`: runs every tool on every mutant and prints the table.

Exits with 1 if a mutant of the design is caught by fewer than two tools, or if a tool catches one
that is none.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.support.mutants.catch_table import (
    TOOLS,
    TableRow,
    as_json,
    as_markdown,
    run_table,
)
from tests.support.mutants.expected_catches import ALL_TWELVE
from tests.support.mutants.no_op_mutants import NO_OPS
from tests.support.mutants.source_tree import ROOT

PAGE = ROOT / "docs" / "explanation" / "how-it-is-tested.md"
BEGIN, END = "<!-- The table of mutants begins. -->\n", "<!-- The table of mutants ends. -->\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.support.mutants", description=__doc__)
    parser.add_argument("mutants", nargs="*", help="only these rows, e.g. m1 n1")
    parser.add_argument("--tool", action="append", choices=list(TOOLS), help="only this column")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.add_argument("--docs", action="store_true", help="write the table into the docs")
    options = parser.parse_args()
    chosen = [one for one in (*ALL_TWELVE, *NO_OPS) if one.number in options.mutants]
    if len(chosen) != len(set(options.mutants)):
        parser.error("there is no such mutant")
    tools = options.tool or list(TOOLS)
    rows = run_table(chosen or (*ALL_TWELVE, *NO_OPS), tools, _progress)
    if options.docs:
        write_page(PAGE, rows)
    if options.json:
        sys.stdout.write(json.dumps(as_json(rows), indent=2) + "\n")
    else:
        sys.stdout.write(summary(rows) + "\n")
    return 0 if all(row.is_right for row in rows) else 1


def summary(rows: list[TableRow]) -> str:
    """The table on one screen: a tick for each tool that has caught a mutant."""
    tools = [cell.tool for cell in rows[0].cells]
    lines = ["", f"{'':<53}" + "".join(f"{tool:<12}" for tool in tools) + "tools"]
    for row in rows:
        marks = "".join(
            f"{'caught' if cell.caught_by else 'no' if cell.ran else '-':<12}" for cell in row.cells
        )
        lines.append(f"{row.number:<4} {row.name:<42} {row.breaks:<5}{marks}{row.tools}")
    wrong = [row.number for row in rows if not row.is_right]
    lines.append(f"wrong: {', '.join(wrong)}" if wrong else "every row is as it must be")
    return "\n".join(lines)


def write_page(page: Path, rows: list[TableRow]) -> None:
    """Put the table into the page, between its marks."""
    text = page.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{as_markdown(rows)}\n{END}{after}", "utf-8")


def _progress(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
