"""The API's own database: charges and refunds of accounts, in an SQLite file.

Owns the tables. Every write is an upsert under an id derived from the operation's child key, so an
attempt that takes over from a dead one writes the same row again, not a second one.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

_BUSY_SECONDS = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS charges (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    account TEXT NOT NULL,
    "order" TEXT NOT NULL,
    cents INTEGER NOT NULL,
    payment TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS charges_account ON charges (account);
CREATE TABLE IF NOT EXISTS refunds (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    charge TEXT NOT NULL REFERENCES charges (id),
    cents INTEGER NOT NULL,
    payment TEXT,
    at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS refunds_charge ON refunds (charge);
"""
_CHARGE = """
SELECT id, "order", cents, payment, at,
       (SELECT coalesce(sum(cents), 0) FROM refunds
        WHERE charge = charges.id AND payment IS NOT NULL) AS refunded_cents
FROM charges
"""
_LEDGER = """
SELECT * FROM (
    SELECT 'charge' AS kind, id, account, "order", cents, payment, at FROM charges
    UNION ALL
    SELECT 'refund', refunds.id, account, "order", -refunds.cents, refunds.payment, refunds.at
    FROM refunds JOIN charges ON charges.id = refunds.charge WHERE refunds.payment IS NOT NULL
)
"""
_TOTALS = f"""
SELECT count(*) FILTER (WHERE cents > 0) AS charges,
       coalesce(sum(cents) FILTER (WHERE cents > 0), 0) AS charged_cents,
       -coalesce(sum(cents) FILTER (WHERE cents < 0), 0) AS refunded_cents
FROM ({_LEDGER}) WHERE account = ?
"""  # noqa: S608, it is our own text


class PaymentsDatabase:
    """Thread-safe: every call opens a connection and a transaction of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._connect()) as connection:
            connection.executescript(_SCHEMA)

    def add_charge(self, id: str, account: str, order: str, cents: int, payment: str) -> None:
        with self._open() as connection:
            connection.execute(
                'INSERT INTO charges (id, account, "order", cents, payment, at) '
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
                (id, account, order, cents, payment, time.time()),
            )

    def charge(self, account: str, id: str) -> dict[str, Any] | None:
        with self._open() as connection:
            row = connection.execute(
                f"{_CHARGE} WHERE account = ? AND id = ?", (account, id)
            ).fetchone()
        return None if row is None else dict(row)

    def charges(self, account: str, limit: int) -> list[dict[str, Any]]:
        """The newest first."""
        with self._open() as connection:
            found = connection.execute(
                f"{_CHARGE} WHERE account = ? ORDER BY number DESC LIMIT ?", (account, limit)
            )
            return [dict(row) for row in found]

    def reserve_refund(self, id: str, charge: str, cents: int) -> bool:
        """Reserves the amount before the provider is called, so that two concurrent refunds cannot
        return more than was paid. False if less than that is left."""
        with self._open() as connection:
            done = connection.execute(
                "INSERT INTO refunds (id, charge, cents, at) "
                "SELECT ?, id, ?, ? FROM charges WHERE id = ? "
                "AND cents >= ? + (SELECT coalesce(sum(cents), 0) FROM refunds WHERE charge = ?) "
                "ON CONFLICT (id) DO NOTHING",
                (id, cents, time.time(), charge, cents, charge),
            )
            known = connection.execute("SELECT 1 FROM refunds WHERE id = ?", (id,)).fetchone()
            return done.rowcount == 1 or known is not None

    def finish_refund(self, id: str, payment: str) -> None:
        with self._open() as connection:
            connection.execute("UPDATE refunds SET payment = ? WHERE id = ?", (payment, id))

    def ledger(self, limit: int, account: str | None = None) -> list[dict[str, Any]]:
        """What was charged and given back, newest first; of everybody where no account is named."""
        with self._open() as connection:
            found = connection.execute(
                f"{_LEDGER} WHERE ? IN ('', account) ORDER BY at DESC LIMIT ?",
                (account or "", limit),
            )
            return [dict(row) for row in found]

    def totals(self, account: str) -> dict[str, int]:
        with self._open() as connection:
            return dict(connection.execute(_TOTALS, (account,)).fetchone())

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        connection.row_factory = sqlite3.Row
        return connection

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(self._connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
