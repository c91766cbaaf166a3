"""`SQLiteStore` and `AsyncSQLiteStore`: one file, shared by threads, tasks and processes.

Both run the same program on the same kind of connection; the async store does so on a thread of its
own. This module owns the options and that thread. The file must be on a local disk: network file
systems break SQLite's locks, and a store cannot detect that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from oncekey.core.commands import Command, Reply, Seen
from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.record import Record
from oncekey.core.search import Cursor, Measures, Page, Query
from oncekey.core.store import (
    SWEEP_LIMIT_DEFAULT,
    AsyncCallerTransaction,
    CallerTransaction,
    Unfinished,
)
from oncekey.stores.outbox_commands import OutboxCommand
from oncekey.stores.sqlalchemy_savepoints import is_async, is_sync
from oncekey.stores.sqlite import durability, outbox_program
from oncekey.stores.sqlite.caller_connections.drivers import (
    AiosqliteTransaction,
    LoopSQLite3Transaction,
    SQLite3Transaction,
)
from oncekey.stores.sqlite.caller_connections.sqlalchemy import (
    AsyncSQLAlchemyTransaction,
    SQLAlchemyTransaction,
)
from oncekey.stores.sqlite.caller_transaction import (
    CallerProgram,
    is_aiosqlite,
    is_sqlite3,
    may_begin,
    unsupported_connection,
)
from oncekey.stores.sqlite.connection import Database
from oncekey.stores.sqlite.program import Program, Statements
from oncekey.stores.sqlite.sqlite_search import measure, search
from oncekey.stores.store_rules import StoreClock, wall_clock

R = TypeVar("R")
T = TypeVar("T")

BUSY_TIMEOUT_DEFAULT = "5s"
SYNCHRONOUS_DEFAULT = "full"
_BUSY_TIMEOUT_MAX_US = 2**31 * 1_000 - 1  # SQLite counts milliseconds in 32 bits


class _Base:
    """The options that the sync and the async store share. Opens nothing."""

    lazy = False
    immediate = False
    max_in_flight = 1  # a file has one writer at a time

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout: Duration = BUSY_TIMEOUT_DEFAULT,
        synchronous: str = SYNCHRONOUS_DEFAULT,
        acknowledge: str | None = None,
        clock: StoreClock = wall_clock,
    ) -> None:
        timeout = microseconds(busy_timeout, name="busy_timeout")
        if timeout > _BUSY_TIMEOUT_MAX_US:
            raise ConfigurationError(f"busy_timeout={busy_timeout!r} is too long; 24 days at most")
        mode = synchronous.lower() if isinstance(synchronous, str) else ""
        if mode not in durability.SYNCHRONOUS:
            known = ", ".join(durability.SYNCHRONOUS)
            raise ConfigurationError(f"synchronous={synchronous!r} is not known; choose {known}")
        self.guarantee = durability.guarantee(mode)
        self._clock = clock
        self._program = Program(clock)
        self._database = Database(
            _path(path),
            busy_timeout_seconds=timeout / 1_000_000,
            synchronous=mode,
            clock=clock,
            acknowledged=durability.is_acknowledged(acknowledge),
        )

    @property
    def path(self) -> str:
        """The file, as an absolute path."""
        return self._database.path

    def _caller_program(self, connection: Any) -> CallerProgram:
        begins = may_begin(connection)
        return CallerProgram(self._program, self.path, self.guarantee, may_begin=begins)


class SQLiteStore(_Base):
    """A sync store in one SQLite file. The constructor opens the file.

    busy_timeout   how long to wait for another process's lock, as a duration
    synchronous    full (each commit is on disk when it returns), extra, normal or off
    acknowledge    "wal-reset-bug": you know of SQLite's bug, so no warning is logged
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout: Duration = BUSY_TIMEOUT_DEFAULT,
        synchronous: str = SYNCHRONOUS_DEFAULT,
        acknowledge: str | None = None,
        clock: StoreClock = wall_clock,
    ) -> None:
        super().__init__(
            path,
            busy_timeout=busy_timeout,
            synchronous=synchronous,
            acknowledge=acknowledge,
            clock=clock,
        )
        self._database.open()

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return self._database.run(self._program.apply(commands))

    def bind(self, check: bytes, /) -> Seen:
        return self._database.run(self._program.bind(check))

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int:
        return self._database.run(self._program.sweep(limit))

    def elect(self, token: bytes, lease: int, /) -> bool:
        return self._database.run(self._program.elect(token, lease))

    def unfinished(self, after: int, limit: int, /) -> Unfinished:
        return self._database.run(self._program.unfinished(after, limit))

    def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        return self._database.run(search(self._clock(), query, limit, after))

    def measure(self) -> Measures:
        return self._database.run(measure(self._clock()))

    def history(self, id: bytes, /) -> list[Record]:
        """Past generations of a key that are still in their audit window, oldest first."""
        return self._database.run(self._program.history(id))

    def create_outbox(self) -> None:
        """Create the table of the outbox, unless it is there."""
        self._database.run(outbox_program.create())

    def outbox(self, command: OutboxCommand[R], /) -> R:
        """Do something with the outbox."""
        return self._database.run(outbox_program.run(command, self._clock))

    def join(self, connection: Any, /) -> CallerTransaction:
        """The store's records in the transaction of your sqlite3 connection, or of your SQLAlchemy
        session or connection.

        If no transaction is open, one is begun (BEGIN IMMEDIATE); `with connection:` or commit()
        ends it.
        """
        if is_sync(connection):
            return SQLAlchemyTransaction(connection, self._caller_program)
        if not is_sqlite3(connection):
            raise unsupported_connection(
                connection, "a sqlite3 connection, an SQLAlchemy Session or Connection"
            )
        return SQLite3Transaction(connection, self._caller_program(connection))

    def close(self) -> None:
        self._database.close()

    def reopen(self) -> None:
        """Make a closed store usable again: its next use opens the file."""
        self._database.reopen()


