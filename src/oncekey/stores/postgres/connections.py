"""Callers' connections of every kind, and programs run on them.

    a psycopg or psycopg2 connection, Django's `connection`     Dbapi
    an SQLAlchemy Session or Connection                         Alchemy
    a psycopg AsyncConnection                                   AsyncPsycopg
    an asyncpg connection                                       Asyncpg
    an SQLAlchemy AsyncSession or AsyncConnection               AsyncAlchemy

Known by their modules, so that none is imported that the caller does not use. Nothing here begins,
commits or rolls back but to our own savepoint. Owns driving generators; every decision is in
enlisting.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from oncekey.core.commands import Command, Reply
from oncekey.core.contract import AsyncEnlisted, Enlisted
from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres import faults
from oncekey.stores.postgres.enlisting import Part, Participant, Plain, refuse
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.program import Program, Statement
from oncekey.stores.postgres.queries import Query, literal, make_queries, positional
from oncekey.stores.postgres.rows import Row

T = TypeVar("T")

_BLOCKING = "a psycopg connection, an SQLAlchemy Session or Connection, or Django's connection"
_ASYNC = "an asyncpg or psycopg AsyncConnection, or an SQLAlchemy AsyncSession or AsyncConnection"
_IDLE = 0  # libpq's PQTRANS_IDLE, as psycopg and psycopg2 tell it


def enlist_blocking(connection: Any, options: Options, program: Program) -> Enlisted:
    """The kind of `connection`, made to take part."""
    _check_allowed(options)
    participant = Participant(program)
    queries = make_queries(options.layout)
    for kind in (Django, Alchemy, Dbapi):
        if kind.takes(connection):
            return kind(connection, participant, queries)
    raise refuse(connection, _BLOCKING)


def enlist_async(connection: Any, options: Options, program: Program) -> AsyncEnlisted:
    """The kind of `connection`, made to take part."""
    _check_allowed(options)
    participant = Participant(program)
    queries = make_queries(options.layout)
    for kind in (AsyncAlchemy, AsyncPsycopg, Asyncpg):
        if kind.takes(connection):
            return kind(connection, participant, queries)
    raise refuse(connection, _ASYNC)


def _check_allowed(options: Options) -> None:
    if not options.takes_part:
        raise ConfigurationError(
            "in_transaction needs advisory locks: it works neither with claim='portable' nor "
            "with transactional=False"
        )


def _is(connection: Any, module: str, *names: str) -> bool:
    """Whether one of the object's classes is of this module and has one of these names."""
    return any(
        kind.__module__.partition(".")[0] == module and kind.__name__ in names
        for kind in type(connection).__mro__
    )


# --- blocking -------------------------------------------------------------------------------


class _Blocking(ABC):
    """The verbs; how a statement is run is up to the kind of connection."""

    def __init__(
        self, connection: Any, participant: Participant, queries: dict[str, Query]
    ) -> None:
        self._connection = connection
        self._participant = participant
        self._queries = queries

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return self._run(self._participant.apply(commands, self._in_transaction()))

    def mark(self) -> None:
        self._run(self._participant.mark())

    def undo(self) -> None:
        self._run(self._participant.undo(self._in_transaction()))

    def settle(self) -> None:
        self._participant.settle(self._in_transaction())

    def _run(self, steps: Part[T]) -> T:
        try:
            statement = next(steps)
            while True:
                statement = steps.send(self._execute(statement))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except Exception as error:
            meaning = faults.enlisted(error)
            if meaning is None:
                raise
            raise meaning from error

    @abstractmethod
    def _in_transaction(self) -> bool: ...

    @abstractmethod
    def _execute(self, statement: Statement | Plain) -> Sequence[Row]: ...


class Dbapi(_Blocking):
    """A psycopg or psycopg2 connection."""

    @staticmethod
    def takes(connection: Any) -> bool:
        return _is(connection, "psycopg", "Connection") or _is(connection, "psycopg2", "connection")

    def _driver(self) -> Any:
        return self._connection

    def _in_transaction(self) -> bool:
        """Also before the first statement: a connection without autocommit then begins one."""
        driver = self._driver()
        if not driver.autocommit:
            return True
        info = driver.info
        status = info.transaction_status
        return bool(status != _IDLE)

    def _execute(self, statement: Statement | Plain) -> Sequence[Row]:
        with self._driver().cursor() as cursor:
            return _execute_positional(cursor, self._queries, statement)


class Django(Dbapi):
    """Django's `connection` (or `connections[alias]`), inside `transaction.atomic()`."""

    @staticmethod
    def takes(connection: Any) -> bool:
        return _is(connection, "django", "BaseDatabaseWrapper", "ConnectionProxy")

    def _driver(self) -> Any:
        self._connection.ensure_connection()
        return self._connection.connection

    def _in_transaction(self) -> bool:
        return bool(self._connection.in_atomic_block) or not self._connection.get_autocommit()


class Alchemy(_Blocking):
    """An SQLAlchemy Session, scoped_session or Connection, on psycopg or psycopg2."""

    @staticmethod
    def takes(connection: Any) -> bool:
        return _is(connection, "sqlalchemy", "Session", "scoped_session", "Connection")

    def _in_transaction(self) -> bool:
        """A session begins by itself; a connection in AUTOCOMMIT never does."""
        return _alchemy_isolation(self._bound()) != "AUTOCOMMIT"

    def _bound(self) -> Any:
        is_connection = _is(self._connection, "sqlalchemy", "Connection")
        return self._connection if is_connection else self._connection.connection()

    def _execute(self, statement: Statement | Plain) -> Sequence[Row]:
        sql, params = _for_alchemy(self._bound().dialect, self._queries, statement)
        result = self._bound().exec_driver_sql(sql, params)
        return result.fetchall() if result.returns_rows else ()


