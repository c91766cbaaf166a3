"""The SQL of one schema: texts with its name in them, and the types of their parameters.

Owns what is substituted into the files under sql/ (names and numbers of ours, never a caller's
values) and how a parameter's type is read from its cast. Knows no driver and no connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from oncekey.core.record import FOREVER_US
from oncekey.stores.sql_files import Migration, load_migrations, load_queries

_PACKAGE: Final = "oncekey.stores.postgres"
_PARAMETER: Final = re.compile(r"\$(\d+)::(\w+(?:\[\])?)")
_PLACEHOLDER: Final = re.compile(r"\$(\d+)")


class Query(NamedTuple):
    """One statement; `kinds[i]` is the SQL type of its parameter i + 1."""

    sql: str
    kinds: tuple[str, ...]


class Layout(NamedTuple):
    """Where the tables are and what shape they have. One slot is a plain table."""

    schema: str
    slots: int = 1
    period: int = 0

    @property
    def is_ring(self) -> bool:
        return self.slots > 1

    @property
    def sweep_lag(self) -> int:
        """How late garbage may be removed: not before its slot is two behind the present one."""
        return 3 * self.period

    @property
    def terms_max(self) -> int:
        """How long lease, keep and audit may be together: then a slot is free when its turn
        comes again."""
        return (self.slots - 2) * self.period

    @property
    def words(self) -> str:
        """As it is remembered in the database."""
        return f"ring {self.slots} {self.period}" if self.is_ring else "plain"

    @property
    def quoted(self) -> str:
        return '"' + self.schema.replace('"', '""') + '"'

    @property
    def seed(self) -> int:
        """Keeps the advisory locks of two schemas apart."""
        digest = blake2b(self.schema.encode(), digest_size=7).digest()
        return int.from_bytes(digest, "big")


@cache
def make_queries(layout: Layout) -> dict[str, Query]:
    """Every query by name. Read once: every `in_transaction` asks for them."""
    texts = load_queries(_PACKAGE, "sql/queries.sql")
    return {name: make_query(fill(sql, layout)) for name, sql in texts.items()}


def make_query(sql: str) -> Query:
    found = {int(number): kind for number, kind in _PARAMETER.findall(sql)}
    used = {int(number) for number in _PLACEHOLDER.findall(sql)}
    if used != set(range(1, len(found) + 1)):
        raise ValueError(f"parameters {used} of {sql!r} are not 1 to n, each with a cast")
    # Arrays travel as PostgreSQL writes them: for either driver that is quicker than a list.
    sql = _PARAMETER.sub(lambda m: f"${m[1]}::text::{m[2]}" if m[2].endswith("]") else m[0], sql)
    return Query(sql, tuple(found[i + 1] for i in range(len(found))))


def make_migrations(layout: Layout) -> tuple[Migration, ...]:
    """The schema's steps for this layout."""
    shape = "ring" if layout.is_ring else "plain"
    steps = load_migrations(_PACKAGE, f"sql/{shape}", "sql/shared")
    return tuple(step._replace(sql=fill(step.sql, layout)) for step in steps)


@cache
def positional(query: Query) -> tuple[str, tuple[int, ...]]:
    """The query with %s for its parameters, and which parameter each of them is."""
    order = tuple(int(number) - 1 for number in _PLACEHOLDER.findall(query.sql))
    return _PLACEHOLDER.sub("%s", query.sql.replace("%", "%%")), order


def literal(kind: str, value: Any) -> Any:
    """A value as every driver takes it: arrays and UUIDs as PostgreSQL writes them."""
    if value is None or not kind.endswith("[]"):
        return value.hex() if kind == "uuid" else value
    return "{" + ",".join(map(_ELEMENTS[kind], value)) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_ELEMENTS: Final[Mapping[str, Any]] = {
    "uuid[]": bytes.hex,
    "bytea[]": lambda value: f'"\\\\x{value.hex()}"',
    "boolean[]": lambda value: "t" if value else "f",
    "text[]": _quoted,
    "bigint[]": int.__repr__,
    "integer[]": int.__repr__,
    "smallint[]": int.__repr__,
}


def fill(sql: str, layout: Layout) -> str:
    """The text with this layout's names and numbers in it."""
    values = {
        "schema": layout.quoted,
        "schema_text": layout.quoted.replace("'", "''"),
        "seed": str(layout.seed),
        "slots": str(layout.slots),
        "period": str(layout.period),
        "forever": str(FOREVER_US),
    }
    for name, value in values.items():
        sql = sql.replace("{" + name + "}", value)
    return sql
