"""The store's own connection to its file: how it is opened, shared by threads and used.

SQLite's locks belong to the process, and a fork copies its bookkeeping of them: a child that opens
the file while a copy of its parent's connection is in memory takes no real lock, and its commits
are lost when the parent closes. So none of our connections stays open across a fork: it is closed
before, and parent and child open a new one when they next need it.

This module owns the pragmas, the life of the connection, and running a program's statements on it.
It must not know commands or records.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Final, NoReturn, TypeVar

from oncekey.core.errors import ConfigurationError, OncekeyError, StoreUnavailable
from oncekey.stores.connection_lifetime import Forkables, file_identity
from oncekey.stores.sqlite import durability, errors, schema
from oncekey.stores.sqlite.program import COMMIT, Statement, Statements
from oncekey.stores.sqlite.rows import Row
from oncekey.stores.store_rules import StoreClock

T = TypeVar("T")

CACHE_KIB: Final = 8_192
LOG_SIZE_LIMIT_BYTES: Final = 64 * 1024 * 1024
_WAL_RETRY_SECONDS: Final = 0.005
_WAL_PATIENCE_SECONDS: Final = 1.0
_FORK_MARGIN_SECONDS: Final = 1.0
OTHER_PROCESSES_CHECK_SECONDS: Final = 60.0
_CLOSED: Final = "the store was closed"


class Database:
    """One file. Many threads may call `run`; a lock lets one in at a time."""

    def __init__(
        self,
        path: str,
        *,
        busy_timeout_seconds: float,
        synchronous: str,
        clock: StoreClock,
        acknowledged: bool = False,
    ) -> None:
        self.path = path
        self.forks = 0  # how many forks this copy of the object has been through
        self._busy_timeout = busy_timeout_seconds
        self._synchronous = synchronous
        self._clock = clock
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._was_open = False
        self._refusal = ""
        self._file: tuple[int, int] | None = None
        self._paused = False
        self._checks_for_others = not acknowledged and durability.must_check()
        self._next_check = 0.0
        _databases.add(self)

    def run(self, statements: Statements[T]) -> T:
        with self._lock:
            connection = self._connection
            if connection is None:
                connection = self._open()
            if file_identity(self.path) != self._file:
                raise StoreUnavailable(
                    f"{self.path} was deleted or replaced while it was open; nothing is claimed in "
                    "a file nobody else can see. Put it back, or restart on the new one",
                    ambiguous=False,
                )
            if self._checks_for_others and time.monotonic() >= self._next_check:
                self._check_for_other_processes()
            try:
                return run(connection, statements)
            except Exception as error:
                cause = error.__cause__ if isinstance(error, StoreUnavailable) else None
                if isinstance(cause, sqlite3.Error) and errors.breaks_connection(cause):
                    self._disconnect()
                raise
            finally:
                if self._connection is not None and self._connection.in_transaction:
                    self._disconnect()  # even the rollback failed

    def open(self) -> None:
        """Open the file now, so that an unusable one is reported at start-up."""
        with self._lock:
            if self._connection is None:
                self._open()

    def close(self) -> None:
        with self._lock:
            self._refusal = self._refusal or _CLOSED
            self._disconnect()

    def reopen(self) -> None:
        """After `close`: the next use opens the file again."""
        with self._lock:
            if self._refusal == _CLOSED:
                self._refusal = ""

    def _open(self) -> sqlite3.Connection:
        if self._refusal:
            raise StoreUnavailable(self._refusal, ambiguous=False, final=True)
        if os.path.isdir(self.path):
            error = ConfigurationError(f"{self.path}: that is a folder; name a file in it")
            raise self._open_failed(error)
        try:
            self._connection = connect(self.path, self._busy_timeout, self._synchronous)
            run(self._connection, schema.prepare(self._clock))
        except BaseException as error:
            self._disconnect()
            cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
            if isinstance(cause, sqlite3.Error):
                raise self._open_failed(errors.translate_open_error(cause, self.path)) from cause
            if isinstance(error, ConfigurationError):
                raise self._open_failed(ConfigurationError(f"{self.path}: {error}")) from None
            raise
        self._was_open = True
        self._file = file_identity(self.path)
        if self._checks_for_others:
            self._check_for_other_processes()
        return self._connection

    def _check_for_other_processes(self) -> None:
        """Warn if another process has the file open. Checked regularly: the other process may start
        later, and may not use oncekey."""
        self._next_check = time.monotonic() + OTHER_PROCESSES_CHECK_SECONDS
        durability.warn_if_shared(self.path)
        self._checks_for_others = durability.must_check()

    def _open_failed(self, error: OncekeyError) -> OncekeyError:
        """The error to raise. A file that was usable before is unavailable, not misconfigured."""
        if self._was_open and isinstance(error, ConfigurationError):
            return StoreUnavailable(str(error), ambiguous=False)
        return error

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                pass  # the disk is failing; there is nothing left to save

    # --- fork ---------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        self._paused = self._lock.acquire(timeout=self._busy_timeout + _FORK_MARGIN_SECONDS)
        if self._paused:
            self._disconnect()

    def _after_in_parent(self) -> None:
        if self._paused:
            self._lock.release()

    def _after_in_child(self) -> None:
        self.forks += 1
        self._lock = threading.Lock()
        if not self._paused:
            # Another thread was inside SQLite. Its connection may be neither used nor finalized
            # in the child, and while it is in memory no other one is safe: fail closed.
            _inherited.append(self._connection)
            self._connection = None
            self._refusal = (
                "this process was forked while a statement hung; open the store after the fork"
            )


def connect(path: str, busy_timeout_seconds: float, synchronous: str) -> sqlite3.Connection:
    """A connection with our settings. Raises sqlite3.Error, or ConfigurationError if the file
    cannot use WAL."""
    connection = sqlite3.connect(
        path,
        timeout=busy_timeout_seconds,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        _use_wal(connection, busy_timeout_seconds)
        with closing(connection.cursor()) as cursor:
            cursor.execute(f"PRAGMA synchronous = {synchronous}")
            cursor.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            cursor.execute(f"PRAGMA journal_size_limit = {LOG_SIZE_LIMIT_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection, timeout_seconds: float) -> None:
    """Turn write-ahead logging on. It is a property of the file, so this happens once in its life.

    If two processes do so at once, SQLite does not wait: it fails with BUSY, or leaves the mode
    unchanged without an error. So this function waits and tries again.
    """
    begun = time.monotonic()
    while True:
        mode = ""
        patience = timeout_seconds
        try:
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
            if mode == "wal":
                return
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode == "wal":
                return
            patience = max(timeout_seconds, _WAL_PATIENCE_SECONDS)
        except sqlite3.OperationalError as error:
            if not errors.is_busy(error) or time.monotonic() - begun >= patience:
                raise
        if time.monotonic() - begun >= patience:
            raise ConfigurationError(
                f"the database stays in journal mode {mode!r}; oncekey needs WAL, which needs a "
                "local file system with shared memory and write permission"
            )
        time.sleep(_WAL_RETRY_SECONDS)


def run(connection: sqlite3.Connection, statements: Statements[T]) -> T:
    """Run a program on our own connection. If it fails, no transaction stays open."""
    cursor = sqlite3.Cursor(connection)
    statement: Statement | None = None
    try:
        statement = next(statements)
        while True:
            statement = statements.send(execute(cursor, statement))
    except StopIteration as stop:
        result: T = stop.value
        return result
    except BaseException as error:
        _roll_back(connection)
        if isinstance(error, sqlite3.Error):
            raise_translated(errors.translate_error(error, committing=statement is COMMIT), error)
        raise
    finally:
        cursor.close()


def execute(cursor: sqlite3.Cursor, statement: Statement) -> Sequence[Row]:
    if statement.many:
        cursor.executemany(statement.sql, statement.params)
        return ((cursor.rowcount,),)
    return cursor.execute(statement.sql, statement.params).fetchall()


def _roll_back(connection: sqlite3.Connection) -> None:
    """Roll back an open transaction. SQLite may have done so, and a broken disk may refuse."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        pass  # the first error is the one to report; a connection that stays open is closed


def raise_translated(meaning: Exception, error: sqlite3.Error) -> NoReturn:
    if meaning is error:
        raise error
    raise meaning from error


_databases: Forkables[Database] = Forkables()
_inherited: list[object] = []  # references that keep connections from being finalized
