"""Keys that outlive the process: written down before the first try, crossed out by the answer.

A request whose answer is still open leaves its entry behind, also where the process dies. The next
such request (by the intent's name, or else by method, URL and body) takes the entry's key up, so a
server that has carried it out answers with what it did then. An entry that a running request holds
is never taken up by another: two purchases of the same thing at the same time stay two.

An intent that was carried out keeps its entry, for `keep` from its answer on: a process that dies
right after the answer came does not know of it, sends that intent again, and must be given the same
answer.

Owns who holds which entry. Knows no HTTP; the entries are in journal_entries.py, the file in
journal_file.py.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, NamedTuple, Self

from oncekey.client.errors import NotSent
from oncekey.client.journal.entries import Entries, Ticket
from oncekey.client.journal.file import JournalFile
from oncekey.client.retry_effects import SECOND_US
from oncekey.core.duration import Duration, human, microseconds
from oncekey.core.errors import ConfigurationError, InFlight, Mismatch

JOURNAL_ENTRIES_MAX: Final = 100_000
KEEP_MIN_US: Final = SECOND_US
KEEP_MAX_US: Final = 365 * 86_400 * SECOND_US

_logger = logging.getLogger("oncekey")


class _Turn(NamedTuple):
    """A turn at the file, and which answers were written down in it."""

    connection: sqlite3.Connection
    written: dict[str, bool]


class Journal:
    """Keys of requests that are not answered yet, in a file that one process uses at a time.

    `keep` is how long an entry is taken up again, from when it was last: less than the time for
    which the server keeps its keys. Give one journal to as many clients of the process as you
    like; close it at the end.
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
        self._entries = Entries()
        # What follows is under the file's memory_lock, which is never held while the disk is
        # busy, so that an event loop may take it. Keys are added to _held in the file's turn.
        self._held: set[str] = set()
        # Answered, but the disk did not take it yet; True: it was done.
        self._answered: dict[str, bool] = {}

    # --- for the clients ------------------------------------------------------------------------

    def ticket(
        self,
        key: str,
        digest: bytes,
        *,
        account: str = "",
        intent: str | None = None,
        given: bool = False,
    ) -> Ticket:
        """What to hold an entry by. Nothing is written yet."""
        return Ticket(key, digest, account=account, intent=intent, given=given)

    def begin(self, ticket: Ticket) -> None:
        """Have the ticket hold an entry, which is on disk when this returns.

        Raises Mismatch for an intent that was for another request, InFlight for one that a
        running request holds, NotSent where the entry cannot be written.
        """
        try:
            with self._changing() as turn:
                if ticket.over:
                    return  # its request was cancelled while it queued for the disk
                if not self._take_up(turn, ticket):
                    self._enter(turn.connection, ticket)
        except BaseException:
            self.release(ticket)
            raise

    def settle(self, ticket: Ticket, *, done: bool) -> None:
        """It is known what became of the request: cross the entry out, but for an intent that was
        carried out (`done`). Whether the disk takes that or not, the answer is the caller's."""
        with self._file.memory_lock:
            if not ticket.held:
                return
            self._answered[ticket.key] = done
        try:
            with self._changing():
                pass
        except NotSent as error:
            _logger.warning("a request that is over stays in the journal for now: %s", error)

    def release(self, ticket: Ticket) -> None:
        """The request is over, one way or another. Does not touch the disk."""
        with self._file.memory_lock:
            ticket.over = True
            if ticket.held:
                ticket.held = False
                self._held.discard(ticket.key)

    # --- for its owner --------------------------------------------------------------------------

    def open_entries(self) -> int:
        """How many requests are written down as not answered, those under way included."""
        with self._file.transaction() as connection:
            return self._entries.count_open(connection)

    def forget(
        self, key: str | None = None, *, intent: str | None = None, account: str = ""
    ) -> bool:
        """Drop an entry whose outcome you have found out otherwise, by its key or by its intent;
        whether there was one to drop.

        That of a request under way is not dropped.
        """
        if (key is None) == (intent is None):
            raise ConfigurationError("forget takes a key or an intent=, one of them")
        named = Ticket(key or "", b"", account=account, intent=intent, given=key is not None)
        with self._changing() as turn:
            found = self._entries.find(turn.connection, named)
            if not found or found[0][0] in self._held_now():
                return False
            return self._entries.forget(turn.connection, found[0][0])

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
    def _changing(self) -> Iterator[_Turn]:
        """A turn at the file in which what is answered, too old or too much is gone."""
        with self._file.transaction() as connection:
            with self._file.memory_lock:  # only now: they may have queued for the file as well
                answered = dict(self._answered)
            now, held = self._now(), self._held_now()
            for key, done in answered.items():
                self._entries.settle(connection, key, now, done=done)
            self._entries.drop_old(connection, now - self._keep, held)
            self._entries.drop_surplus(connection, held)
            yield _Turn(connection, answered)
        with self._file.memory_lock:
            for key, done in answered.items():
                if self._answered.get(key) is done:  # else it was answered again since
                    del self._answered[key]

    def _held_now(self) -> frozenset[str]:
        with self._file.memory_lock:
            return frozenset(self._held)

    def _take_up(self, turn: _Turn, ticket: Ticket) -> bool:
        """Hold the first entry that is free."""
        found = self._entries.find(turn.connection, ticket)
        with self._file.memory_lock:
            free = [key for key, _ in found if self._is_free(key, turn)]
            if ticket.intent is not None and found:
                self._check_intent(ticket, found[0][1], is_free=bool(free))
            if not free:
                return False
            ticket.reused = True
            self._hold(ticket, free[0])
        self._entries.touch(turn.connection, ticket.key, self._now())
        return True

    def _is_free(self, key: str, turn: _Turn) -> bool:
        """Nobody holds it, nor has it been answered after this turn had begun: then its entry
        says that it is open, and is wrong."""
        return key not in self._held and self._answered.get(key) is turn.written.get(key)

    def _check_intent(self, ticket: Ticket, digest: bytes, *, is_free: bool) -> None:
        if digest != ticket.digest:
            raise Mismatch(
                f"the intent {ticket.intent!r} was for another request; send that one again, or "
                "give this one a name of its own. If you know that the other one had no effect, "
                "journal.forget(intent=...) frees the name. Nothing was sent"
            )
        if not is_free:
            raise InFlight(
                f"a request with the intent {ticket.intent!r} is under way in this process; wait "
                "for its answer. Nothing was sent"
            )

    def _enter(self, connection: sqlite3.Connection, ticket: Ticket) -> None:
        if ticket.given:
            return  # the caller keeps it
        count = self._entries.count_open(connection)
        if count >= JOURNAL_ENTRIES_MAX:
            raise NotSent(
                f"the journal {self._file.path} has {count} requests that were never answered; "
                "find out what became of them, or give a shorter keep=. Nothing was sent"
            )
        with self._file.memory_lock:
            self._hold(ticket, ticket.key)
        self._entries.insert(connection, ticket, self._now())

    def _hold(self, ticket: Ticket, key: str) -> None:
        ticket.key = key
        if not ticket.over:  # its request may have been cancelled while it queued for the disk
            ticket.held = True
            self._held.add(key)

    def _now(self) -> int:
        return self._clock() // 1_000
