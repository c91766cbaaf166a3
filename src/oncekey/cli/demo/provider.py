"""A tiny payment provider with books of its own, in its own SQLite file.

It stands for the outside world: it logs every request before anything else, and it acts on a
request at most once per idempotency key where one is sent. Without a key it acts every time, as
real providers do. Knows nothing of oncekey: its books are the demo's evidence.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from oncekey.cli.demo.scene import Counts

BUSY_SECONDS = 30.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (id INTEGER PRIMARY KEY, "order" TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS charges (
    id INTEGER PRIMARY KEY,
    "order" TEXT NOT NULL,
    cents INTEGER NOT NULL,
    idempotency_key TEXT UNIQUE,
    declined INTEGER NOT NULL
);
"""


class Declined(Exception):
    """The card was refused. Final: asking again changes nothing."""


class Provider:
    """Charges cards, and remembers that it did."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._connect()) as connection:
            connection.executescript(_SCHEMA)

    def charge(
        self, order: str, cents: int, *, idempotency_key: str | None = None, broke: bool = False
    ) -> dict[str, str]:
        """Charge the order's card; the receipt. A known idempotency key gives the old receipt."""
        with self._books() as books:
            books.execute('INSERT INTO requests ("order") VALUES (?)', (order,))
            known = _by_key(books, idempotency_key)
            if known is None:
                known = books.execute(
                    'INSERT INTO charges ("order", cents, idempotency_key, declined) '
                    "VALUES (?, ?, ?, ?) RETURNING id",
                    (order, cents, idempotency_key, broke),
                ).fetchone()[0]
        if broke:
            raise Declined("card declined: insufficient funds")
        return _receipt(known)

    def find(self, idempotency_key: str) -> dict[str, str] | None:
        """The receipt of an earlier charge; asking changes nothing."""
        with self._books() as books:
            known = _by_key(books, idempotency_key)
        return None if known is None else _receipt(known)

    def counts(self, order: str) -> Counts:
        """What the books say about one order."""
        with self._books() as books:
            asked = books.execute('SELECT count(*) FROM requests WHERE "order" = ?', (order,))
            acted = books.execute('SELECT count(*) FROM charges WHERE "order" = ?', (order,))
            return Counts(asked.fetchone()[0], acted.fetchone()[0])

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)

    @contextmanager
    def _books(self) -> Iterator[sqlite3.Connection]:
        """One transaction on a connection of its own, so that any thread and process may call."""
        with closing(self._connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")


def _by_key(books: sqlite3.Connection, idempotency_key: str | None) -> int | None:
    row = books.execute(
        "SELECT id FROM charges WHERE idempotency_key = ?", (idempotency_key,)
    ).fetchone()
    return None if row is None else int(row[0])


def _receipt(id: int) -> dict[str, str]:
    return {"charge": f"ch_{id:04d}"}
