"""The journal's file: one SQLite database that one process holds at a time.

The process holds an exclusive lock of SQLite's, and one on a lock file beside the database.
SQLite's locks belong to the process, and a fork inherits their bookkeeping, so no connection may be
open across a fork: it is closed before, the parent opens a new one when it needs it, and the child
is refused. The lock file stays locked all the while, so that nobody, the child included, can open
the journal in between.

This module owns the pragmas, the locks and the life of the connection. It does not know what an
entry means.
"""

from __future__ import annotations

import io
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from oncekey.client.errors import NotSent
from oncekey.core.errors import ConfigurationError
from oncekey.stores.connection_lifetime import Forkables, file_identity
from oncekey.stores.sql_files import load_queries

if sys.platform != "win32":
    import fcntl

QUERIES: Final = load_queries("oncekey.client.journal", "journal.sql")
APPLICATION_ID: Final = 0x6F6E6A31  # "onj1"
SCHEMA_VERSION: Final = 1
_FORK_PATIENCE_SECONDS: Final = 5.0
_IN_USE: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class LockFile:
    """A file that is locked from its opening until `close`, also across a fork.

    The lock is flock's, which belongs to the open file and not to the process, so a forked child
    has it too. The child has to abandon its copy, or it would keep the lock for longer than its
    parent lives. The file stays when it is unlocked: removing it could take it from a process that
    is about to lock it. Windows has no flock, and does not fork either: there the file holds
    nothing, and SQLite's own lock has to do.

    Raises BlockingIOError if another process has locked it.
    """

    def __init__(self, path: str) -> None:
        self._file: io.FileIO | None = None
        if sys.platform == "win32":
            return
        # A file object, so that it is closed with its owner.
        file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            file.close()
            raise
        self._file = file

    def close(self) -> None:
        """Unlock it, even if a child still has a copy."""
        if self._file is not None and not self._file.closed:
            if sys.platform != "win32":
                fcntl.flock(self._file.fileno(), fcntl.LOCK_UN)
            self._file.close()

    def abandon(self) -> None:
        """Close the copy of a forked child; that of the parent stays locked."""
        if self._file is not None:
            self._file.close()


class JournalFile:
    """Used as `with file.transaction() as connection:`, from any thread, one at a time."""

    def __init__(self, path: str) -> None:
        self.path = path
        # It guards what the journal has in memory. It is here because the child of a fork gets a
        # new one: a thread that the child does not have may hold the old one.
        self.memory_lock = threading.Lock()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._refusal = ""
        self._inode: tuple[int, int] | None = None
        self._paused = False
        self._lock_file: LockFile | None = None
        _files.add(self)  # before the lock file is opened: no child may keep a copy of it
        with self._lock:
            self._lock_file = self._open_lock_file()
            try:
                self._connection = self._open()
            except BaseException:
                self._lock_file.close()
                raise

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it is on disk when this ends, or none. Raises NotSent if it cannot
        be written."""
        with self._lock:
            connection = self._usable()
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except BaseException as error:
                self._roll_back(connection)
                if isinstance(error, sqlite3.Error):
                    raise NotSent(
                        f"the journal {self.path} cannot be written ({error}); without it a "
                        "restart would send another key. Nothing was sent"
                    ) from error
                raise

    def close(self) -> None:
        with self._lock:
            self._refusal = self._refusal or "was closed"
            self._disconnect()
            if self._lock_file is not None:
                self._lock_file.close()

    def _usable(self) -> sqlite3.Connection:
        if self._refusal:
            raise NotSent(f"the journal {self.path} {self._refusal}. Nothing was sent")
        if self._connection is not None and file_identity(self.path) != self._inode:
            raise NotSent(
                f"the journal {self.path} was deleted or replaced while it was in use; put it "
                "back, or restart on the new one. Nothing was sent"
            )
        if self._connection is None:
            try:
                self._connection = self._open()
            except ConfigurationError as error:
                raise NotSent(f"{error}. Nothing was sent") from error
        return self._connection

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()  # it cannot even roll back

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                pass  # the disk fails; what was committed stays

    # --- opening --------------------------------------------------------------------------------

    def _open_lock_file(self) -> LockFile:
        try:
            return LockFile(os.path.realpath(self.path) + ".lock")
        except BlockingIOError as error:
            raise self._in_use() from error
        except OSError as error:
            raise self._unusable(error) from error

    def _open(self) -> sqlite3.Connection:
        connection = None
        try:
            _make_private(self.path)
            connection = sqlite3.connect(
                self.path, timeout=0, isolation_level=None, check_same_thread=False
            )
            self._set_up(connection)
        except (sqlite3.Error, OSError) as error:
            if connection is not None:
                connection.close()
            raise self._unusable(error) from error
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        self._inode = file_identity(self.path)
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # before anything is read
        version = _number(connection, "PRAGMA user_version")
        if _number(connection, "PRAGMA application_id") != APPLICATION_ID:
            if _number(connection, QUERIES["count_tables"]):
                raise ConfigurationError(
                    f"{self.path} holds something else than a journal; give it a file of its own"
                )
        elif version > SCHEMA_VERSION:
            raise ConfigurationError(
                f"{self.path} was written by a later release of oncekey; use that one"
            )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        for query in ("create_entries", "create_by_digest", "create_by_age", "create_open"):
            connection.execute(QUERIES[query])
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")

    def _unusable(self, error: Exception) -> ConfigurationError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _IN_USE:
            return self._in_use()
        return ConfigurationError(f"{self.path} cannot be used as a journal: {error}")

    def _in_use(self) -> ConfigurationError:
        return ConfigurationError(
            f"the journal {self.path} is in use by another process, or by another Journal of "
            "this one; one at a time holds it. Give each process a journal of its own"
        )

    # --- fork -----------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        self._paused = self._lock.acquire(timeout=_FORK_PATIENCE_SECONDS)
        if self._paused:
            self._disconnect()

    def _after_in_parent(self) -> None:
        if self._paused:
            self._lock.release()

    def _after_in_child(self) -> None:
        self._lock = threading.Lock()
        self.memory_lock = threading.Lock()
        self._refusal = (
            "was opened before this process was forked; open one under another path in the child"
        )
        if self._lock_file is not None:
            self._lock_file.abandon()
        if not self._paused:
            # A thread that is not here may have been using it, so it must never be touched.
            _inherited.append(self._connection)
        self._connection = None


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])


def _make_private(path: str) -> None:
    """Create a file that only its owner can read, because there are keys in it.

    An existing file must not be opened here: closing it again would drop the locks that this
    process holds on it.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        pass


_files: Forkables[JournalFile] = Forkables()
_inherited: list[object] = []  # kept here so that they are never finalised
