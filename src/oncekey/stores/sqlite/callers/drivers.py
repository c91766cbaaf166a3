"""Programs run on connections: our own, or the caller's in three kinds.

    run               our own connection, blocking; rolls back what failed
    EnlistedSQLite    the caller's sqlite3 connection, blocking
    EnlistedOnLoop    the caller's sqlite3 connection on the event loop's thread: never waits there
    EnlistedAio       the caller's aiosqlite connection, known by its shape and never imported

On a caller's connection nothing is ever committed or rolled back but back to our own savepoint.
Owns driving generators; every decision is in program.py and caller_transaction.py.
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from oncekey.core.commands import Command, Reply
from oncekey.stores.sqlite import errors
from oncekey.stores.sqlite.caller_transaction import Participant
from oncekey.stores.sqlite.program import COMMIT, Statement, Steps
from oncekey.stores.sqlite.rows import Row

T = TypeVar("T")

_PAUSE_FIRST_SECONDS = 0.001
_PAUSE_MAX_SECONDS = 0.05


def run(connection: sqlite3.Connection, steps: Steps[T]) -> T:
    """Run a program on our own connection; whatever fails leaves no transaction behind."""
    cursor = sqlite3.Cursor(connection)
    statement: Statement | None = None
    try:
        statement = next(steps)
        while True:
            statement = steps.send(_execute(cursor, statement))
    except StopIteration as stop:
        result: T = stop.value
        return result
    except BaseException as error:
        _roll_back(connection)
        if isinstance(error, sqlite3.Error):
            _raise(errors.serving(error, committing=statement is COMMIT), error)
        raise
    finally:
        cursor.close()


def _execute(cursor: sqlite3.Cursor, statement: Statement) -> Sequence[Row]:
    if statement.many:
        cursor.executemany(statement.sql, statement.params)
        return ((cursor.rowcount,),)
    return cursor.execute(statement.sql, statement.params).fetchall()


def _roll_back(connection: sqlite3.Connection) -> None:
    """End what is open. SQLite may have done so itself, and a dead disk may refuse."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        pass  # the first error is the one to tell; the connection is given up if it stays open


def _raise(meaning: Exception, error: sqlite3.Error) -> NoReturn:
    if meaning is error:
        raise error
    raise meaning from error


class EnlistedSQLite:
    """A store's records on the caller's sqlite3 connection."""

    def __init__(self, connection: sqlite3.Connection, participant: Participant) -> None:
        self._connection = connection
        self._participant = participant

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return self._run(self._participant.apply(commands, self._connection.in_transaction))

    def set_savepoint(self) -> None:
        self._run(self._participant.set_savepoint())

    def rollback_to_savepoint(self) -> None:
        self._run(self._participant.rollback_to_savepoint(self._connection.in_transaction))

    def release_savepoint(self) -> None:
        self._run(self._participant.release_savepoint(self._connection.in_transaction))

    def _run(self, steps: Steps[T]) -> T:
        # Made here, not by connection.cursor(): the caller's factories have no part in it.
        cursor = sqlite3.Cursor(self._connection)
        try:
            statement = next(steps)
            while True:
                statement = steps.send(_execute(cursor, statement))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except sqlite3.Error as error:
            _raise(errors.enlisted(error), error)
        finally:
            cursor.close()


class _AsyncEnlisted(ABC):
    """The same verbs, awaited; how a program is run is up to the kind of connection."""

    def __init__(self, connection: Any, participant: Participant) -> None:
        self._connection = connection
        self._participant = participant

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return await self._run(self._participant.apply(commands, self._connection.in_transaction))

    async def set_savepoint(self) -> None:
        await self._run(self._participant.set_savepoint())

    async def rollback_to_savepoint(self) -> None:
        await self._run(self._participant.rollback_to_savepoint(self._connection.in_transaction))

    async def release_savepoint(self) -> None:
        await self._run(self._participant.release_savepoint(self._connection.in_transaction))

    @abstractmethod
    async def _run(self, steps: Steps[T]) -> T: ...


class EnlistedOnLoop(_AsyncEnlisted):
    """On the event loop's thread: short statements run there, waiting does not."""

    async def _run(self, steps: Steps[T]) -> T:
        cursor = sqlite3.Cursor(self._connection)
        try:
            statement = next(steps)
            while True:
                if statement.locks:
                    await self._lock(cursor, statement)
                    rows: Sequence[Row] = ()
                else:
                    rows = _execute(cursor, statement)
                statement = steps.send(rows)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except sqlite3.Error as error:
            _raise(errors.enlisted(error), error)
        finally:
            cursor.close()

    async def _lock(self, cursor: sqlite3.Cursor, statement: Statement) -> None:
        """Take the write lock without blocking the loop, for as long as the caller's own
        connection would have waited."""
        loop = asyncio.get_running_loop()
        timeout_ms = cursor.execute("PRAGMA busy_timeout").fetchone()[0]
        deadline = loop.time() + timeout_ms / 1_000
        pause = _PAUSE_FIRST_SECONDS
        while True:
            # Put back before every pause: other tasks may use the connection meanwhile.
            cursor.execute("PRAGMA busy_timeout = 0")
            try:
                _execute(cursor, statement)
                return
            except sqlite3.OperationalError as error:
                if not errors.waits(error) or loop.time() >= deadline:
                    raise
            finally:
                cursor.execute(f"PRAGMA busy_timeout = {timeout_ms:d}")
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_MAX_SECONDS)


class EnlistedAio(_AsyncEnlisted):
    """On an aiosqlite connection, whose own thread does the waiting."""

    async def _run(self, steps: Steps[T]) -> T:
        cursor = await self._connection.cursor()
        cursor.row_factory = None
        try:
            statement = next(steps)
            while True:
                rows: Sequence[Row]
                if statement.many:
                    await cursor.executemany(statement.sql, statement.params)
                    rows = ((cursor.rowcount,),)
                else:
                    await cursor.execute(statement.sql, statement.params)
                    rows = await cursor.fetchall()
                statement = steps.send(rows)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except sqlite3.Error as error:
            _raise(errors.enlisted(error), error)
        finally:
            await cursor.close()
