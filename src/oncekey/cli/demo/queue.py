"""A small message queue in a SQLite file: at least once, with a visibility time, like SQS.

A received message is hidden for a while; whoever does not acknowledge it in time will see it
delivered again. Knows nothing of oncekey.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

BUSY_SECONDS = 30.0
POLL_SECONDS = 0.05

_SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY,
    "order" TEXT NOT NULL,
    visible_at REAL NOT NULL,
    deliveries INTEGER NOT NULL DEFAULT 0
);
"""


@dataclass(frozen=True, slots=True)
class Message:
    id: int
    order: str
    delivery: int


class Queue:
    """Messages by order; the demo's consumers look for their own order only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._connect()) as connection:
            connection.executescript(_SCHEMA)

    def send(self, order: str) -> None:
        with self._table() as table:
            table.execute('INSERT INTO messages ("order", visible_at) VALUES (?, 0)', (order,))

    def receive(self, order: str, *, hide_for: float, patience: float) -> Message:
        """The next delivery, as soon as the message is visible; TimeoutError after `patience`."""
        give_up = time.monotonic() + patience
        while True:
            now = time.time()
            with self._table() as table:
                row = table.execute(
                    "UPDATE messages SET visible_at = ?, deliveries = deliveries + 1 "
                    'WHERE "order" = ? AND visible_at <= ? RETURNING id, "order", deliveries',
                    (now + hide_for, order, now),
                ).fetchone()
            if row is not None:
                return Message(*row)
            if time.monotonic() > give_up:
                raise TimeoutError(f"no message for {order} within {patience:g} s")
            time.sleep(POLL_SECONDS)

    def acknowledge(self, message: Message) -> bool:
        """Remove the message; False if it was delivered to somebody else meanwhile."""
        with self._table() as table:
            done = table.execute(
                "DELETE FROM messages WHERE id = ? AND deliveries = ?",
                (message.id, message.delivery),
            )
            return done.rowcount == 1

    def depth(self, order: str) -> int:
        """How many messages are left, hidden ones included."""
        with self._table() as table:
            row = table.execute('SELECT count(*) FROM messages WHERE "order" = ?', (order,))
            return int(row.fetchone()[0])

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)

    @contextmanager
    def _table(self) -> Iterator[sqlite3.Connection]:
        with closing(self._connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