# --- asyncio --------------------------------------------------------------------------------


class _Async(ABC):
    """The same verbs, awaited."""

    def __init__(
        self, connection: Any, participant: Participant, queries: dict[str, Query]
    ) -> None:
        self._connection = connection
        self._participant = participant
        self._queries = queries

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return await self._run(self._participant.apply(commands, await self._in_transaction()))

    async def mark(self) -> None:
        await self._run(self._participant.mark())

    async def undo(self) -> None:
        await self._run(self._participant.undo(await self._in_transaction()))

    async def settle(self) -> None:
        self._participant.settle(await self._in_transaction())

    async def _run(self, steps: Part[T]) -> T:
        try:
            statement = next(steps)
            while True:
                statement = steps.send(await self._execute(statement))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except Exception as error:
            meaning = faults.enlisted(error)
            if meaning is None:
                raise
            raise meaning from error

    @abstractmethod
    async def _in_transaction(self) -> bool: ...

    @abstractmethod
    async def _execute(self, statement: Statement | Plain) -> Sequence[Row]: ...


class AsyncPsycopg(_Async):
    """A psycopg AsyncConnection."""

    @staticmethod
    def takes(connection: Any) -> bool:
        return _is(connection, "psycopg", "AsyncConnection")

    async def _in_transaction(self) -> bool:
        driver = self._connection
        return not driver.autocommit or bool(driver.info.transaction_status != _IDLE)

    async def _execute(self, statement: Statement | Plain) -> Sequence[Row]:
        sql, params = _positional(self._queries, statement)
        async with self._connection.cursor() as cursor:
            cursor.row_factory = _psycopg_rows()
            await cursor.execute(sql, params)
            rows: Sequence[Row] = await cursor.fetchall() if cursor.description else ()
            return rows


class Asyncpg(_Async):
    """An asyncpg connection, also one that a pool has lent."""

    @staticmethod
    def takes(connection: Any) -> bool:
        return _is(connection, "asyncpg", "Connection", "PoolConnectionProxy")

    async def _in_transaction(self) -> bool:
        return bool(self._connection.is_in_transaction())

    async def _execute(self, statement: Statement | Plain) -> Sequence[Row]:
        if isinstance(statement, Plain):
            await self._connection.execute(statement.sql)
            return ()
        query = self._queries[statement.name]
        params = [literal(k, v) for k, v in zip(query.kinds, statement.params, strict=True)]
        rows: Sequence[Row] = await self._connection.fetch(query.sql, *params)
        return rows


class AsyncAlchemy(_Async):
    """An SQLAlchemy AsyncSession or AsyncConnection, on asyncpg or psycopg."""

    @staticmethod
    def takes(connection: Any) -> bool:
        names = ("AsyncSession", "async_scoped_session", "AsyncConnection")
        return _is(connection, "sqlalchemy", *names)

    async def _bound(self) -> Any:
        is_connection = _is(self._connection, "sqlalchemy", "AsyncConnection")
        return self._connection if is_connection else await self._connection.connection()

    async def _in_transaction(self) -> bool:
        return _alchemy_isolation((await self._bound()).sync_connection) != "AUTOCOMMIT"

    async def _execute(self, statement: Statement | Plain) -> Sequence[Row]:
        bound = await self._bound()
        sql, params = _for_alchemy(bound.dialect, self._queries, statement)
        result = await bound.exec_driver_sql(sql, params)
        return result.fetchall() if result.returns_rows else ()


# --- statements for drivers that take %s ------------------------------------------------------


def _positional(
    queries: dict[str, Query], statement: Statement | Plain
) -> tuple[str, tuple[Any, ...] | None]:
    if isinstance(statement, Plain):
        return statement.sql, None
    query = queries[statement.name]
    sql, order = positional(query)
    params = [literal(k, v) for k, v in zip(query.kinds, statement.params, strict=True)]
    return sql, tuple(params[i] for i in order)


def _execute_positional(
    cursor: Any, queries: dict[str, Query], statement: Statement | Plain
) -> Sequence[Row]:
    sql, params = _positional(queries, statement)
    if hasattr(cursor, "row_factory"):  # psycopg 3: the caller's own factory has no part in it
        cursor.row_factory = _psycopg_rows()
    cursor.execute(sql, params)
    return cursor.fetchall() if cursor.description else ()


def _psycopg_rows() -> Any:
    from psycopg.rows import tuple_row

    return tuple_row


def _for_alchemy(
    dialect: Any, queries: dict[str, Query], statement: Statement | Plain
) -> tuple[str, tuple[Any, ...]]:
    if isinstance(statement, Plain):
        return statement.sql, ()
    if dialect.driver == "asyncpg":
        query = queries[statement.name]
        pairs = zip(query.kinds, statement.params, strict=True)
        return query.sql, tuple(literal(kind, value) for kind, value in pairs)
    if dialect.driver not in ("psycopg", "psycopg_async", "psycopg2"):
        raise ConfigurationError(
            f"in_transaction does not know SQLAlchemy's driver {dialect.driver!r}; use psycopg, "
            "psycopg2 or asyncpg"
        )
    sql, params = _positional(queries, statement)
    assert params is not None
    return sql, params


def _alchemy_isolation(connection: Any) -> str:
    level: str = (
        connection.get_isolation_level() if hasattr(connection, "get_isolation_level") else ""
    )
    options = connection.get_execution_options()
    return str(options.get("isolation_level", level)).upper()
