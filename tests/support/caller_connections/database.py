"""The shops' database, and what is to be seen in it from outside."""

from __future__ import annotations

import functools
from typing import Any

import psycopg
from tests.support.postgres_stores import server
from tests.support.servers import processes

from oncekey.stores.postgres import PostgresStore

DATABASE = "shops"
LOCK_TIMEOUT = "400ms"
RING: dict[str, Any] = {"schema": "ring", "retention": "ring", "ring_slots": 12}
_TABLES = ("orders", "oncekey.records", "oncekey.history", "ring.records", "ring.history")


def database(major: int | None = None) -> str:
    """The shops' database on the run's server, with short waits for everybody."""
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
    watch("CREATE TABLE orders (item text)", major=major, url=url)
    return url


@functools.cache
def _watcher(url: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(url, autocommit=True)
    processes.at_exit(connection.close)
    return connection


def watch(sql: str, *, major: int | None = None, url: str = "") -> list[tuple[Any, ...]]:
    """A statement on a connection of nobody's."""
    cursor = _watcher(url or database(major)).execute(sql.encode())
    return cursor.fetchall() if cursor.description else []


def rows(major: int | None = None) -> list[str]:
    """What others see."""
    return [item for (item,) in watch("SELECT item FROM orders ORDER BY item", major=major)]


def empty(major: int | None = None) -> None:
    """No order and no key."""
    watch("; ".join(f"DELETE FROM {table}" for table in _TABLES), major=major)  # noqa: S608


def locks(major: int | None = None) -> list[tuple[Any, ...]]:
    """Who holds advisory locks in the shops' database, and how."""
    held = (
        "SELECT l.pid, l.mode FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
        "WHERE l.locktype = 'advisory' AND d.datname = current_database()"
    )
    return watch(held, major=major)
