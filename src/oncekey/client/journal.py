"""Keys that outlive the process: written down before the first try, crossed out by the answer.

A request whose answer is still open leaves its entry behind, also where the process dies. The next
such request (by the intent's name, or else by method, URL and body) takes the entry's key up, so a
server that has carried it out answers with what it did then. An entry that a running request holds
is never taken up by another: two purchases of the same thing at the same time stay two.

An intent that was carried out keeps its entry, until `keep` ends: a process that dies right after
the answer came does not know of it, sends that intent again, and must be given the same answer.

Owns entries and who holds them. Knows no HTTP; the file is in journal_file.py.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from oncekey.client.asks import SECOND_US
from oncekey.client.errors import NotSent
from oncekey.client.journal_file import QUERIES, JournalFile
from oncekey.core.duration import Duration, human, microseconds
from oncekey.core.errors import ConfigurationError, InFlight, Mismatch

JOURNAL_ENTRIES_MAX: Final = 100_000
KEEP_MIN_US: Final = SECOND_US
KEEP_MAX_US: Final = 365 * 86_400 * SECOND_US

_logger = logging.getLogger("oncekey")


class Ticket:
    """One request's hold on an entry, from before its first try until it is over.

    `key` is a new one, to be used unless an open entry has another; with `given` it is the
    request's own, which may have an entry, but gets none. `reused` tells what was found.
    """

    __slots__ = ("digest", "given", "held", "intent", "key", "over", "reused")

    def __init__(
        self, key: str, digest: bytes, *, intent: str | None = None, given: bool = False
    ) -> None:
        self.key = key
        self.digest = digest
        self.intent = intent
        self.given = given
        self.reused = False
        self.held = False
        self.over = False


class Journal:
    """Keys of requests that are not answered yet, in a file that one process uses at a time.

    `keep` is how long an entry is taken up again: less than the time for which the server keeps
    its keys. Give one journal to as many clients of the process as you like; close it at the end.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep: Duration = "24h",
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._keep = microseconds(keep, name="keep")
        if not KEEP_MIN_US <= self._keep <= KEEP_MAX_US:
            raise ConfigurationError(
                f"keep={keep!r} must be {human(KEEP_MIN_US)} to {human(KEEP_MAX_US)}"
            )
        self._clock = clock
        self._file = JournalFile(os.path.abspath(path))
        # Never held while the disk is busy, so that an event loop may take it.
        self._lock = threading.Lock()
        self._held: set[str] = set()
        # Answered, but the disk did not take it yet; True: it was done, and its intent is kept.
        self._answered: dict[str, bool] = {}

    # --- for the clients ------------------------------------------------------------------------

    def ticket(
        self, key: str, digest: bytes, *, intent: str | None = None, given: bool = False
    ) -> Ticket:
        """What to hold an entry by. Nothing is written yet."""
        return Ticket(key, digest, intent=intent, given=given)

    def begin(self, ticket: Ticket) -> None:
        """Have the ticket hold an entry, which is on disk when this returns.

        Raises Mismatch for an intent that was for another request, InFlight for one that a
        running request holds, NotSent where the entry cannot be written.
        """
        try:
            with self._changing() as connection:
                if ticket.over:
                    return  # its request was cancelled while it queued for the disk
                if not self._take_up(ticket, self._candidates(connection, ticket)):
                    self._enter(connection, ticket)
        except BaseException:
            self.release(ticket)
            raise

    def settle(self, ticket: Ticket, *, done: bool) -> None:
        """The answer has come: cross the entry out, but for an intent that was carried out
        (`done`). Whether the disk takes that or not, the answer is the caller's."""
        if not ticket.held:
            return
        with self._lock:
            self._answered[ticket.key] = done and ticket.intent is not None
        try:
            with self._changing():
                pass
        except NotSent as error:
            _logger.warning("an answered request stays in the journal for now: %s", error)

    def release(self, ticket: Ticket) -> None:
        """The request is over, one way or another. Does not touch the disk."""
        with self._lock:
            ticket.over = True
            if ticket.held:
                ticket.held = False
                self._held.discard(ticket.key)

    # --- for its owner --------------------------------------------------------------------------

    def open_entries(self) -> int:
        """How many requests are written down as not answered, those under way included."""
        with self._file.transaction() as connection:
            return int(connection.execute(QUERIES["count_open"]).fetchone()[0])

    def forget(self, key: str) -> bool:
        """Drop a key whose outcome you have found out otherwise; whether there was one to drop.

        That of a request under way is not dropped.
        """
        with self._changing() as connection:
            with self._lock:
                if key in self._held:
                    return False
            return connection.execute(QUERIES["delete_entry"], (key,)).rowcount == 1

    def close(self) -> None:
        """Let go of the file. Requests through it are refused from now on."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- entries --------------------------------------------------------------------------------

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """A transaction in which what is answered or too old is gone."""
        with self._lock:
            answered = dict(self._answered)
        with self._file.transaction() as connection:
            for key, is_kept in answered.items():
                query = "mark_answered" if is_kept else "cross_out"
                connection.execute(QUERIES[query], (key,))
            connection.execute(QUERIES["drop_old"], (self._now() - self._keep,))
            yield connection
        with self._lock:
            for key in answered:
                self._answered.pop(key, None)

    def _candidates(
        self, connection: sqlite3.Connection, ticket: Ticket
    ) -> list[tuple[str, bytes]]:
        if ticket.given:
            query, name = "find_by_key", ticket.key
        elif ticket.intent is not None:
            query, name = "find_by_intent", ticket.intent
        else:
            return connection.execute(QUERIES["find_by_digest"], (ticket.digest,)).fetchall()
        return connection.execute(QUERIES[query], (name,)).fetchall()

    def _take_up(self, ticket: Ticket, found: list[tuple[str, bytes]]) -> bool:
        """Hold the first entry that nobody holds."""
        with self._lock:
            free = [key for key, _ in found if key not in self._held]
            if ticket.intent is not None and found:
                self._check_intent(ticket, found[0][1], is_free=bool(free))
            if not free:
                return False
            ticket.reused = True
            self._hold(ticket, free[0])
            return True

    def _check_intent(self, ticket: Ticket, digest: bytes, *, is_free: bool) -> None:
        if digest != ticket.digest:
            raise Mismatch(
                f"the intent {ticket.intent!r} was for another request; send that one again, or "
                "give this one a name of its own. Nothing was sent"
            )
        if not is_free:
            raise InFlight(
                f"a request with the intent {ticket.intent!r} is under way in this process; wait "
                "for its answer. Nothing was sent"
            )

    def _enter(self, connection: sqlite3.Connection, ticket: Ticket) -> None:
        if ticket.given:
            return  # the caller keeps it
        (count,) = connection.execute(QUERIES["count_open"]).fetchone()
        if count >= JOURNAL_ENTRIES_MAX:
            raise NotSent(
                f"the journal {self._file.path} has {count} requests that were never answered; "
                "find out what became of them, or give a shorter keep=. Nothing was sent"
            )
        with self._lock:
            self._hold(ticket, ticket.key)
        entry = (ticket.key, ticket.digest, ticket.intent, self._now())
        connection.execute(QUERIES["insert_entry"], entry)

    def _hold(self, ticket: Ticket, key: str) -> None:
        ticket.key = key
        if not ticket.over:  # its request may have been cancelled while it queued for the disk
            ticket.held = True
            self._held.add(key)

    def _now(self) -> int:
        return self._clock() // 1_000
