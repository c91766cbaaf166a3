"""The SQLite schema: brought up to date at start-up, and checked.

`prepare` is a program like the others. It reads first and takes the lock only if a migration is
missing; it plans again under the lock, so two processes may start at once. The version is kept in a
table of ours and not in PRAGMA user_version, because the file may be the user's own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from oncekey.core.errors import ConfigurationError
from oncekey.core.record import Record
from oncekey.stores.sql_files import Migration, load_migrations, plan
from oncekey.stores.sqlite.program import BEGIN, COMMIT, QUERIES, Statement, Statements
from oncekey.stores.store_rules import StoreClock

MIGRATIONS: Final = load_migrations("oncekey.stores.sqlite", "sql/migrations")

_MIGRATIONS_TABLE: Final = "oncekey_migrations"
# A record's label is in the column `operation`.
_RECORD_COLUMNS: Final = frozenset(Record._fields) - {"label"} | {"operation"}
COLUMNS: Final = {
    _MIGRATIONS_TABLE: frozenset(("version", "name", "applied_at")),
    "oncekey_records": _RECORD_COLUMNS | {"sweep_at"},
    "oncekey_history": _RECORD_COLUMNS | {"audit_until"},
    "oncekey_meta": frozenset(("name", "value")),
}


def prepare(clock: StoreClock, known: Sequence[Migration] = MIGRATIONS) -> Statements[None]:
    """Bring the schema up to `known`. ConfigurationError if the tables are not oncekey's."""
    rows = yield Statement(QUERIES["encoding"])
    if rows[0][0] != "UTF-8":
        # Text is read as bytes in the database's encoding.
        raise ConfigurationError(
            f"the database is encoded in {rows[0][0]}, oncekey needs UTF-8; give oncekey "
            "a file of its own"
        )
    if plan((yield from _applied()), known):
        yield BEGIN
        missing = plan((yield from _applied()), known)
        yield Statement(QUERIES["create_migrations"])
        for migration in missing:
            for sql in statements(migration.sql):
                yield Statement(sql)
            done = (migration.version, migration.name, clock())
            yield Statement(QUERIES["insert_migration"], done)
        yield COMMIT
    _check((yield from _tables()), COLUMNS)


def statements(script: str) -> list[str]:
    """A script split into statements: sqlite3's executescript would commit our transaction."""
    found: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending.strip())
            pending = ""
    if any(line.strip() and not line.startswith("--") for line in pending.splitlines()):
        raise ValueError(f"the script ends inside a statement: {pending!r}")
    return found


def _applied() -> Statements[list[int]]:
    tables = yield from _tables()
    if _MIGRATIONS_TABLE not in tables:
        if tables:
            raise ConfigurationError(
                f"the database has tables named {', '.join(sorted(tables))} that oncekey did not "
                "make; rename them, or give oncekey a file of its own"
            )
        return []
    _check(tables, {_MIGRATIONS_TABLE: COLUMNS[_MIGRATIONS_TABLE]})
    rows = yield Statement(QUERIES["select_migrations"])
    return [row[0] for row in rows]


def _tables() -> Statements[dict[str, set[str]]]:
    """The tables that have oncekey's names, with their columns."""
    tables: dict[str, set[str]] = {}
    rows = yield Statement(QUERIES["columns"])
    for table, column in rows:
        tables.setdefault(table.decode(), set()).add(column.decode())
    return tables


def _check(tables: dict[str, set[str]], expected: dict[str, frozenset[str]]) -> None:
    for table, columns in expected.items():
        missing = columns - tables.get(table, set())
        if missing:
            raise ConfigurationError(
                f"the table {table} lacks {', '.join(sorted(missing))}: oncekey did not make it, "
                "or it was changed. Restore it from a backup, or give oncekey a file of its own"
            )
