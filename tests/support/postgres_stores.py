"""PostgreSQL stores for the suites that run on every store: one server, and empty schemas on it.

A schema is created once per set of options and emptied before each test, because creating one takes
longer than most tests. The server's files are in memory where the system allows it, so that fsync
can stay on, which the guarantee needs. Stores that stay open are in reused_stores.py.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import psycopg
from tests.support.servers import processes
from tests.support.servers.installations import pick_postgres
from tests.support.servers.pgbouncer import PgBouncer
from tests.support.servers.postgres import Postgres
from tests.support.servers.requirements import require

from oncekey.stores.postgres import AsyncPostgresStore, PostgresStore
from oncekey.stores.postgres.queries import Layout

DATABASE = "postgres"
PLAIN: dict[str, Any] = {}
# It has room for the longest keep and audit of the contract, which moves the clock by hours.
RING: dict[str, Any] = {"retention": "ring", "ring_slots": 8, "ring_period": "3h"}

# These rows describe the store and stay when a schema is emptied.
KEPT_META = ("retention", "identity", "place")
_SHAPE = ("retention", "ring_slots", "ring_period")


def server(major: int | None = None) -> Postgres:
    """The shared server of this test run, by major version; it stops when the run ends."""
    return require(lambda: _started(major))


@functools.cache
def _started(major: int | None) -> Postgres:
    installation = pick_postgres(major)
    postgres = Postgres(
        processes.memory_scratch(), installation=installation, settings={"max_connections": 300}
    )
    postgres.start()
    return postgres


@functools.cache
def pooler() -> PgBouncer:
    """The shared pooler of this test run, in transaction mode."""
    return require(_start_pooler)


def _start_pooler() -> PgBouncer:
    bouncer = PgBouncer(server())
    bouncer.start()
    return bouncer


def open_blocking(**options: Any) -> PostgresStore:
    """An empty store with these options."""
    return PostgresStore(address(options), **emptied(options))


def open_async(**options: Any) -> AsyncPostgresStore:
    """Return an empty async store with these options."""
    return AsyncPostgresStore(address(options), **emptied(options))


def address(options: dict[str, Any], major: int | None = None) -> str:
    return pooler().url(DATABASE) if options.get("pooler") else server(major).url(DATABASE)


_made: set[tuple[int | None, str]] = set()


def emptied(options: dict[str, Any], major: int | None = None) -> dict[str, Any]:
    """The options with a schema that exists and is empty."""
    schema = "-".join(["t", *(str(options[part]) for part in _SHAPE if part in options)])
    full = {"schema": schema, **options}
    name = Layout(full["schema"]).quoted
    connection = _cleaner(major, os.getpid())
    if (major, full["schema"]) not in _made:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())
        shape = {part: full[part] for part in (*_SHAPE, "schema") if part in full}
        made = PostgresStore(server(major).url(DATABASE), **shape)
        made.prepare()
        made.close()
        _made.add((major, full["schema"]))
    tables = ("records", "history", f"meta WHERE name NOT IN {KEPT_META}")
    emptied = "; ".join(f"DELETE FROM {name}.{table}" for table in tables)  # noqa: S608
    connection.execute(emptied.encode())
    return full


@functools.cache
def _cleaner(major: int | None, process: int) -> psycopg.Connection[Any]:
    """The connection that empties schemas; a forked process gets its own."""
    connection = psycopg.connect(server(major).url(DATABASE), autocommit=True)
    processes.at_exit(connection.close)
    return connection
