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

from oncekey.core.record import FOREVER_US, NOTE_KEPT_CHARS
from oncekey.stores.sql_files import Migration, load_migrations, load_queries

_PACKAGE: Final = "oncekey.stores.postgres"
_PARAMETER: Final = re.compile(r"\$(\d+)::(\w+(?:\[\])?)")
_PLACEHOLDER: Final = re.compile(r"\$(\d+)")
# The longest bytes that are sent as text without the driver's help.
TEXT_MAX_BYTES: Final = 8_192


class Query(NamedTuple):
    """One statement.

    sql          its text, with $1, $2 ...
    raw          the same as bytes
    types        types[i] is the SQL type of parameter i + 1
    converters   of those parameters that drivers do not take as they are, by position
    """

    sql: str
    raw: bytes
    types: tuple[str, ...]
    converters: tuple[tuple[int, Callable[[Any], str]], ...]

    def encode(self, params: Sequence[Any]) -> list[Any]:
        """The parameters as every driver takes them."""
        values = list(params)
        if len(values) != len(self.types):
            raise ValueError(f"{len(values)} parameters for {self.sql!r}")
        for i, convert in self.converters:
            if values[i] is not None:
                values[i] = convert(values[i])
        return values


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
    files = ("sql/queries.sql", "sql/outbox_queries.sql")
    texts = {name: sql for file in files for name, sql in load_queries(_PACKAGE, file).items()}
    return {name: make_query(substitute(sql, layout)) for name, sql in texts.items()}


def make_query(sql: str) -> Query:
    found = {int(number): type_ for number, type_ in _PARAMETER.findall(sql)}
    used = {int(number) for number in _PLACEHOLDER.findall(sql)}
    if used != set(range(1, len(found) + 1)):
        raise ValueError(f"parameters {used} of {sql!r} are not 1 to n, each with a cast")
    # Arrays are sent as PostgreSQL's text: with both drivers that is faster than a list.
    sql = _PARAMETER.sub(lambda m: f"${m[1]}::text::{m[2]}" if m[2].endswith("]") else m[0], sql)
    types = tuple(found[i + 1] for i in range(len(found)))
    converters = [(i, _CONVERTERS[type_]) for i, type_ in enumerate(types) if type_ in _CONVERTERS]
    return Query(sql, sql.encode(), types, tuple(converters))


def make_migrations(layout: Layout) -> tuple[Migration, ...]:
    """The migrations for this layout."""
    shape = "ring" if layout.is_ring else "plain"
    found = load_migrations(_PACKAGE, f"sql/{shape}", "sql/shared")
    return tuple(one._replace(sql=substitute(one.sql, layout)) for one in found)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _array(element: Callable[[Any], str]) -> Callable[[Sequence[Any]], str]:
    """Makes an array of a sequence, in PostgreSQL's notation."""
    return lambda values: "{" + ",".join(map(element, values)) + "}"


# How values become text, by SQL type. Drivers take values of the other types as they are.
_CONVERTERS: Final[Mapping[str, Callable[[Any], str]]] = {
    "uuid": bytes.hex,
    "uuid[]": _array(bytes.hex),
    "bytea[]": _array(lambda value: f'"\\\\x{value.hex()}"'),
    "boolean[]": _array(lambda value: "t" if value else "f"),
    "text[]": _array(_quoted),
    "bigint[]": _array(int.__repr__),
    "integer[]": _array(int.__repr__),
    "smallint[]": _array(int.__repr__),
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
        "note_kept": str(NOTE_KEPT_CHARS),
    }
    for name, value in values.items():
        sql = sql.replace("{" + name + "}", value)
    return sql


class QueryText(NamedTuple):
    """One query in the placeholder styles of the drivers of callers' connections.

    query      with $1, $2 ...
    percent    with %s; `order` says which parameter each of them is
    literals   how each parameter is written into the text; None if one of them must not be
    joined     a format that writes all parameters as text, with null characters between them
    hexes      the positions of the parameters that it takes as hexadecimal digits
    """

    query: Query
    percent: str
    order: tuple[int, ...]
    literals: tuple[Callable[[Any], str], ...] | None
    joined: str
    hexes: tuple[int, ...]

    def positional(self, params: Sequence[Any]) -> tuple[Any, ...]:
        """The encoded parameters, one for each %s."""
        encoded = self.query.encode(params)
        return tuple([encoded[number] for number in self.order])

    def inline(self, params: Sequence[Any]) -> str:
        """The query with its parameters as literals. Only for numbers and digests and nothing that
        a caller chose, because the whole text may end up in a server's log."""
        assert self.literals is not None
        values = [
            "NULL" if value is None else literal(value)
            for literal, value in zip(self.literals, params, strict=True)
        ]
        return self.percent % tuple([values[number] for number in self.order])

    def as_text(self, params: Sequence[Any]) -> list[bytes | None] | None:
        """The parameters as PostgreSQL's text. None if the driver should encode them: if a text
        depends on the connection's encoding or has a null character, which the server would not
        take, and if bytes are so long that twice as many digits would cost more than the driver."""
        values = list(params)
        for number in self.hexes:
            if len(values[number]) > TEXT_MAX_BYTES:
                return None
            values[number] = values[number].hex()
        joined = self.joined % tuple(values)
        texts: list[bytes | None] = [*joined.encode().split(b"\0")]
        if len(texts) != len(values) or not joined.isascii():
            return None
        if None in values:
            texts = [
                None if value is None else text for value, text in zip(values, texts, strict=True)
            ]
        return texts


@cache
def query_texts(layout: Layout) -> dict[str, QueryText]:
    """Every query by name. Cached, because there are many transactions."""
    texts = {}
    for name, query in make_queries(layout).items():
        order = tuple(int(number) - 1 for number in _PLACEHOLDER.findall(query.sql))
        percent = _PLACEHOLDER.sub("%s", query.sql.replace("%", "%%"))
        can_inline = all(type_ in _LITERALS for type_ in query.types)
        literals = tuple(_LITERALS[type_] for type_ in query.types) if can_inline else None
        joined = "\0".join("\\x%s" if type_ == "bytea" else "%s" for type_ in query.types)
        hexes = tuple(i for i, type_ in enumerate(query.types) if type_ in ("bytea", "uuid"))
        texts[name] = QueryText(query, percent, order, literals, joined, hexes)
    return texts


_LITERALS: Final[Mapping[str, Callable[[Any], str]]] = {
    "bigint": int.__repr__,
    "integer": int.__repr__,
    "boolean": lambda value: "true" if value else "false",
    "uuid": lambda value: f"'{value.hex()}'",
    # Of texts only hexadecimal digits, which nobody chose.
    "text": lambda value: f"'{bytes.fromhex(value).hex()}'",
    # No backslash, because its meaning depends on the session's settings.
    "bytea": lambda value: f"decode('{value.hex()}', 'hex')",
}
