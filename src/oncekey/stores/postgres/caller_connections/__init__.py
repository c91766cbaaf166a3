"""Callers' connections to PostgreSQL, by kind.

    an asyncpg connection, also one acquired from a pool     asyncpg.py
    a psycopg Connection or AsyncConnection                  psycopg.py
    an SQLAlchemy Session or Connection, sync or async       sqlalchemy.py
    Django's `connection` or `connections[alias]`            django.py

A connection's kind is recognized by the module of its class, so that no library is imported that
the caller does not use. Nothing here begins or commits a transaction, and a rollback goes back to
our own savepoint at most. Every decision is in caller_transaction.py.
"""

from __future__ import annotations

from typing import Any, Final

from oncekey.core.errors import ConfigurationError
from oncekey.core.store import AsyncCallerTransaction, CallerTransaction
from oncekey.stores import sqlalchemy_savepoints
from oncekey.stores.postgres.caller_connections.base import AsyncStoreCalls, StoreCalls
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.program import Program
from oncekey.stores.sqlalchemy_savepoints import is_a

_SYNC: Final = (
    "a psycopg Connection, an SQLAlchemy Session or Connection, or Django's connection; with "
    "AsyncOnce also those of asyncio"
)
_ASYNC: Final = (
    "an asyncpg connection, a psycopg AsyncConnection, or an SQLAlchemy AsyncSession or "
    "AsyncConnection; with Once also blocking ones"
)


def join_sync(
    connection: Any, options: Options, program: Program, store: StoreCalls
) -> CallerTransaction:
    """The store's records in the transaction of a sync connection."""
    _check_allowed(options)
    if is_a(connection, "psycopg", "Connection"):
        from oncekey.stores.postgres.caller_connections.psycopg import PsycopgTransaction

        return PsycopgTransaction(connection, program, store)
    if sqlalchemy_savepoints.is_sync(connection):
        from oncekey.stores.postgres.caller_connections.sqlalchemy import SQLAlchemyTransaction

        return SQLAlchemyTransaction(connection, program, store)
    if is_a(connection, "django", "BaseDatabaseWrapper", "ConnectionProxy"):
        from oncekey.stores.postgres.caller_connections.django import DjangoTransaction

        return DjangoTransaction(connection, program, store)
    raise _unsupported_connection(connection, _SYNC)


def join_async(
    connection: Any, options: Options, program: Program, store: AsyncStoreCalls
) -> AsyncCallerTransaction:
    """The store's records in the transaction of an async connection."""
    _check_allowed(options)
    if is_a(connection, "asyncpg", "Connection", "PoolConnectionProxy"):
        from oncekey.stores.postgres.caller_connections.asyncpg import AsyncpgTransaction

        return AsyncpgTransaction(connection, program, store)
    if is_a(connection, "psycopg", "AsyncConnection"):
        from oncekey.stores.postgres.caller_connections.psycopg import AsyncPsycopgTransaction

        return AsyncPsycopgTransaction(connection, program, store)
    if sqlalchemy_savepoints.is_async(connection):
        from oncekey.stores.postgres.caller_connections.sqlalchemy import AsyncSQLAlchemyTransaction

        return AsyncSQLAlchemyTransaction(connection, program, store)
    raise _unsupported_connection(connection, _ASYNC)


def _check_allowed(options: Options) -> None:
    if not options.allows_caller_transactions:
        raise ConfigurationError(
            "in_transaction needs advisory locks: it works neither with claim='portable' nor "
            "with transactional=False"
        )


def _unsupported_connection(connection: Any, supported: str) -> ConfigurationError:
    kind = type(connection)
    return ConfigurationError(
        f"in_transaction cannot use a {kind.__module__}.{kind.__qualname__}; it takes {supported}"
    )
