"""Inspects a PostgreSQL database for the command line, in one read-only transaction.

This module answers what commands ask about a database before it is opened as a store (see
oncekey.stores.inspection). It hides the driver's message about a URL that cannot be parsed, because
that message quotes the password.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from oncekey.core.errors import ConfigurationError
from oncekey.stores.inspection import Inspection
from oncekey.stores.postgres import durability, errors
from oncekey.stores.postgres.options import Options, split_url
from oncekey.stores.postgres.queries import (
    Layout,
    Query,
    make_migrations,
    make_queries,
    make_query,
    substitute,
)
from oncekey.stores.postgres.rows import Row
from oncekey.stores.postgres.schema import upgrade_script
from oncekey.stores.postgres.statements import Statement
from oncekey.stores.sql_files import plan

if TYPE_CHECKING:
    import psycopg

NEEDS: Final = "the command line needs psycopg: pip install 'oncekey[postgres]'"

_ANY: Final = (
    "SELECT EXISTS (SELECT FROM {schema}.records) OR EXISTS (SELECT FROM {schema}.history)"
)
_ABSENCE: Final = "no tables of oncekey there; `oncekey migrate` makes them"
_NOT_AN_OPTION: Final = re.compile(r'invalid URI query parameter: ("\w+")')


def inspect(url: str) -> Inspection:
    """What is in the database. StoreUnavailable if it cannot be reached, ConfigurationError if a
    newer release made the tables or if the URL cannot be parsed."""
    address, options = read_url(url)
    with _connected(address, options) as connection:
        info = connection.info
        name = f"{info.dbname} at {info.host}:{info.port}, schema {options.schema}"
        statements = _inspect(name, options)
        queries = make_queries(options.layout)
        queries["any"] = make_query(substitute(_ANY, options.layout))
        try:
            statement = next(statements)
            while True:
                statement = statements.send(_rows(connection, queries, statement))
        except StopIteration as stop:
            result: Inspection = stop.value
            return result


def migration_script(url: str) -> str:
    """A script of all migrations of this release, each skipped if it was applied before. Needs no
    connection."""
    address, options = read_url(url)
    parse_address(address)
    return upgrade_script(options.layout, make_migrations(options.layout))


def read_url(url: str) -> tuple[str, Options]:
    """The driver's address and our options."""
    try:
        return split_url(url)
    except ValueError:  # its text quotes the URL
        raise _invalid_url() from None


def _inspect(name: str, options: Options) -> Generator[Statement, Sequence[Row], Inspection]:
    server = durability.parse_server((yield Statement("server"))[0])
    applied, compatible = yield from _applied(options.layout)
    try:
        missing = plan(list(applied), make_migrations(options.layout), compatible)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from None
    if not missing:
        server = durability.parse_settings((yield Statement("settings"))[0][0], server.version)
    has_records = False
    if applied:
        has_records = (yield Statement("any"))[0][0]
    return Inspection(
        name=name,
        exists=bool(applied),
        absence="" if applied else _ABSENCE,
        has_records=has_records,
        applied=applied,
        missing=[migration.name for migration in missing],
        guarantee=durability.guarantee(server, options.synchronous_commit, options.failover),
    )


def _applied(
    layout: Layout,
) -> Generator[Statement, Sequence[Row], tuple[dict[int, str], int]]:
    """The applied migrations, and the older schema that the last one is compatible with."""
    names = (f"{layout.quoted}.migrations", layout.quoted)
    has_table = (yield Statement("has_migrations", names))[0][0]
    if not has_table:
        return {}, 0
    rows = yield Statement("migrations")
    return {row[0]: row[1] for row in rows}, rows[-1][2] if rows else 0


@contextmanager
def _connected(address: str, options: Options) -> Iterator[psycopg.Connection[Any]]:
    """A connection in a read-only transaction. The driver's errors are translated."""
    parsed = parse_address(address)
    import psycopg

    seconds = -(-options.us("pool_timeout") // 1_000_000)
    timeout = parsed.get("connect_timeout", max(2, seconds))
    try:
        with psycopg.connect(
            address, prepare_threshold=None, connect_timeout=timeout
        ) as connection:
            connection.read_only = True
            for name in ("statement_timeout", "lock_timeout"):
                connection.execute(
                    f"SET LOCAL {name} = '{options.session_settings[name]}'".encode()
                )
            yield connection
    except psycopg.Error as error:
        raise errors.translate_connect_error(error) from error


def parse_address(address: str) -> dict[str, Any]:
    """The address as the driver parses it, so that a misspelt option of ours is found here."""
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise ConfigurationError(NEEDS) from error
    try:
        return conninfo_to_dict(address)
    except ProgrammingError as error:
        raise _invalid_url(str(error)) from None


def _rows(
    connection: psycopg.Connection[Any], queries: dict[str, Query], statement: Statement
) -> Sequence[Row]:
    import psycopg
    from psycopg.rows import tuple_row

    query = queries[statement.name]
    cursor: psycopg.RawCursor[Any] = psycopg.RawCursor(connection, row_factory=tuple_row)
    return cursor.execute(
        query.sql.encode(), query.encode(statement.params), binary=True
    ).fetchall()


def _invalid_url(driver_message: str = "") -> ConfigurationError:
    unknown = _NOT_AN_OPTION.search(driver_message)
    if unknown is not None:
        return ConfigurationError(
            f"neither oncekey nor the driver has the option {unknown[1]} that the URL gives"
        )
    return ConfigurationError(
        "the driver cannot read this URL; percent-encode every special character in its user, "
        "password, host and options"
    )
