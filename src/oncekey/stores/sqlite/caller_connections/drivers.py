"""Runs statements in the transaction of a caller's sqlite3 or aiosqlite connection.

    SQLite3Transaction       a sqlite3 connection, sync
    LoopSQLite3Transaction   a sqlite3 connection on the event loop's thread, where it never waits
    AiosqliteTransaction     an aiosqlite connection; aiosqlite itself is never imported

Nothing here commits, and a rollback goes back to our own savepoint at most. Every decision is in
program.py and caller_transaction.py.
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from oncekey.core.commands import Command, Reply
from oncekey.core.guarantees import Guarantee
from oncekey.stores.outbox_commands import Added, OutboxRow
from oncekey.stores.sqlite import errors
from oncekey.stores.sqlite.caller_transaction import CallerProgram
from oncekey.stores.sqlite.connection import execute, raise_translated
from oncekey.stores.sqlite.program import Statement, Statements
from oncekey.stores.sqlite.rows import Row

T = TypeVar("T")

_PAUSE_FIRST_SECONDS = 0.001
_PAUSE_MAX_SECONDS = 0.05


class SQLite3Transaction:
    """The store's records in the transaction of a caller's sqlite3 connection."""

    def __init__(self, connection: sqlite3.Connection, program: CallerProgram) -> None:
        self._connection = connection
        self._program = program

    @property
    def guarantee(self) -> Guarantee | None:
        return self._program.guarantee

    def read_guarantee(self) -> None:
        self._run(self._program.check(self._connection.in_transaction))

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return self._run(self._program.apply(commands, self._connection.in_transaction))

    def add_message(self, row: OutboxRow, /) -> Added:
        return self._run(self._program.add_message(row, self._connection.in_transaction))

    def set_savepoint(self) -> None:
        self._run(self._program.set_savepoint())

    def rollback_to_savepoint(self) -> None:
        self._run(self._program.rollback_to_savepoint(self._connection.in_transaction))

    def release_savepoint(self) -> None:
        self._run(self._program.release_savepoint(self._connection.in_transaction))

    def _run(self, statements: Statements[T]) -> T:
        # Not connection.cursor(): the caller's cursor and row factories must not be used.
        cursor = sqlite3.Cursor(self._connection)
        try:
            statement = next(statements)
            while True:
                statement = statements.send(execute(cursor, statement))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except sqlite3.Error as error:
            raise_translated(errors.translate_caller_error(error), error)
        finally:
            cursor.close()


class _AsyncDriverTransaction(ABC):
    """The async methods. How a program is run depends on the kind of connection."""

    def __init__(self, connection: Any, program: CallerProgram) -> None:
        self._connection = connection
        self._program = program

    @property
    def guarantee(self) -> Guarantee | None:
        return self._program.guarantee

    async def read_guarantee(self) -> None:
        await self._run(self._program.check(self._connection.in_transaction))

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return await self._run(self._program.apply(commands, self._connection.in_transaction))

    async def add_message(self, row: OutboxRow, /) -> Added:
        return await self._run(self._program.add_message(row, self._connection.in_transaction))

    async def set_savepoint(self) -> None:
        await self._run(self._program.set_savepoint())

    async def rollback_to_savepoint(self) -> None:
        await self._run(self._program.rollback_to_savepoint(self._connection.in_transaction))

    async def release_savepoint(self) -> None:
        await self._run(self._program.release_savepoint(self._connection.in_transaction))

    @abstractmethod
    async def _run(self, statements: Statements[T]) -> T: ...


class LoopSQLite3Transaction(_AsyncDriverTransaction):
    """A caller's sqlite3 connection on the event loop's thread. Short statements run there; waiting
    for the lock does not block the loop."""

    async def _run(self, statements: Statements[T]) -> T:
        cursor = sqlite3.Cursor(self._connection)
        try:
            statement = next(statements)
            while True:
                if statement.locks:
                    await self._lock(cursor, statement)
                    rows: Sequence[Row] = ()
                else:
                    rows = execute(cursor, statement)
                statement = statements.send(rows)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except sqlite3.Error as error:
            raise_translated(errors.translate_caller_error(error), error)
        finally:
            cursor.close()

    async def _lock(self, cursor: sqlite3.Cursor, statement: Statement) -> None:
        """Take the write lock without blocking the loop. It waits at most for the busy timeout of
        the caller's connection."""
        loop = asyncio.get_running_loop()
        timeout_ms = cursor.execute("PRAGMA busy_timeout").fetchone()[0]
        deadline = loop.time() + timeout_ms / 1_000
        pause = _PAUSE_FIRST_SECONDS
        while True:
            # Restored before every pause: other tasks may use the connection meanwhile.
            cursor.execute("PRAGMA busy_timeout = 0")
            try:
                execute(cursor, statement)
                return
            except sqlite3.OperationalError as error:
                if not errors.is_busy(error) or loop.time() >= deadline:
                    raise
            finally:
                cursor.execute(f"PRAGMA busy_timeout = {timeout_ms:d}")
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_MAX_SECONDS)


class AiosqliteTransaction(_AsyncDriverTransaction):
    """A caller's aiosqlite connection, which waits in a thread of its own."""

    async def _run(self, statements: Statements[T]) -> T:
        cursor = await self._connection.cursor()
        cursor.row_factory = None
        try:
            statement = next(statements)
            while True:
                rows: Sequence[Row]
                if statement.many:
                    await cursor.executemany(statement.sql, statement.params)
                    rows = ((cursor.rowcount,),)
                else:
                    await cursor.execute(statement.sql, statement.params)
                    rows = await cursor.fetchall()
                statement = statements.send(rows)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except sqlite3.Error as error:
            raise_translated(errors.translate_caller_error(error), error)
        finally:
            await cursor.close()
