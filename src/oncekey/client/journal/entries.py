"""The journal's table: one entry per request that is not answered, or that was done by intent.

What a response does to an entry depends on the entry alone: a request that was sent on (after a
redirect or an authentication, or as the same object once more) comes with its key only, and knows
nothing of the intent that the key was made for.

This module owns the meaning of the columns and the limit on answered entries. It does not know who
holds an entry: its caller passes the keys that must not be dropped.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Set
from typing import Final, NamedTuple

from oncekey.client.journal.file import QUERIES

JOURNAL_ANSWERED_MAX: Final = 1_000_000
# Beyond the limit a hundredth of it is dropped at once, so that the entries are rarely counted.
_DROP_FRACTION: Final = 100


class Entry(NamedTuple):
    """What is compared of an entry."""

    key: str
    digest: bytes


class Entries:
    """The table. Each method works on the connection of the caller's transaction."""

    def __init__(self) -> None:
        # An upper bound of the number of answered entries; None if nobody has counted yet.
        self._answered_at_most: int | None = None

    def count_open(self, connection: sqlite3.Connection) -> int:
        return _number(connection, "count_open")

    def find_by_key(self, connection: sqlite3.Connection, key: str) -> list[Entry]:
        return _find(connection, "find_by_key", key)

    def find_by_intent(
        self, connection: sqlite3.Connection, account: str, intent: str
    ) -> list[Entry]:
        return _find(connection, "find_by_intent", account, intent)

    def find_by_digest(self, connection: sqlite3.Connection, digest: bytes) -> list[Entry]:
        """The entries without an intent, the oldest first."""
        return _find(connection, "find_by_digest", digest)

    def insert(
        self,
        connection: sqlite3.Connection,
        entry: Entry,
        account: str,
        intent: str | None,
        at: int,
    ) -> None:
        row = (entry.key, entry.digest, account, intent, at, at)
        connection.execute(QUERIES["insert_entry"], row)

    def touch(self, connection: sqlite3.Connection, key: str, at: int) -> None:
        connection.execute(QUERIES["touch"], (at, key))

    def close(self, connection: sqlite3.Connection, key: str, at: int, *, done: bool) -> None:
        """Remove an entry whose request was answered. If the request was carried out (`done`) and
        has an intent, the entry stays and is marked as answered."""
        if not done:
            connection.execute(QUERIES["delete_unanswered"], (key,))
            return
        connection.execute(QUERIES["delete_without_intent"], (key,))
        marked = connection.execute(QUERIES["mark_answered"], (at, key)).rowcount
        if self._answered_at_most is not None:
            self._answered_at_most += marked

    def delete(self, connection: sqlite3.Connection, key: str) -> bool:
        """Delete an entry; True if there was one."""
        return connection.execute(QUERIES["delete_entry"], (key,)).rowcount == 1

    def drop_old(self, connection: sqlite3.Connection, until: int, held: Set[str]) -> None:
        """Drop the entries last touched by then. Those held are under way, however old."""
        _drop(connection, connection.execute(QUERIES["find_old"], (until,)), held)

    def drop_surplus(self, connection: sqlite3.Connection, held: Set[str]) -> None:
        """Drop the oldest answered entries if there are too many."""
        count = self._answered_at_most
        if count is None or count > JOURNAL_ANSWERED_MAX:
            count = _number(connection, "count_all") - _number(connection, "count_open")
        if count > JOURNAL_ANSWERED_MAX:
            surplus = count - JOURNAL_ANSWERED_MAX + JOURNAL_ANSWERED_MAX // _DROP_FRACTION
            # Held ones are passed over, so that many more have to be read.
            limit = (surplus + len(held),)
            oldest = connection.execute(QUERIES["find_oldest_answered"], limit)
            _drop(connection, oldest, held, at_most=surplus)
            # They are counted again next time, because this transaction may be rolled back.
            self._answered_at_most = None
            return
        self._answered_at_most = count


def _find(connection: sqlite3.Connection, query: str, *values: object) -> list[Entry]:
    return [Entry(*row) for row in connection.execute(QUERIES[query], values)]


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(QUERIES[query]).fetchone()[0])


def _drop(
    connection: sqlite3.Connection,
    found: Iterable[tuple[str]],
    held: Set[str],
    at_most: int | None = None,
) -> None:
    """Delete the first `at_most` of the found entries that nobody holds."""
    gone = [(key,) for (key,) in list(found) if key not in held][:at_most]
    if gone:
        connection.executemany(QUERIES["delete_entry"], gone)
