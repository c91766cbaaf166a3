"""Performs actions on a caller's psycopg connection, sync or async.

Statements are joined into one text where possible, which takes one round trip. The caller's row and
cursor factories, adapters and loaders are not used. Every decision is in caller_transaction.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

import psycopg
from psycopg import generators
from psycopg.adapt import AdaptersMap
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
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
from oncekey.stores.postgres.queries import Layout, QueryText, query_texts
from oncekey.stores.postgres.rows import Row
from oncekey.stores.postgres.statements import Statement

_IDLE: Final = TransactionStatus.IDLE
_IN_TRANSACTION: Final = TransactionStatus.INTRANS
_UNKNOWN: Final = TransactionStatus.UNKNOWN  # the connection is broken
_NO_PIPELINE: Final = PipelineStatus.OFF
_FATAL_ERROR: Final = ExecStatus.FATAL_ERROR
_OPEN: Final = TransactionState.OPEN  # an enum's member costs as much to look up as a call

# Queries whose parameters hold nothing that a caller chose: the whole text may end up in a server's
# log.
_SENT_AS_TEXT: Final = frozenset(("join", "join_and_settings", "unlock"))
# Queries that every run sends. They are prepared when they are first used, unless the caller's
# connection prepares nothing (prepare_threshold=None); psycopg prepares the other queries later.
_PREPARED_AT_ONCE: Final = frozenset(("insert_record",))

_CAST: Final = re.compile(r"::\w+(?=[,)])")  # of an argument; a schema may be named like one

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


class _Exchange(NamedTuple):
    """A message to be sent as it is, in a transaction that is open: `send` is called with `args`.
    The rows of its first statement are the result, with their first column as text."""

    send: Callable[..., None]
    args: tuple[Any, ...]


class _Script(NamedTuple):
    """Statements to be sent as one text. The rows of the first one are the result."""

    sql: bytes
    returns_rows: bool


class _Query(NamedTuple):
    """A query to be sent with its parameters."""

    sql: bytes
    params: Sequence[Any]
    prepare: bool | None


class _Enter(NamedTuple):
    """A `connection.transaction()` block of psycopg to enter."""

    block: Any


class _Leave(NamedTuple):
    """A `connection.transaction()` block to leave, with an error to roll back what it did."""

    block: Any
    error: Exception | None


class _Rollback(Exception):
    """Makes psycopg roll back to a savepoint."""


_Operation = _Exchange | _Script | _Query | _Enter | _Leave


class _Planner:
    """Turns actions into operations on a psycopg connection: a part of both classes below.

    Statements are joined into one text where possible. If the connection began its transaction
    implicitly, the savepoint is a `transaction()` block of psycopg: inside of one, psycopg refuses
    a `commit()` in the body.
    """

    _connection: Any
    _texts: dict[str, QueryText]
    _program: Program

    def _state(self) -> TransactionState:
        pgconn = self._connection.pgconn
        if pgconn.pipeline_status != _NO_PIPELINE:
            raise ConfigurationError(
                "the connection is in pipeline mode, where nobody knows what was done already; run "
                "the operation outside of it. Its body may have a pipeline of its own"
            )
        if pgconn.transaction_status != _IDLE:
            return _OPEN
        is_autocommit = self._connection.autocommit
        return TransactionState.AUTOCOMMIT if is_autocommit else TransactionState.IMPLICIT

    def _usual_exchange(self, actions: Sequence[Action]) -> _Exchange | None:
        """The message of a claim or a finish in a transaction block, which are what every run
        sends. None for all other actions: `_operations` knows how to perform any."""
        if not isinstance(actions[0], Statement):
            return None
        name, params = actions[0]
        if name == "join" and len(actions) == 2 and self._is_in_block() and self._is_open():
            savepoint = cast(SavepointCommand, actions[1]).savepoint
            claim = _join_text(self._program.layout, *params)
            sql = f"{claim}; SAVEPOINT {savepoint.take_name()}".encode()
            return _Exchange(self._connection.pgconn.send_query, (sql,))
        if name in _PREPARED_AT_ONCE and len(actions) == 1 and self._is_open():
            text = self._texts[name]
            values = text.as_text(params)
            return None if values is None else self._prepared(text, values)
        return None

    def _operations(self, actions: Sequence[Action]) -> list[_Operation]:
        operations: list[_Operation] = []
        texts: list[str] = []
        for action in actions:
            if isinstance(action, SavepointCommand):
                self._savepoint(action, texts, operations)
                continue
            name, params = action
            if name == "join":
                texts.append(_join_text(self._program.layout, *params))
            elif name in _SENT_AS_TEXT:
                texts.append(self._texts[name].inline(params))
            else:
                self._join_texts(texts, operations)
                operations.append(self._query(self._texts[name], params, name))
        self._join_texts(texts, operations)
        return operations

    def _query(self, text: QueryText, params: Sequence[Any], name: str) -> _Operation:
        """A query with its parameters."""
        query = text.query
        values = text.as_text(params) if name in _PREPARED_AT_ONCE else None
        if values is None:
            return _Query(query.raw, query.encode(params), None)
        prepared = self._prepared(text, values) if self._is_open() else None
        if prepared is not None:
            return prepared
        sent = [None if value is None else value.decode() for value in values]
        return _Query(query.raw, sent, True)

    def _prepared(self, text: QueryText, values: list[bytes | None]) -> _Exchange | None:
        """If psycopg has prepared the query, it is sent without a cursor, which would cost more
        than all the rest of a run's messages.

        If psycopg drops this attribute, a cursor is used, which is correct and only slower.
        """
        names = getattr(getattr(self._connection, "_prepared", None), "_names", {})
        name = names.get((text.query.raw, (0,) * len(values)))
        if name is None:
            return None
        return _Exchange(self._connection.pgconn.send_query_prepared, (name, values))

    def _is_open(self) -> bool:
        return bool(self._connection.pgconn.transaction_status == _IN_TRANSACTION)

    def _savepoint(
        self, command: SavepointCommand, texts: list[str], operations: list[_Operation]
    ) -> None:
        action, savepoint = command
        if action is SavepointAction.SET and not self._is_in_block():
            self._join_texts(texts, operations)
            savepoint.handle = self._connection.transaction()
            operations.append(_Enter(savepoint.handle))
        elif savepoint.handle is not None and not isinstance(savepoint.handle, str):
            self._join_texts(texts, operations)
            block, savepoint.handle = savepoint.handle, None
            error = _Rollback() if action is SavepointAction.ROLLBACK else None
            operations.append(_Leave(block, error))
        else:
            status = self._connection.pgconn.transaction_status
            sql = savepoint_sql(command, has_ended=status in (_IDLE, _UNKNOWN))
            if sql is not None:
                texts.append(sql)

    def _join_texts(self, texts: list[str], operations: list[_Operation]) -> None:
        if not texts:
            return
        sql = "; ".join(texts).encode()
        returns_rows = texts[0].startswith("SELECT")
        texts.clear()
        # psycopg must see statements that begin a transaction or roll back to a savepoint: it has
        # something to do itself then.
        if returns_rows and self._is_open():
            operations.append(_Exchange(self._connection.pgconn.send_query, (sql,)))
        else:
            operations.append(_Script(sql, returns_rows))

    def _is_in_block(self) -> bool:
        """True if the caller is inside `with connection.transaction():`. If psycopg drops this
        attribute, the result is False, and a block of our own is correct and only slower."""
        return bool(getattr(self._connection, "_num_transactions", 0))


def _join_text(
    layout: Layout,
    now: int | None,
    is_ring: bool,
    id: bytes,
    owner: bytes,
    fingerprint: str,
    *others: Any,
) -> str:
    """The query "join" as text. It is made of pieces that are the same for most claims."""
    first, second, third, last = _join_pieces(layout, now, is_ring, *others)
    return f"{first}{id.hex()}{second}{owner.hex()}{third}{fingerprint}{last}"


@lru_cache(maxsize=32)
def _join_pieces(layout: Layout, now: int | None, is_ring: bool, *others: Any) -> list[str]:
    id, owner, fingerprint = [bytes([number]) * 16 for number in (1, 2, 3)]
    params = (now, is_ring, id, owner, fingerprint.hex(), *others)
    # The arguments of a function need no casts, each of which the server would plan.
    text = _CAST.sub("", query_texts(layout)["join"].inline(params))
    pieces = []
    for mark in (id, owner, fingerprint):
        piece, _, text = text.partition(mark.hex())
        pieces.append(piece)
    return [*pieces, text]


def _send(pgconn: Any, exchange: _Exchange) -> Generator[Any, Any, list[Any]]:
    """Send a message and receive its results. This is what a cursor does, without a cursor."""
    exchange.send(*exchange.args)
    results: list[Any] = yield from generators.execute(pgconn)
    return results


def _rows_of(results: Sequence[Any], connection: Any) -> Sequence[Row]:
    """The first column of the first result, unless one of the statements has failed."""
    for result in results:
        if result.status == _FATAL_ERROR:
            raise psycopg.errors.error_from_result(result, encoding=connection.info.encoding)
    rows = []
    for number in range(results[0].ntuples):
        found: bytes = results[0].get_value(number, 0) or b""
        rows.append((found.decode("ascii" if found.isascii() else connection.info.encoding),))
    return rows


class PsycopgTransaction(_Planner, CallerTransactionBase):
    """The store's records in the transaction of a psycopg Connection."""

    may_leave_savepoints = True
    _cursor: _Cursor | None = None

    def _transaction_state(self) -> TransactionState:
        return self._state()

    def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        usual = self._usual_exchange(actions)
        if usual is not None:
            return self._exchange(usual)
        rows: Sequence[Row] = ()
        for operation in self._operations(actions):
            if isinstance(operation, _Exchange):
                rows = self._exchange(operation)
            elif isinstance(operation, _Enter):
                operation.block.__enter__()
            elif isinstance(operation, _Leave):
                kind = type(operation.error) if operation.error else None
                operation.block.__exit__(kind, operation.error, None)
            else:
                cursor = self._cursor or _Cursor(self._connection, row_factory=tuple_row)
                self._cursor = cursor
                if isinstance(operation, _Query):
                    sql, params, prepare = operation
                    rows = cursor.execute(sql, params, prepare=prepare).fetchall()
                else:
                    cursor.execute(operation.sql, prepare=False)
                    rows = cursor.fetchall() if operation.returns_rows else rows
        return rows

    def _exchange(self, exchange: _Exchange) -> Sequence[Row]:
        connection = self._connection
        with connection.lock:
            results = connection.wait(_send(connection.pgconn, exchange))
        return _rows_of(results, connection)


