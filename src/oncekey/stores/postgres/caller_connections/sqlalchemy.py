"""Performs actions on a caller's SQLAlchemy session or connection.

SQLAlchemy's own savepoints are used, so that a rollback also restores the session's objects (see
oncekey/stores/sqlalchemy_savepoints.py). This module is imported only if the caller uses
SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres.caller_connections.base import (
    AsyncCallerTransactionBase,
    AsyncStoreCalls,
    CallerTransactionBase,
    StoreCalls,
)
from oncekey.stores.postgres.caller_transaction import (
    Action,
    SavepointAction,
    SavepointCommand,
    TransactionState,
    no_transaction,
)
from oncekey.stores.postgres.program import Program
from oncekey.stores.postgres.queries import QueryText
from oncekey.stores.postgres.rows import Row
from oncekey.stores.postgres.statements import Statement
from oncekey.stores.sqlalchemy_savepoints import (
    connection_of,
    is_session,
    set_savepoint,
    sync_part_of,
    unscoped,
)

_DRIVERS: Final = ("psycopg", "psycopg_async", "asyncpg")


class _SyncSession:
    """A sync Session or Connection: the caller's own, or the sync part of an async one."""

    def __init__(self, subject: Any, texts: dict[str, QueryText]) -> None:
        self._subject = subject
        self._texts = texts

    def transaction_state(self) -> TransactionState:
        is_open = self._subject.in_transaction()
        return TransactionState.OPEN if is_open else TransactionState.IMPLICIT

    def flush(self) -> None:
        if is_session(self._subject):
            self._subject.flush()

    def perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        rows: Sequence[Row] = ()
        if any(_sets_savepoint(action) for action in actions):
            _check(connection_of(self._subject))
        for action in actions:
            if isinstance(action, Statement):
                rows = self._execute(action)
            elif action.action is SavepointAction.SET:
                action.savepoint.handle = set_savepoint(self._subject)
            elif action.savepoint.handle is not None:
                savepoint, action.savepoint.handle = action.savepoint.handle, None
                savepoint.end(keep=action.action is not SavepointAction.ROLLBACK)
        return rows

    def _execute(self, statement: Statement) -> Sequence[Row]:
        bound = connection_of(self._subject)
        text = self._texts[statement.name]
        sql, params = text.percent, text.positional(statement.params)
        if bound.dialect.driver == "asyncpg":
            sql, params = text.query.sql, tuple(text.query.encode(statement.params))
        result = bound.exec_driver_sql(sql, params)
        return result.fetchall() if result.returns_rows else ()


def _sets_savepoint(action: Action) -> bool:
    return isinstance(action, SavepointCommand) and action.action is SavepointAction.SET


def _check(bound: Any) -> None:
    if bound.dialect.driver not in _DRIVERS:
        raise ConfigurationError(
            f"in_transaction does not know SQLAlchemy's {bound.dialect.name}+{bound.dialect.driver}"
            "; it takes postgresql+psycopg and postgresql+asyncpg"
        )
    if bound.connection.dbapi_connection.autocommit:
        raise no_transaction()


class SQLAlchemyTransaction(CallerTransactionBase):
    """The store's records in the transaction of a Session, scoped_session or Connection."""

    def __init__(self, connection: Any, program: Program, store: StoreCalls) -> None:
        super().__init__(unscoped(connection), program, store)
        self._session = _SyncSession(self._connection, self._texts)

    def _transaction_state(self) -> TransactionState:
        return self._session.transaction_state()

    def _flush(self) -> None:
        self._session.flush()

    def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        return self._session.perform(actions)


class AsyncSQLAlchemyTransaction(AsyncCallerTransactionBase):
    """The store's records in the transaction of an AsyncSession, async_scoped_session or
    AsyncConnection."""

    def __init__(self, connection: Any, program: Program, store: AsyncStoreCalls) -> None:
        super().__init__(unscoped(connection), program, store)
        self._session = _SyncSession(sync_part_of(self._connection), self._texts)

    async def _transaction_state(self) -> TransactionState:
        return self._session.transaction_state()

    async def _flush(self) -> None:
        await self._connection.run_sync(lambda _: self._session.flush())

    async def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        rows: Sequence[Row] = await self._connection.run_sync(
            lambda _: self._session.perform(actions)
        )
        return rows
