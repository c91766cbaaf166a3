"""The page that compares published middlewares says what the JSON file beside it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs" / "explanation"
DATA: dict[str, Any] = json.loads((FOLDER / "verified-peers.json").read_text(encoding="utf-8"))
PAGE = (FOLDER / "verified-peers.md").read_text(encoding="utf-8")


def _table() -> dict[str, list[str]]:
    """The cells of the table, by the guarantee's title."""
    lines = PAGE.partition("## Table")[2].partition("## What was seen")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return {row[0]: row[1:] for row in cells}


def test_every_cell_of_the_table_is_in_the_file() -> None:
    table = _table()
    names = [peer["name"] for peer in DATA["peers"]]
    assert table["guarantee"] == names
    for guarantee in DATA["guarantees"]:
        for name, cell in zip(names, table[guarantee["title"]], strict=True):
            verdict = guarantee["verdicts"][name]
            told = "not asked" if verdict is None else verdict["status"]
            assert cell.replace("*", "").startswith(told), (guarantee["title"], name)


def test_every_violation_in_the_file_shows_its_exchanges() -> None:
    verdicts = [one for row in DATA["guarantees"] for one in row["verdicts"].values() if one]
    violations = [one for verdict in verdicts for one in verdict["violations"]]
    assert violations
    assert all(one["exchanges"] and one["what"] for one in violations)


def test_nothing_is_violated_in_the_column_of_oncekey() -> None:
    ours = [row["verdicts"]["oncekey"]["status"] for row in DATA["guarantees"]]
    assert set(ours) == {"holds"}
