"""`AsyncPostgresStore`: the async store, on asyncpg.

This module runs programs on connections (see asyncpg_connections.py). The caller may give a pool
instead of an address; then each statement runs in a transaction of its own with our settings. Every
decision is in program.py.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import asyncpg

from oncekey.core.commands import Command, Reply, Seen
from oncekey.core.errors import ConfigurationError, OncekeyError, StoreUnavailable
from oncekey.core.record import Record
from oncekey.core.search import Cursor, Measures, Page, Query
from oncekey.core.store import SWEEP_LIMIT_DEFAULT, AsyncCallerTransaction, Unfinished
from oncekey.stores.outbox_commands import OutboxCommand
from oncekey.stores.postgres import errors, outbox_program, standby_program
from oncekey.stores.postgres.asyncpg_connections import (
    CANCEL_SECONDS,
    ERRORS,
    CallerPool,
    OwnPool,
    PooledConnection,
)
from oncekey.stores.postgres.caller_connections import join_async
from oncekey.stores.postgres.caller_connections.base import AsyncStoreCalls
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.postgres_search import measure, search
from oncekey.stores.postgres.queries import make_queries
from oncekey.stores.postgres.rows import Row
from oncekey.stores.postgres.schema import SchemaProgram, Script
from oncekey.stores.postgres.statements import Statement, Statements, is_write
from oncekey.stores.postgres.store_base import (
    DEADLOCK_TRIES,
    SCRIPT_SECONDS,
    PostgresBase,
)
from oncekey.stores.postgres.unfinished import UnfinishedPages
from oncekey.stores.replica_sightings import Remembered
from oncekey.stores.server_watch import reply_deadline

R = TypeVar("R")
T = TypeVar("T")


class AsyncDatabase:
    """Runs programs on the connections to one database."""

    def __init__(self, address: str | asyncpg.Pool[Any], options: Options) -> None:
        self.pool: OwnPool | CallerPool
        if isinstance(address, str):
            self.pool = OwnPool(address, options)
        elif hasattr(address, "acquire") and hasattr(address, "release"):
            self.pool = CallerPool(address, options)
        else:
            raise ConfigurationError(
                f"a {type(address).__name__} is neither an address nor an asyncpg.Pool"
            )
        self._wrap = options.pooler or not isinstance(address, str)
        self._begin = "; ".join(("BEGIN", *options.local_settings))
        self._queries = make_queries(options.layout)
        self._reply_timeout = options.reply_timeout_seconds
        self._call_seconds = options.call_us / 1_000_000

    async def run(self, program: Statements[T] | SchemaProgram[T], end: float | None = None) -> T:
        """Run a program until `end` at the latest. Each of its statements is a transaction."""
        statement: Statement | Script | None = None
        written = False
        end = time.monotonic() + self._call_seconds if end is None else end
        async with self.pool.acquire(end) as pooled:
            try:
                statement = next(program)
                while True:
                    pooled.begin()
                    rows = await self._execute(pooled, statement, end)
                    pooled.is_idle = True
                    written = written or is_write(statement)
                    if isinstance(statement, Script):  # may take longer than any call
                        end = time.monotonic() + self._call_seconds
                    statement = program.send(rows)
            except StopIteration as stop:
                result: T = stop.value
                return result
            except TimeoutError as error:
                await pooled.recover()
                if pooled.unreplicated:
                    raise errors.not_replicated() from error
                if pooled.is_closed:  # the server did not even respond to the cancel request
                    raise errors.reply_timeout() from error
                raise StoreUnavailable(
                    "no answer from the server in time", timed_out=True
                ) from error
            except ERRORS as error:
                # After an error from the server the connection is idle, unless the session ended.
                pooled.is_idle = isinstance(error, asyncpg.PostgresError)
                translated = _translate_error(error, statement, broken=pooled.is_closed)
                if translated is None:
                    raise
                if written and isinstance(translated, StoreUnavailable):
                    translated.ambiguous = True  # an earlier statement was committed (S5)
                if errors.ends_session(error):
                    pooled.terminate()
                raise translated from error

    async def _execute(
        self, pooled: PooledConnection, statement: Statement | Script, end: float
    ) -> Sequence[Row]:
        if isinstance(statement, Script):
            await self._script(pooled, statement.sql)
            return ()
        now = time.monotonic()
        seconds = max(0.0, reply_deadline(now, self._reply_timeout, end) - now)
        query = self._queries[statement.name]
        params = query.encode(statement.params)
        if self._wrap:
            rows = await self._in_transaction(pooled, query.sql, params, seconds)
        else:
            rows = await pooled.connection.fetch(query.sql, *params, timeout=seconds)
        if pooled.unreplicated:
            pooled.is_idle = True
            raise errors.not_replicated()
        return rows

    async def _script(self, pooled: PooledConnection, sql: str) -> None:
        try:
            await pooled.connection.execute(sql, timeout=SCRIPT_SECONDS)
        except asyncpg.PostgresError:
            await self._roll_back(pooled)  # the script has begun a transaction that is still open
            raise

    async def _in_transaction(
        self, pooled: PooledConnection, sql: str, params: Sequence[Any], seconds: float
    ) -> Sequence[Row]:
        """Run a query in a transaction with our settings, because the session belongs to somebody
        else."""
        connection = pooled.connection
        try:
            await connection.execute(self._begin, timeout=seconds)
            rows: Sequence[Row] = await connection.fetch(sql, *params, timeout=seconds)
        except asyncpg.PostgresError:
            await self._roll_back(pooled)
            raise
        await connection.execute("COMMIT", timeout=seconds)
        return rows

    async def _roll_back(self, pooled: PooledConnection) -> None:
        if not pooled.is_closed:
            await pooled.connection.execute("ROLLBACK", timeout=CANCEL_SECONDS)


def _translate_error(
    error: BaseException, statement: Statement | Script | None, *, broken: bool
) -> OncekeyError | None:
    is_script = isinstance(statement, Script)
    translate = errors.translate_migration_error if is_script else errors.translate_error
    return translate(error, broken=broken)


class AsyncPostgresStore(PostgresBase):
    """An async store in a PostgreSQL database. Its first call connects. Event loops may share it.

    `address` is a URL for asyncpg, or an asyncpg.Pool of yours (of one event loop). The options
    are those of oncekey.stores.postgres.Options.
    """

    def __init__(self, address: str | asyncpg.Pool[Any], **options: Any) -> None:
        super().__init__(options)
        self._database = AsyncDatabase(address, self._options)
        self._preparing: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
        self._preparing = weakref.WeakKeyDictionary()

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        end = self._deadline()
        batch = self._lock_aware(commands)
        while True:
            try:
                if batch.suspects:
                    check = partial(self._program.locked, sorted(batch.suspects))
                    batch.leave_out(await self._run(check, end))
                apply = partial(self._program.apply, batch.free, end)
                replies = batch.merge(await self._run(apply, end) if batch.free else [])
            except StoreUnavailable as error:
                if not batch.should_retry(error):
                    raise
            else:
                await self._confirm_outcomes(replies)
                return replies

    async def bind(self, check: bytes, /) -> Seen:
        mark = await self._run(lambda: self._program.bind(check))
        if self._program.watch.is_due():
            self._update_guarantee(await self._run(standby_program.read_server))
        return mark

    async def elect(self, token: bytes, lease: int, /) -> bool:
        return await self._run(lambda: self._program.elect(token, lease))

    async def unfinished(self, after: int, limit: int, /) -> Unfinished:
        pages = UnfinishedPages(self._program.now(), after, limit)
        while not pages.is_done:
            await self._run(pages.page)
        return pages.result

    async def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /, *, tier: str = "all") -> int:
        return await self._run(lambda: self._program.sweep(limit, tier))

    async def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        return await self._run(lambda: search(self._program.now(), query, limit, after))

    async def measure(self) -> Measures:
        return await self._run(lambda: measure(self._program.now()))

    async def history(self, id: bytes, /) -> list[Record]:
        """Past generations of a key that are still in their audit window, oldest first."""
        return await self._run(lambda: self._program.history(id))

    async def replicas(self) -> Remembered:
        """The standbys that were seen, and those that were forgotten."""
        return await self._run(standby_program.read_remembered)

    async def forget_replica(self, name: str, *, by: str, why: str) -> None:
        """Declare a standby gone for good: it counts no more, until it is seen again."""
        await self._run(lambda: standby_program.forget(name, by=by, why=why))
        self._update_guarantee(await self._run(standby_program.read_server))

    async def create_outbox(self) -> None:
        """Create the table of the outbox, unless it is there."""
        await self.prepare()
        await self._database.run(outbox_program.create(self._options.layout))

    async def outbox(self, command: OutboxCommand[R], /) -> R:
        """Do something with the outbox."""
        return await self._run(lambda: outbox_program.run(command, self._program.now()))

    def join(self, connection: Any, /) -> AsyncCallerTransaction:
        """The store's records in the transaction of your connection or session."""
        calls = AsyncStoreCalls(self._identify, self._confirm_outcomes)
        return join_async(connection, self._options, self._program, calls)

    async def _identify(self) -> None:
        """Read again which store this is: its tables may have been created anew."""
        self._set_server(await self._database.run(self._prepare_schema()))

    async def close(self) -> None:
        await self._database.pool.close()

    def abandon(self) -> None:
        """Close without waiting, from any thread. Called when a dropped engine had opened it."""
        self._database.pool.abandon()

    def reopen(self) -> None:
        """Make a closed store usable again: its next use connects."""
        self._database.pool.reopen()

    async def prepare(self) -> None:
        """Bring the tables up to date and read the server's settings. Done once."""
        arrived = time.monotonic()
        loop = asyncio.get_running_loop()
        async with self._preparing.setdefault(loop, asyncio.Lock()):
            if self._is_prepared(arrived):
                return
            try:
                since = time.monotonic()
                self._set_server(await self._database.run(self._prepare_schema()), since)
            except OncekeyError as error:
                raise self._setup_failed(error) from error.__cause__

    async def _run(self, program: Callable[[], Statements[T]], end: float | None = None) -> T:
        if not self._ready:
            await self.prepare()
        is_trial = self._breaker.enter()
        replied: bool | None = None
        try:
            result = await self._run_with_retries(program, end or self._deadline())
            replied = True
        except Exception as error:
            replied = not isinstance(error, errors.NoReply)
            raise
        finally:
            self._breaker.leave(is_trial, replied=replied)
        if self._unconfirmed:
            await self._confirm()
        if self._memory.due:
            await self._remember()
        return result

    async def _run_with_retries(self, program: Callable[[], Statements[T]], end: float) -> T:
        for number in range(DEADLOCK_TRIES):
            try:
                return await self._database.run(program(), end)
            except StoreUnavailable as error:
                if not self._should_retry(error, number, end):
                    self._note_failure(error)
                    raise
        raise AssertionError("the last try returns or raises")

    async def _remember(self) -> None:
        """Write down which standbys were seen. The caller's own work is done and must not fail."""
        due = self._memory.take_due()
        try:
            await self._database.run(standby_program.remember(due))
        except OncekeyError as error:
            self._memory.note_failure(due, error)
        else:
            self._memory.note_written(due)

    async def _confirm(self) -> None:
        failures = self._unconfirmed.copy()
        try:
            server = await self._database.run(self._confirm_statements())
        except StoreUnavailable as error:
            raise errors.not_replicated() from error
        self._confirmed(failures, server)

    async def _confirm_outcomes(self, replies: Sequence[Reply]) -> None:
        """Return when the synchronous standbys have the outcomes in these replies."""
        if self._memory.due:  # seen by a claim in a caller's transaction
            await self._remember()
        if not self._tells_outcome(replies):
            return
        try:
            await self._database.run(self._outcome_statements())
        except StoreUnavailable as error:
            raise errors.not_replicated() from error
