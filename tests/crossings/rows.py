"""The caller's own database, where a crossing is transactional: connections, and a table of effects
that is counted by a connection of its own.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from typing import Any

import aiosqlite
import asyncpg
import psycopg
from tests.support.postgres_stores import DATABASE, server

INSERT = "INSERT INTO crossing_effects VALUES ('{key}')"


class SqliteRows:
    """Rows in the file that the records are in."""

    def __init__(self, url: str) -> None:
        self.path = url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("CREATE TABLE crossing_effects (key TEXT)")

    def connect(self) -> Any:
        return sqlite3.connect(self.path)

    def connect_async(self) -> Any:
        return aiosqlite.connect(self.path)

    def counts(self) -> Counter[str]:
        with closing(sqlite3.connect(self.path)) as connection:
            return Counter(key for (key,) in connection.execute("SELECT key FROM crossing_effects"))

    @property
    def alchemy(self) -> str:
        return f"sqlite+aiosqlite:///{self.path}"

    @property
    def django(self) -> dict[str, Any]:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": self.path}


class PostgresRows:
    """Rows in the database that the records are in."""

    def __init__(self) -> None:
        self.url = server().url(DATABASE)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS crossing_effects")
            connection.execute("CREATE TABLE crossing_effects (key text)")

    def connect(self) -> Any:
        return psycopg.connect(self.url)

    def connect_async(self) -> Any:
        return _Acquired(self.url)

    def counts(self) -> Counter[str]:
        with psycopg.connect(self.url) as connection:
            rows = connection.execute("SELECT key FROM crossing_effects").fetchall()
        return Counter(key for (key,) in rows)

    @property
    def alchemy(self) -> str:
        return self.url.replace("postgresql://", "postgresql+asyncpg://")

    @property
    def django(self) -> dict[str, Any]:
        parts = psycopg.conninfo.conninfo_to_dict(self.url)
        named = {name.upper(): parts[name] for name in ("user", "host", "port")}
        return {"ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"], **named}


class _Acquired:
    """An asyncpg connection in an `async with` block, as that of a pool is."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None

    async def __aenter__(self) -> Any:
        self._connection = await asyncpg.connect(self._url)
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()


Rows = SqliteRows | PostgresRows
