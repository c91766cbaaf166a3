"""The callers' database, observed on a connection of its own."""

from __future__ import annotations

import functools
from typing import Any

import psycopg
from tests.support.postgres_stores import server
from tests.support.servers import processes

from oncekey.stores.postgres import PostgresStore

DATABASE = "callers"
LOCK_TIMEOUT = "400ms"
RING: dict[str, Any] = {"schema": "ring", "retention": "ring", "ring_slots": 12}
_TABLES = ("orders", "oncekey.records", "oncekey.history", "ring.records", "ring.history")


def database(major: int | None = None) -> str:
    """The URL of the callers' database on the shared server, with short lock timeouts."""
    return _database(major)


@functools.cache
def _database(major: int | None) -> str:
    url: str = server(major).create_database(DATABASE)
    server(major).execute(f"ALTER DATABASE {DATABASE} SET lock_timeout = '{LOCK_TIMEOUT}'")
    server(major).execute(f"ALTER DATABASE {DATABASE} SET statement_timeout = '20s'")
    for options in ({}, RING):
        store = PostgresStore(url, **options)
        store.prepare()
        store.close()
    query("CREATE TABLE orders (item text)", major=major, url=url)
    return url


@functools.cache
def _observer(url: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(url, autocommit=True)
    processes.at_exit(connection.close)
    return connection


def query(sql: str, *, major: int | None = None, url: str = "") -> list[tuple[Any, ...]]:
    """Run a statement on a connection that no caller uses."""
    cursor = _observer(url or database(major)).execute(sql.encode())
    return cursor.fetchall() if cursor.description else []


def orders(major: int | None = None) -> list[str]:
    """The committed orders."""
    return [item for (item,) in query("SELECT item FROM orders ORDER BY item", major=major)]


def clear_tables(major: int | None = None) -> None:
    """Delete all orders and keys."""
    query("; ".join(f"DELETE FROM {table}" for table in _TABLES), major=major)  # noqa: S608


def advisory_locks(major: int | None = None) -> list[tuple[Any, ...]]:
    """Process and mode of every advisory lock in the callers' database."""
    held = (
        "SELECT l.pid, l.mode FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
        "WHERE l.locktype = 'advisory' AND d.datname = current_database()"
    )
    return query(held, major=major)
