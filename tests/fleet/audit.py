"""The audit: what must hold when every order has its response, whichever processes were killed.

It reads the ledgers, the keys and the client's responses after all processes have ended.
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

# Keys per order: one of the request, and one of the operation inside the last two services.
KEYS = {"checkout": 1, "inventory": 1, "payments": 2, "notifications": 2}


class Report(NamedTuple):
    """What the audit found."""

    violations: list[str]
    replays: int  # responses to the client that were replays


def audit(folder: Path, orders: int) -> Report:
    """Check the files of a fleet that has placed this number of orders."""
    expected = {f"order-{number}" for number in range(1, orders + 1)}
    rows = {name: _rows(folder / f"{name}.db", _LEDGER) for name in LEDGERS}
    responses = _rows(folder / "responses.db", "SELECT order_id, body, replayed FROM responses")
    violations = [
        *_ledgers(rows, expected),
        *_responses(rows, responses, expected),
        *_keys(folder, orders),
    ]
    return Report(violations, sum(bool(replayed) for _, _, replayed in responses))


_LEDGER = "SELECT id, order_id, cents FROM ledger"


def _rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


def _ledgers(rows: dict[str, list[Any]], expected: set[str]) -> Iterator[str]:
    """Every ledger has exactly one row for every order."""
    for service, found in rows.items():
        counts = Counter(order for _, order, _ in found)
        for order in sorted(expected | set(counts)):
            if counts[order] != 1 or order not in expected:
                yield f"{service} has {counts[order]} rows for {order}"
        yield from (f"{service} has {row}" for row in found if row[2] != 500)


def _responses(
    rows: dict[str, list[Any]], responses: list[Any], expected: set[str]
) -> Iterator[str]:
    """Every order has a response, all responses to it are the same, and they name the rows."""
    bodies_of: dict[str, set[str]] = {}
    for order, body, _ in responses:
        bodies_of.setdefault(order, set()).add(body)
    if set(bodies_of) != expected:
        yield f"there are responses to {len(bodies_of)} of {len(expected)} orders"
    for order, bodies in bodies_of.items():
        if len(bodies) > 1:
            yield f"{order} has {len(bodies)} different responses"
        for response in map(json.loads, bodies):
            for service, kind in LEDGERS.items():
                ids = [f"{kind}-{number}" for number, of, _ in rows[service] if of == order]
                if response["order"] != order or response[kind] not in ids:
                    yield f"the response to {order} is {response}, but {service} has {ids}"


def _keys(folder: Path, orders: int) -> Iterator[str]:
    """Every key has succeeded, and none is unfinished."""
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
