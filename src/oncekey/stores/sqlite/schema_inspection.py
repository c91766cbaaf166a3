"""Inspects an SQLite file for the command line: read-only, and without creating the file.

This module answers what commands ask about a file before it is opened as a store (see
oncekey.stores.inspection). Opening it is in sqlite_store.py.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import Any
from urllib.parse import quote

from oncekey.core.errors import ConfigurationError
from oncekey.stores.inspection import Inspection
from oncekey.stores.sql_files import plan
from oncekey.stores.sqlite import errors
from oncekey.stores.sqlite.schema import MIGRATIONS
from oncekey.stores.sqlite.sqlite_store import AsyncSQLiteStore

_TABLES = "SELECT name FROM sqlite_master WHERE name IN ('oncekey_records', 'oncekey_migrations')"
_APPLIED = "SELECT version, name FROM oncekey_migrations ORDER BY version"
_ANY = "SELECT EXISTS (SELECT 1 FROM oncekey_records) OR EXISTS (SELECT 1 FROM oncekey_history)"
_NO_FILE = "no such file; `oncekey migrate` makes a new store"
_NOT_OURS = "not an oncekey store; is it the right file?"
_NO_SCRIPT = (
    "SQLite has no conditional statements, so no script for it could be run twice safely, or on a "
    "file of any age; run `oncekey migrate` itself on the host that has the file"
)


def inspect(path: str, options: dict[str, Any]) -> Inspection:
    """What is in the file. ConfigurationError if it is not a database, or if a newer release wrote
    it."""
    unopened = AsyncSQLiteStore(path, **options)  # checks the options, opens no file yet
    path = unopened.path
    if os.path.isdir(path):
        raise ConfigurationError(f"{path}: a folder; the URL must name the file in it")
    tables: set[str] = set()
    applied: dict[int, str] = {}
    has_records = False
    file_exists = os.path.exists(path)
    if file_exists:
        try:
            with closing(_open_read_only(path)) as file:
                tables.update(name for (name,) in file.execute(_TABLES))
                if "oncekey_migrations" in tables:
                    applied = dict(file.execute(_APPLIED))
                if "oncekey_records" in tables:
                    has_records = bool(file.execute(_ANY).fetchone()[0])
        except sqlite3.Error as error:
            raise errors.translate_open_error(error, path) from error
    exists = "oncekey_records" in tables
    return Inspection(
        name=path,
        exists=exists,
        absence="" if exists else _NOT_OURS if file_exists else _NO_FILE,
        has_records=has_records,
        applied=applied,
        missing=_missing(path, applied),
        guarantee=unopened.guarantee,
    )


def script_unavailable() -> ConfigurationError:
    """The error that says why there is no migration script for SQLite."""
    return ConfigurationError(_NO_SCRIPT)


def _missing(path: str, applied: dict[int, str]) -> list[str]:
    try:
        return [migration.name for migration in plan(list(applied), MIGRATIONS)]
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _open_read_only(path: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)