class AsyncPsycopgTransaction(_Planner, AsyncCallerTransactionBase):
    """The store's records in the transaction of a psycopg AsyncConnection."""

    may_leave_savepoints = True
    _cursor: _AsyncCursor | None = None

    async def _transaction_state(self) -> TransactionState:
        return self._state()

    async def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        usual = self._usual_exchange(actions)
        if usual is not None:
            return await self._exchange(usual)
        rows: Sequence[Row] = ()
        for operation in self._operations(actions):
            if isinstance(operation, _Exchange):
                rows = await self._exchange(operation)
            elif isinstance(operation, _Enter):
                await operation.block.__aenter__()
            elif isinstance(operation, _Leave):
                kind = type(operation.error) if operation.error else None
                await operation.block.__aexit__(kind, operation.error, None)
            else:
                cursor = self._cursor or _AsyncCursor(self._connection, row_factory=tuple_row)
                self._cursor = cursor
                if isinstance(operation, _Query):
                    sql, params, prepare = operation
                    await cursor.execute(sql, params, prepare=prepare)
                    rows = await cursor.fetchall()
                else:
                    await cursor.execute(operation.sql, prepare=False)
                    rows = await cursor.fetchall() if operation.returns_rows else rows
        return rows

    async def _exchange(self, exchange: _Exchange) -> Sequence[Row]:
        connection = self._connection
        async with connection.lock:
            results = await connection.wait(_send(connection.pgconn, exchange))
        return _rows_of(results, connection)
