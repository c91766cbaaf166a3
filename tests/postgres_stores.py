"""PostgreSQL stores for the suites that run on every store: one server, an emptied schema each.

A schema is made once per set of options and emptied before each test: making one anew takes longer
than most tests. The server's files are in memory where the system has a place for that, so that
fsync can stay on, as it must for the guarantee.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from oncekey.stores.postgres import AsyncPostgresStore, PostgresStore
from oncekey.stores.postgres.queries import Layout
from oncekey.testing.servers.fixtures import require
from oncekey.testing.servers.pgbouncer import PgBouncer
from oncekey.testing.servers.postgres import Postgres

MEMORY = Path("/dev/shm")
DATABASE = "postgres"
PLAIN: dict[str, Any] = {}
# It holds the longest keep and audit of the contract's tests, which turn the clock by hours.
RING: dict[str, Any] = {"retention": "ring", "ring_slots": 8, "ring_period": "3h"}


@functools.cache
def server() -> Postgres:
    """The one server of this test run; it ends with it."""
    return require(_start)


def _start() -> Postgres:
    base = MEMORY / f"oncekey-tests-{os.getpid()}" if os.access(MEMORY, os.W_OK) else None
    if base is not None:
        base.mkdir(mode=0o755)
    postgres = Postgres(base, settings={"max_connections": 300})
    postgres.start()
    return postgres


@functools.cache
def pooler() -> PgBouncer:
    """The one pooler of this test run, in transaction mode."""
    return require(_start_pooler)


def _start_pooler() -> PgBouncer:
    bouncer = PgBouncer(server())
    bouncer.start()
    return bouncer


_made: set[str] = set()


def open_blocking(**options: Any) -> PostgresStore:
    """An empty store of these options."""
    return PostgresStore(_address(options), **_emptied(options))


def open_async(**options: Any) -> AsyncPostgresStore:
    return AsyncPostgresStore(_address(options), **_emptied(options))


def _address(options: dict[str, Any]) -> str:
    return pooler().url(DATABASE) if options.get("pooler") else server().url(DATABASE)


def _emptied(options: dict[str, Any]) -> dict[str, Any]:
    parts = ("retention", "ring_slots", "ring_period")
    schema = "-".join(["t", *(str(options[part]) for part in parts if part in options)])
    full = {"schema": schema, **options}
    name = Layout(full["schema"]).quoted
    if full["schema"] not in _made:
        server().execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
        shape = {part: full[part] for part in (*parts, "schema") if part in full}
        made = PostgresStore(server().url(DATABASE), **shape)
        made.prepare()
        made.close()
        _made.add(full["schema"])
    for table in ("records", "history", "meta WHERE name <> 'retention'"):
        server().execute(f"DELETE FROM {name}.{table}")  # noqa: S608 (names of ours)
    return full
