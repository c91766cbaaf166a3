"""Runs a query that counts effects, read-only, on SQLite or PostgreSQL.

Values are bound, never written into the text: :unique, :number and :key.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, unquote

from oncekey.core.errors import ConfigurationError
from oncekey.http.missing_dependency import needs
from oncekey.verify.target import CountFailed

_SQLITE = "sqlite:///"
_SQLITE_STEPS = 10_000  # of its virtual machine, between two looks at the clock
_POSTGRES = ("postgresql://", "postgres://")
# A colon after another one is a cast of PostgreSQL: now()::date.
_PARAMETER = re.compile(r"(?<!:):(unique|number|key)\b")


def check_query(database: str, query: str) -> None:
    """Raises ConfigurationError for what could never count."""
    if not database.startswith((_SQLITE, *_POSTGRES)):
        raise ConfigurationError("a query is asked of sqlite:///file or postgresql://...")
    if "{{" in query:
        raise ConfigurationError("SQL has no {{...}}: write :unique, :number or :key, unquoted")


def parameters_of(query: str) -> frozenset[str]:
    """Return the names of the values that the query asks for."""
    return frozenset(_PARAMETER.findall(query))


def count_rows(database: str, query: str, values: Mapping[str, str], timeout: float) -> int:
    """Return the number that the query gives. Raises CountFailed."""
    bound = {name: values[name] for name in parameters_of(query)}
    if database.startswith(_SQLITE):
        row = _ask_sqlite(database.removeprefix(_SQLITE), query, bound, timeout)
    else:
        row = _ask_postgres(database, query, bound, timeout)
    if row is None or len(row) != 1 or not isinstance(row[0], int):
        raise CountFailed(f"the query gives {row!r}, not one whole number")
    return row[0]


def _ask_sqlite(path: str, query: str, values: Mapping[str, str], timeout: float) -> Any:
    # `number` is bound as a text too; SQLite compares it with a numeric column as a number.
    uri = f"file:{quote(str(Path(path).absolute()))}?mode=ro"
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=timeout)
    except sqlite3.Error as error:
        raise CountFailed(str(error)) from error
    ends_at = time.monotonic() + timeout
    connection.set_progress_handler(lambda: time.monotonic() > ends_at, _SQLITE_STEPS)
    try:
        return connection.execute(query, dict(values)).fetchone()
    except sqlite3.Error as error:
        raise CountFailed(str(error)) from error
    finally:
        connection.close()


def _ask_postgres(url: str, query: str, values: Mapping[str, str], timeout: float) -> Any:
    with needs("postgres"):
        import psycopg

    text = _PARAMETER.sub(r"%(\1)s", query.replace("%", "%%"))
    try:
        with psycopg.connect(url, connect_timeout=int(timeout)) as connection:
            connection.read_only = True
            limit = str(int(timeout * 1000))
            connection.execute("SELECT set_config('statement_timeout', %s, false)", [limit])
            # The text is the user's own; the values in it are bound.
            return connection.execute(cast(Any, text), dict(values)).fetchone()
    except psycopg.Error as error:
        raise CountFailed(_without_password(str(error), url)) from error


def _without_password(text: str, url: str) -> str:
    """Return a driver's message on one line; a message about a URL may repeat it."""
    secret = url.partition("://")[2].rpartition("@")[0].partition(":")[2]
    for form in {secret, unquote(secret)} - {""}:
        text = text.replace(form, "***")
    return " ".join(text.split())
