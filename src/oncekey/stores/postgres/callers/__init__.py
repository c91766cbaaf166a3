"""Callers' connections, by kind.

    an asyncpg connection, also one that a pool has lent     here
    a psycopg Connection or AsyncConnection                  psycopg_enlisted.py
    an SQLAlchemy Session or Connection, blocking or not     frameworks.py
    Django's `connection` or `connections[alias]`            frameworks.py

Known by their modules, so that nothing is imported that the caller does not use. Nothing here
begins, commits or rolls back but to our own savepoint. Every decision is in enlisting.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from oncekey.core.errors import ConfigurationError
from oncekey.core.store import AsyncCallerTransaction, CallerTransaction
from oncekey.stores import sqlalchemy_savepoints
from oncekey.stores.postgres.caller_transaction import Action, Standing
from oncekey.stores.postgres.callers.base import Async, savepoint_text
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.program import Program, Statement
from oncekey.stores.postgres.rows import Row
from oncekey.stores.sqlalchemy_savepoints import is_a

_BLOCKING: Final = (
    "a psycopg Connection, an SQLAlchemy Session or Connection, or Django's connection; with "
    "AsyncOnce also those of asyncio"
)
_ASYNC: Final = (
    "an asyncpg connection, a psycopg AsyncConnection, or an SQLAlchemy AsyncSession or "
    "AsyncConnection; with Once also blocking ones"
)


def enlist_blocking(
    connection: Any, options: Options, program: Program, identify: Callable[[], None]
) -> CallerTransaction:
    """The kind of `connection`, made to take part. `identify` makes the program learn anew which
    store it is of."""
    _check_allowed(options)
    if is_a(connection, "psycopg", "Connection"):
        from oncekey.stores.postgres.callers.psycopg import Psycopg

        return Psycopg(connection, program, identify)
    if sqlalchemy_savepoints.is_blocking(connection):
        from oncekey.stores.postgres.callers.sqlalchemy import Alchemy

        return Alchemy(connection, program, identify)
    if is_a(connection, "django", "BaseDatabaseWrapper", "ConnectionProxy"):
        from oncekey.stores.postgres.callers.sqlalchemy import Django

        return Django(connection, program, identify)
    raise _refusal(connection, _BLOCKING)


def enlist_async(
    connection: Any, options: Options, program: Program, identify: Callable[[], Awaitable[None]]
) -> AsyncCallerTransaction:
    """The kind of `connection`, made to take part. `identify` makes the program learn anew which
    store it is of."""
    _check_allowed(options)
    if is_a(connection, "asyncpg", "Connection", "PoolConnectionProxy"):
        return Asyncpg(connection, program, identify)
    if is_a(connection, "psycopg", "AsyncConnection"):
        from oncekey.stores.postgres.callers.psycopg import AsyncPsycopg

        return AsyncPsycopg(connection, program, identify)
    if sqlalchemy_savepoints.is_async(connection):
        from oncekey.stores.postgres.callers.sqlalchemy import AsyncAlchemy

        return AsyncAlchemy(connection, program, identify)
    raise _refusal(connection, _ASYNC)


def _check_allowed(options: Options) -> None:
    if not options.takes_part:
        raise ConfigurationError(
            "in_transaction needs advisory locks: it works neither with claim='portable' nor "
            "with transactional=False"
        )


def _refusal(connection: Any, wanted: str) -> ConfigurationError:
    kind = type(connection)
    return ConfigurationError(
        f"in_transaction cannot use a {kind.__module__}.{kind.__qualname__}; it takes {wanted}"
    )


# --- asyncpg ----------------------------------------------------------------------------------


class Asyncpg(Async):
    """An asyncpg connection, also one that a pool has lent."""

    leaves_savepoints = True

    async def _standing(self) -> Standing:
        connection = self._connection
        is_open = connection.is_closed() or connection.is_in_transaction()
        return Standing.OPEN if is_open else Standing.BARE

    async def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        rows: Sequence[Row] = ()
        for action in actions:
            if isinstance(action, Statement):
                text = self._texts[action.name]
                rows = await self._connection.fetch(text.dollars, *text.written(action.params))
                continue
            is_over = self._connection.is_closed() or not self._connection.is_in_transaction()
            sql = savepoint_text(action, is_over=is_over)
            if sql is not None:
                await self._connection.execute(sql)
        return rows
