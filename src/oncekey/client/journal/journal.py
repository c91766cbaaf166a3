"""The journal: keys on disk before the first try, and crossed out by the response.

A request that got no response to go by leaves its entry open, even if the process dies. The next
such request (with the same intent, or else with the same method, URL and body) reuses the entry's
key, so that a server that carried it out replays its response. An entry that a running request
holds is never reused: two purchases of the same thing at the same time stay two.

An intent that was carried out keeps its entry for `keep` after its response. A process that dies
right after the response came does not know of it, sends that intent again, and must get the same
response.

This module decides who holds which entry. It knows no HTTP.
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
from oncekey.client.journal.entries import Entries, Entry
from oncekey.client.journal.file import JournalFile
from oncekey.client.retry_effects import SECOND_US
from oncekey.core.duration import Duration, human, microseconds
from oncekey.core.errors import ConfigurationError, InFlight, Mismatch

JOURNAL_ENTRIES_MAX: Final = 100_000
KEEP_MIN_US: Final = SECOND_US
KEEP_MAX_US: Final = 365 * 86_400 * SECOND_US

_logger = logging.getLogger("oncekey")


class EntryHandle:
    """One request's hold on an entry, from before its first try until the request is over.

    `key` is a new one, which `begin` replaces by that of an open entry (`reused`). With
    `callers_key` it is the request's own key, which may have an entry but never gets one. `held` is
    True while the request holds an entry.
    """

    def __init__(
        self,
        journal: Journal,
        key: str,
        digest: bytes,
        account: str,
        intent: str | None,
        callers_key: bool,
    ) -> None:
        self._journal = journal
        self.key = key
        self.digest = digest
        self.account = account
        self.intent = intent
        self.callers_key = callers_key
        self.reused = False
        self.held = False
        self.released = False

    def begin(self) -> None:
        """Hold an entry, which is on disk when this returns.

        Raises Mismatch if the intent was for another request, InFlight if a running request holds
        it, NotSent if the entry cannot be written.
        """
        self._journal._begin(self)

    def close(self, *, done: bool) -> None:
        """Remove the entry, because it is known what became of the request. The entry of an intent
        that was carried out (`done`) stays. If the disk fails, that is logged, and the caller gets
        the response all the same."""
        self._journal._close_entry(self, done)

    def release(self) -> None:
        """Let go of the entry, because the request is over. Does not touch the disk."""
        self._journal._release(self)


class _Transaction(NamedTuple):
    """A transaction of the file, and which closed entries were written in it."""

    connection: sqlite3.Connection
    closed: dict[str, bool]


class Journal:
    """Keys of requests that are not answered yet, in a file that one process uses at a time.

    `keep` is for how long an entry is reused, counted from its last use. It must be less than the
    time for which the server keeps its keys. One journal may serve any number of clients of the
    process; close it at the end.
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
        # The file's memory_lock guards the following. It is never held while the disk is busy, so
        # an event loop may take it. Keys are added to _held inside a transaction of the file.
        self._held: set[str] = set()
        # Entries that are closed, but not on disk yet; True if the request was carried out.
        self._closed: dict[str, bool] = {}

    def entry_for(
        self,
        key: str,
        digest: bytes,
        *,
        account: str = "",
        intent: str | None = None,
        callers_key: bool = False,
    ) -> EntryHandle:
        """A handle for the entry of one request. Nothing is written before its `begin`."""
        return EntryHandle(self, key, digest, account, intent, callers_key)

    def open_entries(self) -> int:
        """The number of requests without a response to go by, those under way included."""
        with self._file.transaction() as connection:
            return self._entries.count_open(connection)

    def forget(
        self, key: str | None = None, *, intent: str | None = None, account: str = ""
    ) -> bool:
        """Drop an entry whose outcome you found out otherwise, by its key or by its intent. Returns
        True if there was one to drop. The entry of a request under way is not dropped."""
        if (key is None) == (intent is None):
            raise ConfigurationError("forget takes a key or an intent=, one of them")
        with self._transaction() as (connection, _):
            if intent is not None:
                found = self._entries.find_by_intent(connection, account, intent)
            else:
                found = self._entries.find_by_key(connection, key or "")
            if not found or found[0].key in self._held_now():
                return False
            return self._entries.delete(connection, found[0].key)

    def close(self) -> None:
        """Let go of the file. From now on requests through the journal are refused."""
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

    # --- for the handles --------------------------------------------------------------------------

    def _begin(self, handle: EntryHandle) -> None:
        try:
            with self._transaction() as transaction:
                if handle.released:
                    return  # its request was cancelled while it waited for the file
                if not self._reuse(transaction, handle) and not handle.callers_key:
                    self._insert(transaction.connection, handle)
        except BaseException:
            self._release(handle)
            raise

    def _close_entry(self, handle: EntryHandle, done: bool) -> None:
        with self._file.memory_lock:
            if not handle.held:
                return
            self._closed[handle.key] = done
        try:
            with self._transaction():
                pass
        except NotSent as error:
            _logger.warning("a request that is over stays in the journal for now: %s", error)

    def _release(self, handle: EntryHandle) -> None:
        with self._file.memory_lock:
            handle.released = True
            if handle.held:
                handle.held = False
                self._held.discard(handle.key)

    # --- entries --------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[_Transaction]:
        """A transaction in which closed, old and surplus entries are already gone."""
        with self._file.transaction() as connection:
            with self._file.memory_lock:  # not before: more may be closed while this one waits
                closed = dict(self._closed)
            now, held = self._now(), self._held_now()
            for key, done in closed.items():
                self._entries.close(connection, key, now, done=done)
            self._entries.drop_old(connection, now - self._keep, held)
            self._entries.drop_surplus(connection, held)
            yield _Transaction(connection, closed)
        with self._file.memory_lock:
            for key, done in closed.items():
                if self._closed.get(key) is done:  # else it was closed once more meanwhile
                    del self._closed[key]

    def _held_now(self) -> frozenset[str]:
        with self._file.memory_lock:
            return frozenset(self._held)

    def _reuse(self, transaction: _Transaction, handle: EntryHandle) -> bool:
        """Hold the first matching entry that is free; False if there is none."""
        found = self._find(transaction.connection, handle)
        with self._file.memory_lock:
            free = [entry.key for entry in found if self._is_free(entry.key, transaction)]
            if handle.intent is not None and found:
                self._check_intent(handle, found[0].digest, is_free=bool(free))
            if not free:
                return False
            handle.reused = True
            self._hold(handle, free[0])
        self._entries.touch(transaction.connection, handle.key, self._now())
        return True

    def _find(self, connection: sqlite3.Connection, handle: EntryHandle) -> list[Entry]:
        if handle.callers_key:
            return self._entries.find_by_key(connection, handle.key)
        if handle.intent is not None:
            return self._entries.find_by_intent(connection, handle.account, handle.intent)
        return self._entries.find_by_digest(connection, handle.digest)

    def _is_free(self, key: str, transaction: _Transaction) -> bool:
        """True if nobody holds the entry. It must not have been closed since this transaction
        began either: then the entry still says that it is open, and is wrong."""
        return key not in self._held and self._closed.get(key) is transaction.closed.get(key)

    def _check_intent(self, handle: EntryHandle, digest: bytes, *, is_free: bool) -> None:
        if digest != handle.digest:
            raise Mismatch(
                f"the intent {handle.intent!r} was for another request; send that one again, or "
                "give this one a name of its own. If you know that the other one had no effect, "
                "journal.forget(intent=...) frees the name. Nothing was sent"
            )
        if not is_free:
            raise InFlight(
                f"a request with the intent {handle.intent!r} is under way in this process; wait "
                "for its answer. Nothing was sent"
            )

    def _insert(self, connection: sqlite3.Connection, handle: EntryHandle) -> None:
        count = self._entries.count_open(connection)
        if count >= JOURNAL_ENTRIES_MAX:
            raise NotSent(
                f"the journal {self._file.path} has {count} requests that were never answered; "
                "find out what became of them, or give a shorter keep=. Nothing was sent"
            )
        with self._file.memory_lock:
            self._hold(handle, handle.key)
        entry = Entry(handle.key, handle.digest)
        self._entries.insert(connection, entry, handle.account, handle.intent, self._now())

    def _hold(self, handle: EntryHandle, key: str) -> None:
        handle.key = key
        if not handle.released:  # its request may have been cancelled while it waited for the file
            handle.held = True
            self._held.add(key)

    def _now(self) -> int:
        return self._clock() // 1_000
