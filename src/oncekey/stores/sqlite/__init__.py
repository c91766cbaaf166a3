"""`sqlite:///file`: the embedded default, a file shared by threads and processes of one host.

    sqlite:///relative.db    sqlite:////absolute/path.db    ...?busy_timeout=5s&synchronous=full

The store uses write-ahead logging and BEGIN IMMEDIATE, and a commit is on disk before it is
acknowledged. The file may be your own database: our tables are named oncekey_*, and
`in_transaction` then commits your rows and ours together. The file becomes a WAL file and must be
on a local disk: on a network file system SQLite's locks do not hold, and nothing reports that.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote

from oncekey.core.errors import ConfigurationError
from oncekey.stores.inspection import Checkup, Inspection
from oncekey.stores.sqlite import file_checks, schema_inspection
from oncekey.stores.sqlite.file_checks import CHECKS
from oncekey.stores.sqlite.sqlite_store import AsyncSQLiteStore, SQLiteStore

__all__ = [
    "CHECKS",
    "AsyncSQLiteStore",
    "SQLiteStore",
    "checkup",
    "create_outbox",
    "inspect",
    "is_same_store",
    "migrate",
    "migration_script",
    "open_async",
    "open_blocking",
]

_PREFIX = "sqlite:///"
_OPTIONS = ("busy_timeout", "synchronous", "acknowledge")


def open_blocking(url: str) -> SQLiteStore:
    path, options = _parse(url)
    return SQLiteStore(path, **options)


def open_async(url: str) -> AsyncSQLiteStore:
    path, options = _parse(url)
    return AsyncSQLiteStore(path, **options)


def inspect(url: str) -> Inspection:
    """Read what is in the file. A missing file is not created."""
    return schema_inspection.inspect(*_parse(url))


def migrate(url: str) -> None:
    """Create the file, or bring its tables up to date; opening it does both."""
    open_blocking(url).close()


def create_outbox(url: str) -> None:
    """Create the table of the outbox, unless it is there."""
    store = open_blocking(url)
    try:
        store.create_outbox()
    finally:
        store.close()


def migration_script(url: str) -> str:
    """Raises ConfigurationError: SQLite has no such script, and the message says why."""
    _parse(url)
    raise schema_inspection.script_unavailable()


def checkup(url: str) -> Checkup:
    """Check the file's health, read-only. A missing file is not created."""
    return file_checks.checkup(*_parse(url))


def is_same_store(url: str, store: object) -> bool | None:
    """Whether a store object uses the file of this URL."""
    return file_checks.is_same_store(_parse(url)[0], store)


def _parse(url: str) -> tuple[str, dict[str, Any]]:
    address, _, query = url.partition("?")
    path = unquote(address.removeprefix(_PREFIX))
    if not address.startswith(_PREFIX) or not path:
        raise ConfigurationError(
            f"{url!r} names no file; write sqlite:///relative.db or sqlite:////absolute/path.db"
        )
    options: dict[str, Any] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise ConfigurationError(f"{url!r}: {error}") from None
    for name, value in pairs:
        if name not in _OPTIONS:
            raise ConfigurationError(f"{url!r}: no option {name!r}; known: {', '.join(_OPTIONS)}")
        if name in options:
            raise ConfigurationError(f"{url!r}: the option {name!r} is given twice")
        options[name] = value
    return path, options
