"""The naive handler's database: the API's tables in a file of their own, and a table of keys.

A key is stored with the response, after the work is done. Nothing claims it before: that is the
mistake which the demo shows.
"""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from oncekey.demo.api.database import PaymentsDatabase

_SCHEMA = """
CREATE TABLE IF NOT EXISTS idempotency_keys (
    account TEXT NOT NULL,
    key TEXT NOT NULL,
    response TEXT NOT NULL,
    PRIMARY KEY (account, key)
);
"""


class NaiveDatabase(PaymentsDatabase):
    """Thread-safe, as the other one is."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with closing(self._connect()) as connection:
            connection.executescript(_SCHEMA)

    def stored_response(self, account: str, key: str) -> dict[str, Any] | None:
        with self._open() as connection:
            row = connection.execute(
                "SELECT response FROM idempotency_keys WHERE account = ? AND key = ?",
                (account, key),
            ).fetchone()
        if row is None:
            return None
        response: dict[str, Any] = json.loads(row["response"])
        return response

    def store_response(self, account: str, key: str, response: dict[str, Any]) -> None:
        """Stores the response. The first one stays, and a later one is dropped without a word: the
        primary key finds the duplicate when both were carried out already."""
        with self._open() as connection:
            connection.execute(
                "INSERT INTO idempotency_keys (account, key, response) VALUES (?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (account, key, json.dumps(response)),
            )

    def add_refund(self, id: str, charge: str, cents: int, payment: str) -> None:
        with self._open() as connection:
            connection.execute(
                "INSERT INTO refunds (id, charge, cents, payment, at) VALUES (?, ?, ?, ?, ?)",
                (id, charge, cents, payment, time.time()),
            )
