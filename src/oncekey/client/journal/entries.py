"""The journal's table: its entries, what an answer makes of one, and which have to go.

What an answer does to an entry is decided by the entry alone: a request that was sent on (a
redirect, an auth challenge, the same object once more) comes with its key only, and knows nothing
of the intent that the key was drawn for.

Owns the meaning of the columns and the number of answered entries. Must not know who holds one:
whoever asks says which are not to be dropped.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Set
from typing import Final

from oncekey.client.journal.file import QUERIES

JOURNAL_ANSWERED_MAX: Final = 1_000_000
_SLACK: Final = 100  # beyond it a hundredth goes at once, so that they are rarely counted


class Ticket:
    """One request's hold on an entry, from before its first try until it is over.

    `key` is a new one, to be used unless an open entry has another; with `given` it is the
    request's own, which may have an entry, but gets none. An `intent` is a name of `account`'s.
    `reused` tells what was found.
    """

    __slots__ = ("account", "digest", "given", "held", "intent", "key", "over", "reused")

    def __init__(
        self,
        key: str,
        digest: bytes,
        *,
        account: str = "",
        intent: str | None = None,
        given: bool = False,
    ) -> None:
        self.key = key
        self.digest = digest
        self.account = account
        self.intent = intent
        self.given = given
        self.reused = False
        self.held = False
        self.over = False


class Entries:
    """The table, by the connection of whoever has the file's turn."""

    def __init__(self) -> None:
        # At least as many as are answered; None where nobody has counted yet.
        self._answered_at_most: int | None = None

    def count_open(self, connection: sqlite3.Connection) -> int:
        return _number(connection, "count_open")

    def find(self, connection: sqlite3.Connection, ticket: Ticket) -> list[tuple[str, bytes]]:
        """Key and digest of what the ticket may hold, the oldest first."""
        query: str
        what: tuple[object, ...]
        if ticket.given:
            query, what = "find_by_key", (ticket.key,)
        elif ticket.intent is not None:
            query, what = "find_by_intent", (ticket.account, ticket.intent)
        else:
            query, what = "find_by_digest", (ticket.digest,)
        return connection.execute(QUERIES[query], what).fetchall()

    def insert(self, connection: sqlite3.Connection, ticket: Ticket, now: int) -> None:
        entry = (ticket.key, ticket.digest, ticket.account, ticket.intent, now, now)
        connection.execute(QUERIES["insert_entry"], entry)

    def touch(self, connection: sqlite3.Connection, key: str, now: int) -> None:
        connection.execute(QUERIES["touch"], (now, key))

    def settle(self, connection: sqlite3.Connection, key: str, now: int, *, done: bool) -> None:
        """What an answer makes of an entry: an intent that was carried out is kept."""
        if not done:
            connection.execute(QUERIES["delete_unanswered"], (key,))
            return
        connection.execute(QUERIES["delete_unnamed"], (key,))
        marked = connection.execute(QUERIES["mark_answered"], (now, key)).rowcount
        if self._answered_at_most is not None:
            self._answered_at_most += marked

    def forget(self, connection: sqlite3.Connection, key: str) -> bool:
        return connection.execute(QUERIES["delete_entry"], (key,)).rowcount == 1

    def drop_old(self, connection: sqlite3.Connection, until: int, held: Set[str]) -> None:
        """Drop what was last touched by then; what is held is under way, however long."""
        _drop(connection, connection.execute(QUERIES["find_old"], (until,)), held)

    def drop_surplus(self, connection: sqlite3.Connection, held: Set[str]) -> None:
        """Of too many answered intents, drop the oldest."""
        count = self._answered_at_most
        if count is None or count > JOURNAL_ANSWERED_MAX:
            count = _number(connection, "count_all") - _number(connection, "count_open")
        if count > JOURNAL_ANSWERED_MAX:
            surplus = count - JOURNAL_ANSWERED_MAX + JOURNAL_ANSWERED_MAX // _SLACK
            # As many more as may have to be passed over.
            most = (surplus + len(held),)
            oldest = connection.execute(QUERIES["find_oldest_answered"], most)
            _drop(connection, oldest, held, at_most=surplus)
            self._answered_at_most = None  # to be counted anew: this may still be rolled back
            return
        self._answered_at_most = count


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(QUERIES[query]).fetchone()[0])


def _drop(
    connection: sqlite3.Connection,
    found: Iterable[tuple[str]],
    held: Set[str],
    at_most: int | None = None,
) -> None:
    """Delete what nobody holds, of what was found the first so many."""
    gone = [(key,) for (key,) in list(found) if key not in held][:at_most]
    if gone:
        connection.executemany(QUERIES["delete_entry"], gone)
