"""Opening stores for commands, without surprises.

`show` and `sweep` must not create a file, nor put tables into one that is not oncekey's: they
look first, read-only. Owns that look, and how secrets are read: from the environment, so that
none stands on a command line.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, unquote

from oncekey.core.contract import Store
from oncekey.engine.urls import blocking_store
from oncekey.stores.sqlite import faults

_SQLITE = "sqlite:///"


class UsageProblem(Exception):
    """The command cannot be tried as it was written; the text says why."""


def open_store(url: str) -> Store:
    """The store behind a URL, and nothing more: `Once` would bind a new one to its secret."""
    if url.startswith("memory:"):
        raise UsageProblem("memory:// lives and ends within one process; no command can see it")
    return blocking_store(url)


def has_records(url: str) -> bool:
    """Whether anything is stored there. UsageProblem where there is no oncekey store at all;
    True for stores that only an open connection can tell about."""
    path = file_of(url)
    if path is None:
        return True
    if path.is_dir():
        raise UsageProblem(f"{path}: a folder; the URL must name the file in it")
    if not path.exists():
        raise UsageProblem(f"{path}: no such file; `oncekey migrate` makes a new store")
    try:
        with closing(peek(path)) as file:
            tables = file.execute("SELECT 1 FROM sqlite_master WHERE name = 'oncekey_records'")
            if tables.fetchone() is None:
                raise UsageProblem(f"{path}: not an oncekey store; is it the right file?")
            rows = file.execute(
                "SELECT EXISTS (SELECT 1 FROM oncekey_records) "
                "OR EXISTS (SELECT 1 FROM oncekey_history)"
            )
            return bool(rows.fetchone()[0])
    except sqlite3.Error as error:
        raise faults.opening(error, str(path)) from error


def peek(path: Path) -> sqlite3.Connection:
    """The file, read-only. Raises sqlite3.Error."""
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)


def file_of(url: str) -> Path | None:
    """The file of an SQLite URL; None for other stores."""
    address, _, _ = url.partition("?")
    path = unquote(address.removeprefix(_SQLITE))
    if not address.startswith(_SQLITE) or not path:
        return None
    return Path(path).absolute()


def secret_from(name: str | None) -> str | None:
    """The secret in the environment variable `name`; its value is never shown."""
    if name is None:
        return None
    secret = os.environ.get(name)
    if not secret:
        raise UsageProblem(f"--secret-env: the environment variable {name} is not set")
    return secret
