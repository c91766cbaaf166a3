"""What SQLite's errors mean to a caller: which are the store's, and what to do about them.

Owns the mapping from sqlite3.Error to oncekey's errors. Runs nothing.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from oncekey.core.errors import ConfigurationError, OncekeyError, StoreUnavailable

# What happened and what to do, by SQLite's primary result code.
_MEANING: Final = {
    sqlite3.SQLITE_BUSY: (
        "another process held the database's lock longer than busy_timeout; keep transactions "
        "short, or give a longer busy_timeout"
    ),
    sqlite3.SQLITE_LOCKED: (
        "another connection of this process holds the table's lock; do not use shared cache"
    ),
    sqlite3.SQLITE_FULL: "the disk, or the database's own size limit, is full; make room",
    sqlite3.SQLITE_READONLY: (
        "the database cannot be written; check the permissions of the file and of its directory, "
        "and whether the disk is mounted read-only"
    ),
    sqlite3.SQLITE_IOERR: "the disk failed to read or write; check the disk and its mount",
    sqlite3.SQLITE_CANTOPEN: (
        "the file, or its -wal and -shm beside it, cannot be opened; check that its directory "
        "exists and can be written"
    ),
    sqlite3.SQLITE_CORRUPT: (
        "the database file is damaged; stop every process that uses it and restore a backup"
    ),
    sqlite3.SQLITE_NOTADB: "the file is not an SQLite database; check the path",
    sqlite3.SQLITE_PERM: "the file's permissions do not allow it; check them",
    sqlite3.SQLITE_AUTH: "the connection's authorizer forbids it",
    sqlite3.SQLITE_NOMEM: "SQLite ran out of memory",
    sqlite3.SQLITE_PROTOCOL: "SQLite could not get at its locks; check the file system",
    sqlite3.SQLITE_INTERRUPT: "the statement was interrupted",
}

# One command's fault (too large a body), or a bug of ours: said as it is, so that the coalescer
# finds the command and spares its neighbours.
_NOT_THE_STORES: Final = frozenset(
    (
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_MISUSE,
        sqlite3.SQLITE_RANGE,
    )
)
# Nothing was written yet when COMMIT says one of these.
_BEFORE_COMMIT: Final = frozenset(
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM)
)
_TRANSIENT: Final = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM))
_SPOILS: Final = frozenset(
    (
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PROTOCOL,
    )
)


def code_of(error: sqlite3.Error) -> int:
    """SQLite's extended result code; 0 where the error is the Python module's own."""
    return getattr(error, "sqlite_errorcode", 0)


def primary(error: sqlite3.Error) -> int:
    return code_of(error) & 0xFF


def waits(error: sqlite3.Error) -> bool:
    """Whether trying again later may help: the lock is held, and our snapshot is not stale."""
    busy = primary(error) == sqlite3.SQLITE_BUSY
    return busy and code_of(error) != sqlite3.SQLITE_BUSY_SNAPSHOT


def spoils(error: sqlite3.Error) -> bool:
    """Whether the connection should not be used again."""
    return primary(error) in _SPOILS


def serving(error: sqlite3.Error, *, committing: bool) -> Exception:
    """The error to raise for a statement of our own transaction."""
    code = primary(error)
    if code in _NOT_THE_STORES or code == 0:
        return error
    # A COMMIT that failed on the disk may have reached it: after a crash the log decides (S5).
    ambiguous = committing and code not in _BEFORE_COMMIT
    return StoreUnavailable(_text(error), ambiguous=ambiguous)


def opening(error: sqlite3.Error, path: str) -> OncekeyError:
    """The error to raise where a file cannot be opened and set up."""
    message = f"{path}: {_text(error)}"
    if primary(error) in _TRANSIENT:
        return StoreUnavailable(message, ambiguous=False)
    return ConfigurationError(message)


def enlisted(error: sqlite3.Error) -> Exception:
    """The error to raise for a statement in the caller's transaction: nothing is committed yet."""
    code = code_of(error)
    if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return StoreUnavailable(
            "another process wrote after this transaction had read; begin it with BEGIN "
            "IMMEDIATE, so that it holds the write lock from the start",
            ambiguous=False,
        )
    if waits(error):
        return StoreUnavailable(
            f"{_text(error)}. Begin the transaction with BEGIN IMMEDIATE: one that has read "
            "before it writes does not wait for its turn",
            ambiguous=False,
        )
    message = str(error)
    if "no such table: oncekey_" in message:
        return ConfigurationError(
            "this connection's database has no oncekey tables; open Once on the same file first"
        )
    if "no such savepoint" in message:
        return transaction_over()
    return serving(error, committing=False)


def transaction_over() -> ConfigurationError:
    return ConfigurationError(
        "the transaction this operation began in is over: the body committed it or rolled it "
        "back, or SQLite did after an error. Leave that to whoever began the transaction, after "
        "the run"
    )


def _text(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    meaning = _MEANING.get(primary(error))
    return f"{meaning} ({name}: {error})" if meaning else f"SQLite said {name}: {error}"
