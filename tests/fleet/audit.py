"""What must hold once every order is answered, whoever was killed on the way: the complaints.

Reads the ledgers, the keys and the client's answers when nobody uses them any more.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from tests.fleet.common import LEDGERS, SERVICES

from oncekey.core.record import State
from oncekey.stores.sqlite import SQLiteStore

# Keys per order: of the request, and of the operation inside the views of the last two.
KEYS = {"checkout": 1, "inventory": 1, "payments": 2, "notifications": 2}


class Report(NamedTuple):
    complaints: list[str]
    replays: int  # answers the client got that were not the first ones


def audit(folder: Path, orders: int) -> Report:
    expected = {f"order-{number}" for number in range(1, orders + 1)}
    rows = {name: _rows(folder / f"{name}.db", _LEDGER) for name in LEDGERS}
    answers = _rows(folder / "answers.db", "SELECT order_id, body, again FROM answers")
    complaints = [
        *_ledgers(rows, expected),
        *_answers(rows, answers, expected),
        *_keys(folder, orders),
    ]
    return Report(complaints, sum(bool(again) for _, _, again in answers))


_LEDGER = "SELECT id, order_id, cents FROM ledger"


def _rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


def _ledgers(rows: dict[str, list[Any]], expected: set[str]) -> Iterator[str]:
    """Exactly one row for every order in every ledger."""
    for service, found in rows.items():
        counts = Counter(order for _, order, _ in found)
        for order in sorted(expected | set(counts)):
            if counts[order] != 1 or order not in expected:
                yield f"{service} has {counts[order]} rows for {order}"
        yield from (f"{service} has {row}" for row in found if row[2] != 500)


def _answers(rows: dict[str, list[Any]], answers: list[Any], expected: set[str]) -> Iterator[str]:
    """Every order has an answer, all answers to it are the same, and they name the rows."""
    told: dict[str, set[str]] = {}
    for order, body, _ in answers:
        told.setdefault(order, set()).add(body)
    if set(told) != expected:
        yield f"there are answers to {len(told)} of {len(expected)} orders"
    for order, bodies in told.items():
        if len(bodies) > 1:
            yield f"{order} was answered in {len(bodies)} ways"
        for answer in map(json.loads, bodies):
            for service, kind in LEDGERS.items():
                ids = [f"{kind}-{number}" for number, whose, _ in rows[service] if whose == order]
                if answer["order"] != order or answer[kind] not in ids:
                    yield f"{order} was told {answer}, but {service} has {ids}"


def _keys(folder: Path, orders: int) -> Iterator[str]:
    """Every key has succeeded; nothing is left to be finished."""
    for service in SERVICES:
        states = Counter(
            State(row[0]).name.lower()
            for row in _rows(folder / f"{service}.db", "SELECT state FROM oncekey_records")
        )
        if states != {"succeeded": KEYS[service] * orders}:
            yield f"the keys of {service}: {dict(states)}"
        with closing(SQLiteStore(folder / f"{service}.db")) as store:
            left = store.unfinished(0, 10).records
        if left:
            yield f"{service} has unfinished keys: {[record.operation for record in left]}"
