"""The SQL of one schema: its texts, the types of their parameters, and how drivers take them.

This module owns what is substituted into the files under sql/ (our own names and numbers, never a
caller's values), how a parameter's type is read from its cast, and how values are encoded. It knows
no connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from oncekey.core.record import FOREVER_US
from oncekey.stores.migrations import Migration, load_migrations
from oncekey.stores.sql_files import load_queries

_PACKAGE: Final = "oncekey.stores.postgres"
_PARAMETER: Final = re.compile(r"\$(\d+)::(\w+(?:\[\])?)")
_PLACEHOLDER: Final = re.compile(r"\$(\d+)")


class Query(NamedTuple):
    """One statement; `types[i]` is the SQL type of its parameter i + 1."""

    sql: str
    types: tuple[str, ...]

    def encode(self, params: Sequence[Any]) -> list[Any]:
        """The parameters as every driver takes them."""
        return [encode_value(type_, v) for type_, v in zip(self.types, params, strict=True)]


class Layout(NamedTuple):
    """The schema of the tables and their shape. A layout with one slot is a plain table."""

    schema: str
    slots: int = 1
    period: int = 0

    @property
    def is_ring(self) -> bool:
        return self.slots > 1

    @property
    def sweep_lag(self) -> int:
        """How late garbage may be removed: its slot must be two behind the current one."""
        return 3 * self.period

    @property
    def terms_max(self) -> int:
        """How long lease, keep and audit may be together, so that a slot is free when it is to be
        filled again."""
        return (self.slots - 2) * self.period

    @property
    def description(self) -> str:
        """The layout as the database remembers it."""
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
    """Every query by name. Cached, because every `in_transaction` needs them."""
    texts = load_queries(_PACKAGE, "sql/queries.sql")
    return {name: make_query(substitute(sql, layout)) for name, sql in texts.items()}


def make_query(sql: str) -> Query:
    found = {int(number): type_ for number, type_ in _PARAMETER.findall(sql)}
    used = {int(number) for number in _PLACEHOLDER.findall(sql)}
    if used != set(range(1, len(found) + 1)):
        raise ValueError(f"parameters {used} of {sql!r} are not 1 to n, each with a cast")
    # Arrays are sent as PostgreSQL's text: with both drivers that is faster than a list.
    sql = _PARAMETER.sub(lambda m: f"${m[1]}::text::{m[2]}" if m[2].endswith("]") else m[0], sql)
    return Query(sql, tuple(found[i + 1] for i in range(len(found))))


def make_migrations(layout: Layout) -> tuple[Migration, ...]:
    """The migrations for this layout."""
    shape = "ring" if layout.is_ring else "plain"
    found = load_migrations(_PACKAGE, f"sql/{shape}", "sql/shared")
    return tuple(one._replace(sql=substitute(one.sql, layout)) for one in found)


def encode_value(type_: str, value: Any) -> Any:
    """A value as every driver takes it: arrays and UUIDs as PostgreSQL's text."""
    if value is None or not type_.endswith("[]"):
        return value.hex() if type_ == "uuid" else value
    return "{" + ",".join(map(_ELEMENTS[type_], value)) + "}"


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


def substitute(sql: str, layout: Layout) -> str:
    """The text with this layout's names and numbers substituted."""
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


class QueryText(NamedTuple):
    """One query in the placeholder styles of the drivers.

    numbered    with $1, $2 ...
    percent     with %s; `order` says which parameter each of them is
    fragments   the text between the parameters
    """

    numbered: str
    types: tuple[str, ...]
    percent: str
    order: tuple[int, ...]
    fragments: tuple[str, ...]

    def encode(self, params: Sequence[Any]) -> list[Any]:
        """The parameters as drivers take them."""
        return [encode_value(type_, v) for type_, v in zip(self.types, params, strict=True)]

    def positional(self, params: Sequence[Any]) -> tuple[Any, ...]:
        """The encoded parameters, one for each %s."""
        encoded = self.encode(params)
        return tuple(encoded[number] for number in self.order)

    def inline(self, params: Sequence[Any]) -> str:
        """The query with its parameters as literals. Only for numbers and digests and nothing that
        a caller chose, because the whole text may end up in a server's log."""
        values = [_LITERALS[type_](v) for type_, v in zip(self.types, params, strict=True)]
        parts = [self.fragments[0]]
        for number, piece in zip(self.order, self.fragments[1:], strict=True):
            parts += (values[number], piece)
        return "".join(parts)


@cache
def query_texts(layout: Layout) -> dict[str, QueryText]:
    """Every query by name. Cached, because there are many transactions."""
    texts = {}
    for name, query in make_queries(layout).items():
        order = tuple(int(number) - 1 for number in _PLACEHOLDER.findall(query.sql))
        percent = _PLACEHOLDER.sub("%s", query.sql.replace("%", "%%"))
        fragments = tuple(_PLACEHOLDER.split(query.sql)[::2])
        texts[name] = QueryText(query.sql, query.types, percent, order, fragments)
    return texts


def _literal(quote: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "NULL" if value is None else quote(value)


_LITERALS: Final[dict[str, Callable[[Any], str]]] = {
    "bigint": _literal(int.__repr__),
    "integer": _literal(int.__repr__),
    "boolean": _literal(lambda value: "true" if value else "false"),
    "uuid": _literal(lambda value: f"'{value.hex()}'"),
    # No backslash, because its meaning depends on the session's settings.
    "bytea": _literal(lambda value: f"decode('{value.hex()}', 'hex')"),
}
