"""What the tables, functions and indexes of this release look like, read from its own migrations.

So a migration that is added tomorrow is expected at once. Only the statements that our migrations
use are understood; a test compares the result with a schema that was just made. This module knows
no connection.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, NamedTuple

from oncekey.stores.postgres.queries import Layout, make_migrations

_TABLE: Final = re.compile(r"CREATE TABLE SCHEMA\.(\w+) \((.*?)^\)", re.DOTALL | re.MULTILINE)
_COLUMN: Final = re.compile(r"^ {4}([a-z]\w*) +[a-z]", re.MULTILINE)
_LIKE: Final = re.compile(r"LIKE SCHEMA\.(\w+)")
_ADDED: Final = re.compile(
    r"ALTER TABLE SCHEMA\.(\w+)\s+ADD COLUMN (?:IF NOT EXISTS )?(\w+)", re.IGNORECASE
)
_FUNCTION: Final = re.compile(
    r"CREATE (?:OR REPLACE )?FUNCTION SCHEMA\.(\w+)\s*\(.*?AS \$(\w*)\$(.*?)\$\2\$", re.DOTALL
)
_DROPPED_FUNCTION: Final = re.compile(r"^DROP FUNCTION (?:IF EXISTS )?SCHEMA\.(\w+)", re.MULTILINE)
_INDEX: Final = re.compile(
    r"^CREATE (?:UNIQUE )?INDEX (?:IF NOT EXISTS )?(\w+) ON SCHEMA\.", re.MULTILINE
)
_DROPPED_INDEX: Final = re.compile(r"^DROP INDEX (?:IF EXISTS )?SCHEMA\.(\w+)", re.MULTILINE)
_FILLFACTOR: Final = re.compile(r"fillfactor = (\d+)")


class ExpectedSchema(NamedTuple):
    """Columns by table, bodies by function, names of indexes (with those of primary keys), and the
    fillfactor of the records."""

    columns: dict[str, frozenset[str]]
    functions: dict[str, str]
    indexes: frozenset[str]
    unique: frozenset[str]
    fillfactor: int


@cache
def expected_schema(layout: Layout) -> ExpectedSchema:
    columns: dict[str, set[str]] = {"migrations": {"version", "name", "compatible", "applied_at"}}
    functions: dict[str, str] = {}
    indexes: set[str] = set()
    texts = [migration.sql for migration in make_migrations(layout)]
    for text in texts:
        # The schema's name can hold anything, and bodies of functions contain it.
        plain = text.replace(f"{layout.quoted}.", "SCHEMA.")
        for table, body in _TABLE.findall(plain):
            columns[table] = set(_COLUMN.findall(body))
            for other in _LIKE.findall(body):
                columns[table] |= columns[other]
        for table, column in _ADDED.findall(plain):
            columns[table].add(column)
        for name in _DROPPED_FUNCTION.findall(plain):
            functions.pop(name, None)
        for name, _, body in _FUNCTION.findall(plain):
            functions[name] = body.replace("SCHEMA.", f"{layout.quoted}.")
        indexes -= set(_DROPPED_INDEX.findall(plain))
        indexes |= set(_INDEX.findall(plain))
    unique = frozenset(f"{table}_pkey" for table in columns)
    fillfactor = _FILLFACTOR.search("\n".join(texts))
    return ExpectedSchema(
        columns={table: frozenset(names) for table, names in columns.items()},
        functions=functions,
        indexes=frozenset(indexes) | unique,
        unique=unique,
        fillfactor=int(fillfactor[1]) if fillfactor else 100,
    )
