"""Connections of frameworks that keep books of their own: SQLAlchemy and Django.

Their own savepoints are used, so that what they remember goes back together with the rows: objects
of a session that are not flushed yet (see sqlalchemy_savepoints.py), Django's callbacks for the
commit.

Imported only for who has such a connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres.caller_transaction import (
    Action,
    Save,
    Saving,
    Standing,
    no_transaction,
)
from oncekey.stores.postgres.callers.base import Async, Blocking, Text
from oncekey.stores.postgres.program import Program, Statement
from oncekey.stores.postgres.rows import Row
from oncekey.stores.sqlalchemy_savepoints import (
    connection_of,
    inner_of,
    is_session,
    set_savepoint,
    unscoped,
)

_DRIVERS: Final = ("psycopg", "psycopg_async", "asyncpg")


# --- SQLAlchemy -------------------------------------------------------------------------------


class _Books:
    """A Session or Connection of SQLAlchemy's, under a blocking or an async face."""

    def __init__(self, subject: Any, texts: dict[str, Text]) -> None:
        self._subject = subject
        self._texts = texts

    def standing(self) -> Standing:
        return Standing.OPEN if self._subject.in_transaction() else Standing.READY

    def flush(self) -> None:
        if is_session(self._subject):
            self._subject.flush()

    def perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        rows: Sequence[Row] = ()
        if any(isinstance(action, Saving) and action.how is Save.SET for action in actions):
            _check(connection_of(self._subject))
        for action in actions:
            if isinstance(action, Statement):
                rows = self._execute(action)
            elif action.how is Save.SET:
                action.mark.made = set_savepoint(self._subject)
            elif action.mark.made is not None:
                savepoint, action.mark.made = action.mark.made, None
                savepoint.end(keep=action.how is not Save.BACK)
        return rows

    def _execute(self, statement: Statement) -> Sequence[Row]:
        bound = connection_of(self._subject)
        text = self._texts[statement.name]
        sql, params = text.percents, text.positional(statement.params)
        if bound.dialect.driver == "asyncpg":
            sql, params = text.dollars, tuple(text.written(statement.params))
        result = bound.exec_driver_sql(sql, params)
        return result.fetchall() if result.returns_rows else ()


def _check(bound: Any) -> None:
    if bound.dialect.driver not in _DRIVERS:
        raise ConfigurationError(
            f"in_transaction does not know SQLAlchemy's {bound.dialect.name}+{bound.dialect.driver}"
            "; it takes postgresql+psycopg and postgresql+asyncpg"
        )
    if bound.connection.dbapi_connection.autocommit:
        raise no_transaction()


class Alchemy(Blocking):
    """An SQLAlchemy Session, scoped_session or Connection."""

    def __init__(self, connection: Any, program: Program, identify: Callable[[], None]) -> None:
        super().__init__(unscoped(connection), program, identify)
        self._books = _Books(self._connection, self._texts)

    def _standing(self) -> Standing:
        return self._books.standing()

    def _flush(self) -> None:
        self._books.flush()

    def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        return self._books.perform(actions)


class AsyncAlchemy(Async):
    """An SQLAlchemy AsyncSession, async_scoped_session or AsyncConnection."""

    def __init__(
        self, connection: Any, program: Program, identify: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(unscoped(connection), program, identify)
        self._books = _Books(inner_of(self._connection), self._texts)

    async def _standing(self) -> Standing:
        return self._books.standing()

    async def _flush(self) -> None:
        await self._connection.run_sync(lambda _: self._books.flush())

    async def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        rows: Sequence[Row] = await self._connection.run_sync(
            lambda _: self._books.perform(actions)
        )
        return rows


# --- Django -----------------------------------------------------------------------------------


class _Undone(Exception):
    """Makes Django go back to a savepoint."""


class Django(Blocking):
    """Django's `connection` or `connections[alias]`, inside `transaction.atomic()`."""

    def __init__(self, connection: Any, program: Program, identify: Callable[[], None]) -> None:
        from django.db import connections

        # `connection` is one name for a connection of each thread.
        super().__init__(connections[connection.alias], program, identify)
        if connection.vendor != "postgresql":
            raise ConfigurationError(
                f"in_transaction cannot use Django's connection {connection.alias!r}: it leads to "
                f"{connection.vendor}, and the keys are in PostgreSQL"
            )
        from django.db.backends.postgresql.psycopg_any import is_psycopg3

        if not is_psycopg3:
            raise ConfigurationError("in_transaction needs Django on psycopg 3, not on psycopg2")

    def _standing(self) -> Standing:
        connection = self._connection
        if connection.in_atomic_block:
            return Standing.OPEN
        if connection.get_autocommit():
            return Standing.BARE
        is_idle = connection.connection.info.transaction_status == 0
        return Standing.READY if is_idle else Standing.OPEN

    def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        rows: Sequence[Row] = ()
        for action in actions:
            if isinstance(action, Statement):
                text = self._texts[action.name]
                with self._connection.cursor() as cursor:
                    cursor.execute(text.percents, text.positional(action.params))
                    rows = cursor.fetchall() if cursor.description else ()
            elif action.how is Save.SET:
                from django.db import transaction

                block = transaction.atomic(using=self._connection.alias)
                block.__enter__()
                action.mark.made = block
            elif action.mark.made is not None:
                block, action.mark.made = action.mark.made, None
                why = _Undone() if action.how is Save.BACK else None
                block.__exit__(type(why) if why else None, why, None)
        return rows
