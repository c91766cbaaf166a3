"""Our own connection to one file: opened, set up, shared by threads, given up before a fork.

SQLite's locks belong to the process and their bookkeeping is inherited by a fork: a child that
opens the file while its parent's connection is in memory takes no real lock, and its commits are
lost when the parent closes. So no connection of ours is ever open across a fork: it is closed
before, and parent and child open anew when they next need one.

Owns the pragmas and the life of the connection. Must not know commands or records.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import closing
from typing import Final, TypeVar

from oncekey.core.errors import ConfigurationError, OncekeyError, StoreUnavailable
from oncekey.stores.fork_safety import Forkables, file_identity
from oncekey.stores.sqlite import durability, errors, schema
from oncekey.stores.sqlite.callers.drivers import run
from oncekey.stores.sqlite.program import Steps
from oncekey.stores.store_rules import StoreClock

T = TypeVar("T")

CACHE_KIB: Final = 8_192
LOG_SIZE_LIMIT_BYTES: Final = 64 * 1024 * 1024
_WAL_RETRY_SECONDS: Final = 0.005
_WAL_PATIENCE_SECONDS: Final = 1.0
_FORK_MARGIN_SECONDS: Final = 1.0
LOOK_FOR_OTHERS_SECONDS: Final = 60.0
_CLOSED: Final = "the store was closed"


class Database:
    """One file. `run` may be called from many threads; they take turns."""

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
        self.forks = 0  # how many forks this copy has been through
        self._busy_timeout = busy_timeout_seconds
        self._synchronous = synchronous
        self._clock = clock
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._was_open = False
        self._refusal = ""
        self._file: tuple[int, int] | None = None
        self._paused = False
        self._watches = not acknowledged and durability.must_watch()
        self._look_at = 0.0
        _databases.add(self)

    def run(self, steps: Steps[T]) -> T:
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
            if self._watches and time.monotonic() >= self._look_at:
                self._look_for_others()
            try:
                return run(connection, steps)
            except Exception as error:
                cause = error.__cause__ if isinstance(error, StoreUnavailable) else None
                if isinstance(cause, sqlite3.Error) and errors.spoils(cause):
                    self._disconnect()
                raise
            finally:
                if self._connection is not None and self._connection.in_transaction:
                    self._disconnect()  # it would not even roll back

    def open(self) -> None:
        """Open now, so that an unusable file is found at start-up."""
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
            raise self._unusable(error)
        try:
            self._connection = connect(self.path, self._busy_timeout, self._synchronous)
            run(self._connection, schema.prepare(self._clock))
        except BaseException as error:
            self._disconnect()
            cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
            if isinstance(cause, sqlite3.Error):
                raise self._unusable(errors.opening(cause, self.path)) from cause
            if isinstance(error, ConfigurationError):
                raise self._unusable(ConfigurationError(f"{self.path}: {error}")) from None
            raise
        self._was_open = True
        self._file = file_identity(self.path)
        if self._watches:
            self._look_for_others()
        return self._connection

    def _look_for_others(self) -> None:
        """Now and then: the other process may come later, and may not be one of ours."""
        self._look_at = time.monotonic() + LOOK_FOR_OTHERS_SECONDS
        durability.warn_if_shared(self.path)
        self._watches = durability.must_watch()

    def _unusable(self, error: OncekeyError) -> OncekeyError:
        """A file that was good once is a matter of serving, not of setting up."""
        if self._was_open and isinstance(error, ConfigurationError):
            return StoreUnavailable(str(error), ambiguous=False)
        return error

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                pass  # a dying disk; there is nothing left to save

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
            # A thread was deep in SQLite. Its connection may be neither used nor finalised here,
            # and with it in memory no other one would be safe: fail closed.
            _inherited.append(self._connection)
            self._connection = None
            self._refusal = (
                "this process was forked while a statement hung; open the store after the fork"
            )


def connect(path: str, busy_timeout_seconds: float, synchronous: str) -> sqlite3.Connection:
    """A connection with our settings. Raises sqlite3.Error, or ConfigurationError without WAL."""
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
    """Turn write-ahead logging on: a property of the file, so this is done once in its life.

    Where two processes do so at once, SQLite does not wait: it says BUSY, or leaves the mode as
    it is and says nothing. So the waiting is done here.
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
            if not errors.waits(error) or time.monotonic() - begun >= patience:
                raise
        if time.monotonic() - begun >= patience:
            raise ConfigurationError(
                f"the database stays in journal mode {mode!r}; oncekey needs WAL, which needs a "
                "local file system with shared memory and write permission"
            )
        time.sleep(_WAL_RETRY_SECONDS)


_databases: Forkables[Database] = Forkables()
_inherited: list[object] = []  # kept from being finalised
