"""Performs actions on a caller's psycopg connection, sync or async.

Statements are joined into one text where possible, which takes one round trip. The caller's row and
cursor factories, adapters and loaders are not used. Every decision is in caller_transaction.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row

from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres.caller_connections.base import (
    AsyncCallerTransactionBase,
    CallerTransactionBase,
    savepoint_sql,
)
from oncekey.stores.postgres.caller_transaction import (
    Action,
    SavepointAction,
    SavepointCommand,
    TransactionState,
)
from oncekey.stores.postgres.program import Program
from oncekey.stores.postgres.queries import QueryText
from oncekey.stores.postgres.rows import Row

_IDLE: Final = psycopg.pq.TransactionStatus.IDLE
_NO_PIPELINE: Final = psycopg.pq.PipelineStatus.OFF
_UNKNOWN: Final = psycopg.pq.TransactionStatus.UNKNOWN  # the connection is broken

# Queries whose parameters hold nothing that a caller chose: the whole text may end up in a server's
# log.
_SENT_AS_TEXT: Final = frozenset(("join", "unlock"))

_ADAPTERS: Final = AdaptersMap(psycopg.adapters)


class _Cursor(psycopg.RawCursor[Any]):
    """A cursor that adapts values as psycopg does by default."""

    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS


class _AsyncCursor(psycopg.AsyncRawCursor[Any]):
    """An async cursor that adapts values as psycopg does by default."""

    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS


class _Script(NamedTuple):
    """Statements to be sent as one text. The rows of the first one are the result."""

    sql: bytes
    returns_rows: bool


class _Query(NamedTuple):
    """A query to be sent with its parameters."""

    sql: bytes
    params: list[Any]


class _Enter(NamedTuple):
    """A `connection.transaction()` block of psycopg to enter."""

    block: Any


class _Leave(NamedTuple):
    """A `connection.transaction()` block to leave, with an error to roll back what it did."""

    block: Any
    error: Exception | None


class _Rollback(Exception):
    """Makes psycopg roll back to a savepoint."""


_Operation = _Script | _Query | _Enter | _Leave


class _Planner:
    """Turns actions into operations on a psycopg connection, sync or async.

    Statements are joined into one text where possible. If the connection began its transaction
    implicitly, the savepoint is a `transaction()` block of psycopg: inside of one, psycopg refuses
    a `commit()` in the body.
    """

    def __init__(self, connection: Any, texts: dict[str, QueryText]) -> None:
        self._connection = connection
        self._texts = texts

    def transaction_state(self) -> TransactionState:
        if self._connection.pgconn.pipeline_status != _NO_PIPELINE:
            raise ConfigurationError(
                "the connection is in pipeline mode, where nobody knows what was done already; run "
                "the operation outside of it. Its body may have a pipeline of its own"
            )
        if self._connection.pgconn.transaction_status != _IDLE:
            return TransactionState.OPEN
        is_autocommit = self._connection.autocommit
        return TransactionState.AUTOCOMMIT if is_autocommit else TransactionState.IMPLICIT

    def operations(self, actions: Sequence[Action]) -> Iterator[_Operation]:
        texts: list[str] = []
        for action in actions:
            if isinstance(action, SavepointCommand):
                yield from self._savepoint(action, texts)
            elif action.name in _SENT_AS_TEXT:
                texts.append(self._texts[action.name].inline(action.params))
            else:
                yield from _joined(texts)
                text = self._texts[action.name]
                yield _Query(text.numbered.encode(), text.encode(action.params))
        yield from _joined(texts)

    def _savepoint(self, command: SavepointCommand, texts: list[str]) -> Iterator[_Operation]:
        action, savepoint = command
        if action is SavepointAction.SET and not self._is_in_block():
            yield from _joined(texts)
            savepoint.handle = self._connection.transaction()
            yield _Enter(savepoint.handle)
        elif savepoint.handle is not None and not isinstance(savepoint.handle, str):
            yield from _joined(texts)
            block, savepoint.handle = savepoint.handle, None
            yield _Leave(block, _Rollback() if action is SavepointAction.ROLLBACK else None)
        else:
            status = self._connection.pgconn.transaction_status
            sql = savepoint_sql(command, has_ended=status in (_IDLE, _UNKNOWN))
            if sql is not None:
                texts.append(sql)

    def _is_in_block(self) -> bool:
        """True if the caller is inside `with connection.transaction():`. If psycopg drops this
        attribute, the result is False, and a block of our own is correct and only slower."""
        return bool(getattr(self._connection, "_num_transactions", 0))


def _joined(texts: list[str]) -> Iterator[_Script]:
    if texts:
        yield _Script("; ".join(texts).encode(), texts[0].startswith("SELECT"))
        texts.clear()


class PsycopgTransaction(CallerTransactionBase):
    """The store's records in the transaction of a psycopg Connection."""

    may_leave_savepoints = True

    def __init__(self, connection: Any, program: Program, identify: Callable[[], None]) -> None:
        super().__init__(connection, program, identify)
        self._planner = _Planner(connection, self._texts)
        self._cursor = _Cursor(connection, row_factory=tuple_row)

    def _transaction_state(self) -> TransactionState:
        return self._planner.transaction_state()

    def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        rows: Sequence[Row] = ()
        cursor = self._cursor
        for operation in self._planner.operations(actions):
            if isinstance(operation, _Query):
                rows = cursor.execute(operation.sql, operation.params).fetchall()
            elif isinstance(operation, _Script):
                cursor.execute(operation.sql, prepare=False)
                rows = cursor.fetchall() if operation.returns_rows else rows
            elif isinstance(operation, _Enter):
                operation.block.__enter__()
            else:
                kind = type(operation.error) if operation.error else None
                operation.block.__exit__(kind, operation.error, None)
        return rows


class AsyncPsycopgTransaction(AsyncCallerTransactionBase):
    """The store's records in the transaction of a psycopg AsyncConnection."""

    may_leave_savepoints = True

    def __init__(
        self, connection: Any, program: Program, identify: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(connection, program, identify)
        self._planner = _Planner(connection, self._texts)
        self._cursor = _AsyncCursor(connection, row_factory=tuple_row)

    async def _transaction_state(self) -> TransactionState:
        return self._planner.transaction_state()

    async def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        rows: Sequence[Row] = ()
        cursor = self._cursor
        for operation in self._planner.operations(actions):
            if isinstance(operation, _Query):
                rows = await (await cursor.execute(operation.sql, operation.params)).fetchall()
            elif isinstance(operation, _Script):
                await cursor.execute(operation.sql, prepare=False)
                rows = await cursor.fetchall() if operation.returns_rows else rows
            elif isinstance(operation, _Enter):
                await operation.block.__aenter__()
            else:
                kind = type(operation.error) if operation.error else None
                await operation.block.__aexit__(kind, operation.error, None)
        return rows
