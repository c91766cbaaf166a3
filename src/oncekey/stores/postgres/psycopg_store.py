"""`PostgresStore`: the sync store, on psycopg.

This module runs programs on connections (see psycopg_connections.py). The caller may give a pool
instead of an address; then each statement runs in a transaction of its own with our settings, in
one round trip. Every decision is in program.py.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from oncekey.core.commands import Command, Reply, Seen
from oncekey.core.errors import ConfigurationError, OncekeyError, StoreUnavailable
from oncekey.core.record import Record
from oncekey.core.search import Cursor, Measures, Page, Query
from oncekey.core.store import SWEEP_LIMIT_DEFAULT, CallerTransaction, Unfinished
from oncekey.stores.outbox_commands import OutboxCommand
from oncekey.stores.postgres import errors, outbox_program, standby_program
from oncekey.stores.postgres.caller_connections import join_sync
from oncekey.stores.postgres.caller_connections.base import StoreCalls
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.postgres_search import measure, search
from oncekey.stores.postgres.psycopg_connections import (
    CallerPool,
    OwnPool,
    PooledConnection,
    ReplyTimeout,
)
from oncekey.stores.postgres.queries import make_queries
from oncekey.stores.postgres.rows import Row
from oncekey.stores.postgres.schema import SchemaProgram, Script
from oncekey.stores.postgres.statements import Statement, Statements, is_write
from oncekey.stores.postgres.store_base import (
    DEADLOCK_TRIES,
    MAX_IN_FLIGHT_THREADS,
    SCRIPT_SECONDS,
    PostgresBase,
)
from oncekey.stores.postgres.unfinished import UnfinishedPages
from oncekey.stores.replica_sightings import Remembered
from oncekey.stores.server_watch import reply_deadline

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

R = TypeVar("R")
T = TypeVar("T")


class Database:
    """Runs programs on the connections to one database."""

    def __init__(self, address: str | ConnectionPool[Any], options: Options) -> None:
        self.pool: OwnPool | CallerPool
        if isinstance(address, str):
            self.pool = OwnPool(address, options)
        elif hasattr(address, "getconn") and hasattr(address, "putconn"):
            self.pool = CallerPool(address, options)
        else:
            raise ConfigurationError(
                f"a {type(address).__name__} is neither an address nor a psycopg_pool's pool"
            )
        is_ours = isinstance(address, str) and not options.pooler
        self._local = None if is_ours else [sql.encode() for sql in options.local_settings]
        self._queries = make_queries(options.layout)
        self._reply_timeout = options.reply_timeout_seconds
        self._call_seconds = options.call_us / 1_000_000

    def run(self, program: Statements[T] | SchemaProgram[T], end: float | None = None) -> T:
        """Run a program until `end` at the latest. Each of its statements is a transaction."""
        statement: Statement | Script | None = None
        written = False
        end = time.monotonic() + self._call_seconds if end is None else end
        with self.pool.acquire(end) as pooled:
            try:
                statement = next(program)
                while True:
                    rows = self._execute(pooled, statement, end)
                    written = written or is_write(statement)
                    if isinstance(statement, Script):  # may take longer than any call
                        end = time.monotonic() + self._call_seconds
                    statement = program.send(rows)
            except StopIteration as stop:
                result: T = stop.value
                return result
            except psycopg.Error as error:
                if isinstance(error, ReplyTimeout):
                    raise errors.reply_timeout() from error
                pooled.reset()
                translated = _translate_error(error, statement, broken=pooled.is_closed)
                if translated is None:
                    raise
                if written and isinstance(translated, StoreUnavailable):
                    translated.ambiguous = True  # an earlier statement was committed (S5)
                if errors.ends_session(error):
                    pooled.connection.close()
                raise translated from error

    def _execute(
        self, pooled: PooledConnection, statement: Statement | Script, end: float
    ) -> Sequence[Row]:
        if isinstance(statement, Script):
            pooled.start_timeout(SCRIPT_SECONDS)
            pooled.connection.execute(statement.sql.encode(), prepare=False)
            return ()
        now = time.monotonic()
        pooled.start_timeout(reply_deadline(now, self._reply_timeout, end) - now)
        cursor = pooled.cursor()
        query = self._queries[statement.name]
        params = query.encode(statement.params)
        if self._local is None:
            cursor.execute(query.raw, params, binary=True)
        else:
            self._execute_in_transaction(pooled, cursor, query.raw, params)
        rows: Sequence[Row] = cursor.fetchall() if cursor.description else ()
        if pooled.unreplicated:
            raise errors.not_replicated()
        return rows

    def _execute_in_transaction(
        self,
        pooled: PooledConnection,
        cursor: psycopg.RawCursor[Any],
        sql: bytes,
        params: Sequence[Any],
    ) -> None:
        """Run a query in a transaction with our settings, because the session belongs to somebody
        else. It takes one round trip; `connection.transaction()` would take three."""
        assert self._local is not None
        connection = pooled.connection
        with connection.pipeline() if psycopg.Pipeline.is_supported() else nullcontext():
            if connection.autocommit:  # other connections send BEGIN by themselves
                connection.execute(b"BEGIN", prepare=False)
            for setting in self._local:
                connection.execute(setting, prepare=False)
            cursor.execute(sql, params, binary=True, prepare=False)
            connection.execute(b"COMMIT", prepare=False)


def _translate_error(
    error: BaseException, statement: Statement | Script | None, *, broken: bool
) -> OncekeyError | None:
    is_script = isinstance(statement, Script)
    translate = errors.translate_migration_error if is_script else errors.translate_error
    return translate(error, broken=broken)


class PostgresStore(PostgresBase):
    """A sync store in a PostgreSQL database. Its first call connects.

    `address` is a URL or conninfo for psycopg, or a psycopg_pool.ConnectionPool of yours. The
    options are those of oncekey.stores.postgres.Options.
    """

    max_in_flight = MAX_IN_FLIGHT_THREADS

    def __init__(self, address: str | ConnectionPool[Any], **options: Any) -> None:
        super().__init__(options)
        self._database = Database(address, self._options)
        self._preparing: dict[
            int, threading.Lock
        ] = {}  # by process, because a fork may copy a held lock

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        end = self._deadline()
        batch = self._lock_aware(commands)
        while True:
            try:
                if batch.suspects:
                    check = partial(self._program.locked, sorted(batch.suspects))
                    batch.leave_out(self._run(check, end))
                apply = partial(self._program.apply, batch.free, end)
                replies = batch.merge(self._run(apply, end) if batch.free else [])
            except StoreUnavailable as error:
                if not batch.should_retry(error):
                    raise
            else:
                self._confirm_outcomes(replies)
                return replies

    def bind(self, check: bytes, /) -> Seen:
        mark = self._run(lambda: self._program.bind(check))
        if self._program.watch.is_due():
            self._update_guarantee(self._run(standby_program.read_server))
        return mark

    def elect(self, token: bytes, lease: int, /) -> bool:
        return self._run(lambda: self._program.elect(token, lease))

    def unfinished(self, after: int, limit: int, /) -> Unfinished:
        pages = UnfinishedPages(self._program.now(), after, limit)
        while not pages.is_done:
            self._run(pages.page)
        return pages.result

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /, *, tier: str = "all") -> int:
        return self._run(lambda: self._program.sweep(limit, tier))

    def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        return self._run(lambda: search(self._program.now(), query, limit, after))

    def measure(self) -> Measures:
        return self._run(lambda: measure(self._program.now()))

    def history(self, id: bytes, /) -> list[Record]:
        """Past generations of a key that are still in their audit window, oldest first."""
        return self._run(lambda: self._program.history(id))

    def replicas(self) -> Remembered:
        """The standbys that were seen, and those that were forgotten."""
        return self._run(standby_program.read_remembered)

    def forget_replica(self, name: str, *, by: str, why: str) -> None:
        """Declare a standby gone for good: it counts no more, until it is seen again."""
        self._run(lambda: standby_program.forget(name, by=by, why=why))
        self._update_guarantee(self._run(standby_program.read_server))

    def create_outbox(self) -> None:
        """Create the table of the outbox, unless it is there."""
        self.prepare()
        self._database.run(outbox_program.create(self._options.layout))

    def outbox(self, command: OutboxCommand[R], /) -> R:
        """Do something with the outbox."""
        return self._run(lambda: outbox_program.run(command, self._program.now()))

    def join(self, connection: Any, /) -> CallerTransaction:
        """The store's records in the transaction of your connection or session."""
        calls = StoreCalls(self._identify, self._confirm_outcomes)
        return join_sync(connection, self._options, self._program, calls)

    def _identify(self) -> None:
        """Read again which store this is: its tables may have been created anew."""
        self._set_server(self._database.run(self._prepare_schema()))

    def close(self) -> None:
        self._database.pool.close()

    def reopen(self) -> None:
        """Make a closed store usable again: its next use connects."""
        self._database.pool.reopen()

    def prepare(self) -> None:
        """Bring the tables up to date and read the server's settings. Done once."""
        arrived = time.monotonic()
        with self._preparing.setdefault(os.getpid(), threading.Lock()):
            if self._is_prepared(arrived):
                return
            try:
                since = time.monotonic()
                self._set_server(self._database.run(self._prepare_schema()), since)
            except OncekeyError as error:
                raise self._setup_failed(error) from error.__cause__

    def _run(self, program: Callable[[], Statements[T]], end: float | None = None) -> T:
        if not self._ready:
            self.prepare()
        is_trial = self._breaker.enter()
        replied: bool | None = None
        try:
            result = self._run_with_retries(program, end or self._deadline())
            replied = True
        except Exception as error:
            replied = not isinstance(error, errors.NoReply)
            raise
        finally:
            self._breaker.leave(is_trial, replied=replied)
        if self._unconfirmed:
            self._confirm()
        if self._memory.due:
            self._remember()
        return result

    def _run_with_retries(self, program: Callable[[], Statements[T]], end: float) -> T:
        for number in range(DEADLOCK_TRIES):
            try:
                return self._database.run(program(), end)
            except StoreUnavailable as error:
                if not self._should_retry(error, number, end):
                    self._note_failure(error)
                    raise
        raise AssertionError("the last try returns or raises")

    def _remember(self) -> None:
        """Write down which standbys were seen. The caller's own work is done and must not fail."""
        due = self._memory.take_due()
        try:
            self._database.run(standby_program.remember(due))
        except OncekeyError as error:
            self._memory.note_failure(due, error)
        else:
            self._memory.note_written(due)

    def _confirm(self) -> None:
        failures = self._unconfirmed.copy()
        try:
            server = self._database.run(self._confirm_statements())
        except StoreUnavailable as error:
            raise errors.not_replicated() from error
        self._confirmed(failures, server)

    def _confirm_outcomes(self, replies: Sequence[Reply]) -> None:
        """Return when the synchronous standbys have the outcomes in these replies."""
        if self._memory.due:  # seen by a claim in a caller's transaction
            self._remember()
        if not self._tells_outcome(replies):
            return
        try:
            self._database.run(self._outcome_statements())
        except StoreUnavailable as error:
            raise errors.not_replicated() from error
