"""The provider's ledger: every request and every act, in an SQLite file of its own.

The provider acts at most once per idempotency key, as real providers do. The demo is judged by this
ledger: what is not in it did not happen. Must not know oncekey or HTTP.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["charge", "refund"]

_BUSY_SECONDS = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, kind TEXT NOT NULL, "order" TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS requests_key ON requests (key);
CREATE INDEX IF NOT EXISTS requests_order ON requests ("order", kind);
CREATE TABLE IF NOT EXISTS acts (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    "order" TEXT NOT NULL,
    cents INTEGER NOT NULL,
    declined INTEGER NOT NULL,
    at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS acts_order ON acts ("order", kind);
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """How often one order was requested and how often it was carried out, by the ledger."""

    asked: int = 1
    acted: int = 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request to the provider."""

    key: str
    kind: Kind
    order: str
    cents: int
    declined: bool = False


class ProviderLedger:
    """Thread-safe: every call opens a connection and a transaction of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._connect()) as connection:
            connection.executescript(_SCHEMA)

    def note(self, wanted: Wanted) -> int:
        """Records a request before anything else happens; returns how many its key has had."""
        with self._open() as ledger:
            ledger.execute(
                'INSERT INTO requests (key, kind, "order") VALUES (?, ?, ?)',
                (wanted.key, wanted.kind, wanted.order),
            )
            row = ledger.execute("SELECT count(*) FROM requests WHERE key = ?", (wanted.key,))
            return int(row.fetchone()[0])

    def act(self, wanted: Wanted) -> dict[str, Any] | None:
        """Carries the request out and returns its receipt. If its key was used before, returns that
        receipt and does nothing; None if the key was used for another request."""
        with self._open() as ledger:
            ledger.execute(
                'INSERT INTO acts (key, kind, "order", cents, declined, at) '
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING",
                (*astuple(wanted), time.time()),
            )
            row = ledger.execute(
                'SELECT id, kind, "order", cents, declined FROM acts WHERE key = ?', (wanted.key,)
            ).fetchone()
        if row[1:4] != (wanted.kind, wanted.order, wanted.cents):
            return None
        status = "declined" if row[4] else "succeeded"
        return {"id": _receipt(row[0]), "status": status, "cents": row[3]}

    def counts(self, order: str, kind: Kind = "charge") -> Counts:
        with self._open() as ledger:
            asked, acted = (
                ledger.execute(
                    f'SELECT count(*) FROM {table} WHERE "order" = ? AND kind = ?',  # noqa: S608
                    (order, kind),
                ).fetchone()[0]
                for table in ("requests", "acts")
            )
        return Counts(asked, acted)

    def latest(self, limit: int) -> list[dict[str, Any]]:
        """The latest acts, newest first, and how often each was requested."""
        with self._open() as ledger:
            rows = ledger.execute(
                'SELECT id, kind, "order", cents, declined, at, '
                "(SELECT count(*) FROM requests WHERE requests.key = acts.key) "
                "FROM acts ORDER BY id DESC LIMIT ?",
                (limit,),
            ).fetchall()
        names = ("id", "kind", "order", "cents", "declined", "at", "asked")
        found = [dict(zip(names, row, strict=True)) for row in rows]
        return [
            {**one, "id": _receipt(one["id"]), "declined": bool(one["declined"])} for one in found
        ]

    def totals(self) -> Counts:
        with self._open() as ledger:
            asked = ledger.execute("SELECT count(*) FROM requests").fetchone()[0]
            acted = ledger.execute("SELECT count(*) FROM acts").fetchone()[0]
        return Counts(asked, acted)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(self._connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")


def _receipt(number: int) -> str:
    return f"pay_{number:04d}"