class AsyncSQLiteStore(_Base):
    """An async store in one SQLite file, on a thread of its own. Event loops may share it.

    The first call opens the file, because opening may wait.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout: Duration = BUSY_TIMEOUT_DEFAULT,
        synchronous: str = SYNCHRONOUS_DEFAULT,
        acknowledge: str | None = None,
        clock: StoreClock = wall_clock,
    ) -> None:
        super().__init__(
            path,
            busy_timeout=busy_timeout,
            synchronous=synchronous,
            acknowledge=acknowledge,
            clock=clock,
        )
        # By number of forks, because a child has none of its parent's threads. dict.setdefault is
        # atomic: if two loops need the first worker at once, both get the same one.
        self._workers: dict[int, ThreadPoolExecutor] = {}
        self._closed = False

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return await self._run(self._program.apply(commands))

    async def bind(self, check: bytes, /) -> Seen:
        return await self._run(self._program.bind(check))

    async def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int:
        return await self._run(self._program.sweep(limit))

    async def elect(self, token: bytes, lease: int, /) -> bool:
        return await self._run(self._program.elect(token, lease))

    async def unfinished(self, after: int, limit: int, /) -> Unfinished:
        return await self._run(self._program.unfinished(after, limit))

    async def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        return await self._run(search(self._clock(), query, limit, after))

    async def measure(self) -> Measures:
        return await self._run(measure(self._clock()))

    async def history(self, id: bytes, /) -> list[Record]:
        """Past generations of a key that are still in their audit window, oldest first."""
        return await self._run(self._program.history(id))

    async def create_outbox(self) -> None:
        """Create the table of the outbox, unless it is there."""
        await self._run(outbox_program.create())

    async def outbox(self, command: OutboxCommand[R], /) -> R:
        """Do something with the outbox."""
        return await self._run(outbox_program.run(command, self._clock))

    def join(self, connection: Any, /) -> AsyncCallerTransaction:
        """The store's records in the transaction of your aiosqlite or sqlite3 connection, or of
        your SQLAlchemy AsyncSession or AsyncConnection."""
        if is_async(connection):
            return AsyncSQLAlchemyTransaction(connection, self._caller_program)
        if is_aiosqlite(connection):
            return AiosqliteTransaction(connection, self._caller_program(connection))
        if is_sqlite3(connection):
            return LoopSQLite3Transaction(connection, self._caller_program(connection))
        raise unsupported_connection(
            connection,
            "an aiosqlite or sqlite3 connection, an SQLAlchemy AsyncSession or AsyncConnection",
        )

    async def close(self) -> None:
        self._closed = True
        worker = self._workers.pop(self._database.forks, None)
        if worker is not None:
            await asyncio.get_running_loop().run_in_executor(worker, self._database.close)
            worker.shutdown(wait=False)
        else:
            self._database.close()

    def abandon(self) -> None:
        """Close without waiting, from any thread. Called when a dropped engine had opened it."""
        self._closed = True
        worker = self._workers.pop(self._database.forks, None)
        if worker is not None:
            worker.submit(self._database.close)
            worker.shutdown(wait=False)

    def reopen(self) -> None:
        """Make a closed store usable again: its next use opens the file."""
        self._database.reopen()
        self._closed = False

    async def _run(self, statements: Statements[T]) -> T:
        if self._closed:
            raise StoreUnavailable("the store was closed", ambiguous=False, final=True)
        forks = self._database.forks
        worker = self._workers.get(forks)
        if worker is None:
            new_worker = ThreadPoolExecutor(1, thread_name_prefix="oncekey-sqlite")
            worker = self._workers.setdefault(forks, new_worker)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(worker, self._database.run, statements)


def _path(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise ConfigurationError(f"{path!r} is not the path of a file")
    if text == ":memory:" or text.startswith("file:"):
        raise ConfigurationError(
            f"{text!r}: SQLite in memory belongs to one connection and is not shared with others, "
            "and file: addresses are not taken; give a path, or use memory://"
        )
    # Absolute from the start: a daemon that changes its directory must open the same file.
    return os.path.abspath(text)
