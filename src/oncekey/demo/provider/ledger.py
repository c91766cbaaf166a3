"""The provider's ledger: every request and every act, in an SQLite file of its own.

The provider acts at most once per idempotency key, as real providers do. The demo is judged by this
ledger: what is not in it did not happen. Must not know oncekey or HTTP.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from oncekey.demo import DemoFailed
from oncekey.demo.cards import Card
from oncekey.demo.handlers import Handler

Kind = Literal["charge", "refund", "shipment"]

_BUSY_SECONDS = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (
    id INTEGER PRIMARY KEY,
    handler TEXT NOT NULL,
    kind TEXT NOT NULL,
    "order" TEXT NOT NULL,
    card TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS requests_order ON requests ("order", kind, handler);
CREATE TABLE IF NOT EXISTS acts (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    handler TEXT NOT NULL,
    kind TEXT NOT NULL,
    "order" TEXT NOT NULL,
    cents INTEGER NOT NULL,
    declined INTEGER NOT NULL,
    at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS acts_order ON acts ("order", kind, handler);
CREATE TABLE IF NOT EXISTS held ("order" TEXT PRIMARY KEY);
"""
# A declined card is in the ledger, but is no effect: no money moved.
_COUNTS = """
SELECT (SELECT count(*) FROM requests WHERE "order" = :order AND kind = :kind),
       count(*) FILTER (WHERE NOT declined), count(*) FILTER (WHERE declined)
FROM acts WHERE "order" = :order AND kind = :kind
"""
_TOTALS = """
SELECT (SELECT count(*) FROM requests WHERE handler = :handler) AS asked,
       count(*) FILTER (WHERE NOT declined AND kind = 'charge') AS charged,
       count(*) FILTER (WHERE NOT declined AND kind = 'refund') AS refunded,
       count(*) FILTER (WHERE NOT declined AND kind = 'shipment') AS shipped,
       count(*) FILTER (WHERE declined) AS declined
FROM acts WHERE handler = :handler
"""
_ORDERS = """
SELECT asked.handler, asked.kind, asked."order", asked.asked,
       count(acts.id) FILTER (WHERE NOT acts.declined) AS acted,
       count(acts.id) FILTER (WHERE acts.declined) AS declined,
       coalesce(sum(acts.cents) FILTER (WHERE NOT acts.declined), 0) AS cents
FROM (SELECT handler, kind, "order", count(*) AS asked, min(id) AS first
      FROM requests GROUP BY handler, kind, "order" ORDER BY first DESC LIMIT :limit) AS asked
LEFT JOIN acts ON acts.handler = asked.handler AND acts.kind = asked.kind
              AND acts."order" = asked."order"
GROUP BY asked.handler, asked.kind, asked."order" ORDER BY asked.first DESC
"""
_ORDER_COUNT = 'SELECT count(*) FROM (SELECT DISTINCT handler, kind, "order" FROM requests)'


@dataclass(frozen=True, slots=True)
class Counts:
    """How often one order was requested, carried out and declined, by the ledger."""

    asked: int = 1
    acted: int = 1
    declined: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request to the provider. `handler` is the caller's own mark on it, as are the metadata
    that real providers keep."""

    key: str
    kind: Kind
    order: str
    cents: int
    card: Card = Card.OK
    handler: Handler = Handler.GUARDED


@dataclass(frozen=True, slots=True)
class Overview:
    """What the provider did for both handlers.

    totals  by handler: how many requests there were, charges, refunds, shipments, declined cards
    orders  the latest, newest first: how often each was requested, carried out and declined, and
            how much money moved; charges, refunds and shipments of an order are apart
    count   how many orders there are in all
    """

    totals: dict[Handler, dict[str, int]]
    orders: list[dict[str, Any]]
    count: int


class ProviderLedger:
    """Thread-safe: every call opens a connection and a transaction of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with closing(self._connect()) as connection:
                connection.executescript(_SCHEMA)
        except sqlite3.OperationalError as error:
            raise DemoFailed(
                f"{path} is no ledger of this release ({error}); take another folder"
            ) from error

    def note(self, wanted: Wanted) -> int:
        """Records a request before anything else happens. Returns how often this order was
        requested with this card: by that a card misbehaves, whatever key came with it."""
        tried = (wanted.handler, wanted.kind, wanted.order, wanted.card)
        with self._open() as ledger:
            ledger.execute(
                'INSERT INTO requests (handler, kind, "order", card) VALUES (?, ?, ?, ?)', tried
            )
            row = ledger.execute(
                "SELECT count(*) FROM requests "
                'WHERE handler = ? AND kind = ? AND "order" = ? AND card = ?',
                tried,
            )
            return int(row.fetchone()[0])

    def act(self, wanted: Wanted) -> dict[str, Any] | None:
        """Carries the request out and returns its receipt. If its key was used before, returns that
        receipt and does nothing; None if the key was used for another request."""
        with self._open() as ledger:
            ledger.execute(
                'INSERT INTO acts (key, handler, kind, "order", cents, declined, at) '
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING",
                (
                    wanted.key,
                    wanted.handler,
                    wanted.kind,
                    wanted.order,
                    wanted.cents,
                    wanted.card is Card.DECLINED,
                    time.time(),
                ),
            )
            row = ledger.execute(
                'SELECT id, kind, "order", cents, declined FROM acts WHERE key = ?', (wanted.key,)
            ).fetchone()
        if tuple(row)[1:4] != (wanted.kind, wanted.order, wanted.cents):
            return None
        status = "declined" if row["declined"] else "succeeded"
        return {"id": f"pay_{row['id']:04d}", "status": status, "cents": row["cents"]}

    def counts(self, order: str, kind: Kind = "charge") -> Counts:
        with self._open() as ledger:
            return Counts(*ledger.execute(_COUNTS, {"order": order, "kind": kind}).fetchone())

    def hold(self, order: str) -> None:
        """Let requests for this order stay unanswered until `let_go`."""
        with self._open() as ledger:
            ledger.execute("INSERT OR IGNORE INTO held VALUES (?)", (order,))

    def let_go(self, order: str) -> None:
        with self._open() as ledger:
            ledger.execute('DELETE FROM held WHERE "order" = ?', (order,))

    def is_held(self, order: str) -> bool:
        with self._open() as ledger:
            found = ledger.execute('SELECT 1 FROM held WHERE "order" = ?', (order,))
            return found.fetchone() is not None

    def overview(self, limit: int) -> Overview:
        """The latest orders and the totals, read in one transaction so that they add up."""
        with self._open() as ledger:
            totals = {
                handler: dict(ledger.execute(_TOTALS, {"handler": handler}).fetchone())
                for handler in Handler
            }
            orders = [dict(row) for row in ledger.execute(_ORDERS, {"limit": limit})]
            count = int(ledger.execute(_ORDER_COUNT).fetchone()[0])
        return Overview(totals, orders, count)

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
