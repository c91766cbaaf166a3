"""Translates sqlite3 errors into oncekey's errors, with what happened and what to do about it.

This module decides which errors are a failure of the store. It runs nothing.
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

# One command's fault (its body is too large) or a bug of ours. These errors are raised unchanged,
# so that the coalescer finds the command and the rest of its batch succeeds.
_NOT_A_STORE_FAILURE: Final = frozenset(
    (
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_MISUSE,
        sqlite3.SQLITE_RANGE,
    )
)
# Nothing was written yet if COMMIT fails with one of these.
_BEFORE_COMMIT: Final = frozenset(
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM)
)
_TRANSIENT: Final = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM))
_BREAKS_CONNECTION: Final = frozenset(
    (
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PROTOCOL,
    )
)


def extended_code(error: sqlite3.Error) -> int:
    """SQLite's extended result code; 0 if the Python module raised the error by itself."""
    return getattr(error, "sqlite_errorcode", 0)


def primary_code(error: sqlite3.Error) -> int:
    return extended_code(error) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """True if trying again later may help: another connection holds the lock, and our snapshot is
    not stale."""
    busy = primary_code(error) == sqlite3.SQLITE_BUSY
    return busy and extended_code(error) != sqlite3.SQLITE_BUSY_SNAPSHOT


def breaks_connection(error: sqlite3.Error) -> bool:
    """True if the connection should not be used again."""
    return primary_code(error) in _BREAKS_CONNECTION


def translate_error(error: sqlite3.Error, *, committing: bool) -> Exception:
    """The error to raise for a statement of our own transaction."""
    code = primary_code(error)
    if lacks_outbox(error):
        return no_outbox()
    if code in _NOT_A_STORE_FAILURE or code == 0:
        return error
    # A COMMIT that failed while writing may be on disk: after a crash the log decides (S5).
    ambiguous = committing and code not in _BEFORE_COMMIT
    return StoreUnavailable(_describe(error), ambiguous=ambiguous)


def translate_open_error(error: sqlite3.Error, path: str) -> OncekeyError:
    """The error to raise if a file cannot be opened and set up."""
    message = f"{path}: {_describe(error)}"
    if primary_code(error) in _TRANSIENT:
        return StoreUnavailable(message, ambiguous=False)
    return ConfigurationError(message)


def translate_caller_error(error: sqlite3.Error) -> Exception:
    """The error to raise for a statement in the caller's transaction: nothing is committed yet."""
    code = extended_code(error)
    if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return StoreUnavailable(
            "another process wrote after this transaction had read; begin it with BEGIN "
            "IMMEDIATE, so that it holds the write lock from the start",
            ambiguous=False,
        )
    if is_busy(error):
        return StoreUnavailable(
            f"{_describe(error)}. Begin the transaction with BEGIN IMMEDIATE: one that has read "
            "before it writes does not wait for its turn",
            ambiguous=False,
        )
    message = str(error)
    if lacks_outbox(error):
        return no_outbox()
    if "no such table: oncekey_" in message:
        return ConfigurationError(
            "this connection's database has no oncekey tables; open Once on the same file first"
        )
    if "no such savepoint" in message:
        return transaction_ended()
    return translate_error(error, committing=False)


def lacks_outbox(error: sqlite3.Error) -> bool:
    return "no such table: oncekey_outbox" in str(error)


def no_outbox() -> ConfigurationError:
    return ConfigurationError(
        "the store has no outbox table; call create_table() of your outbox once, at start-up, or "
        "run `oncekey migrate --outbox`"
    )


def transaction_ended() -> ConfigurationError:
    return ConfigurationError(
        "the transaction this operation began in is over: the body committed it or rolled it "
        "back, or SQLite did after an error. Leave that to whoever began the transaction, after "
        "the run"
    )


def _describe(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    meaning = _MEANING.get(primary_code(error))
    return f"{meaning} ({name}: {error})" if meaning else f"SQLite said {name}: {error}"
