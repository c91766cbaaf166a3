"""`PostgresStore`: the blocking store, on psycopg.

Owns running programs on its connections (see psycopg_connections.py). A pool of the caller's may be
given instead of an address; then each statement runs in a transaction of its own with our
settings, in one round trip. Every decision is in program.py.
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

from oncekey.core.commands import Command, Reply
from oncekey.core.errors import ConfigurationError, OncekeyError, StoreUnavailable
from oncekey.core.record import Record
from oncekey.core.store import SWEEP_LIMIT_DEFAULT, CallerTransaction, Unfinished
from oncekey.stores.postgres import errors
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.program import Statement, Steps, is_write
from oncekey.stores.postgres.psycopg_connections import (
    GivenLines,
    Line,
    OwnLines,
    Silence,
)
from oncekey.stores.postgres.queries import literal, make_queries
from oncekey.stores.postgres.rows import Row
from oncekey.stores.postgres.schema import Preparation, Script
from oncekey.stores.postgres.server_clock import answer_by
from oncekey.stores.postgres.store_base import (
    DEADLOCK_TRIES,
    SCRIPT_SECONDS,
    PostgresBase,
)
from oncekey.stores.postgres.unfinished import Listing

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

T = TypeVar("T")


class Database:
    """Programs run on the connections to one database."""

    def __init__(self, address: str | ConnectionPool[Any], options: Options) -> None:
        self.lines: OwnLines | GivenLines
        if isinstance(address, str):
            self.lines = OwnLines(address, options)
        elif hasattr(address, "getconn") and hasattr(address, "putconn"):
            self.lines = GivenLines(address, options)
        else:
            raise ConfigurationError(
                f"a {type(address).__name__} is neither an address nor a psycopg_pool's pool"
            )
        is_ours = isinstance(address, str) and not options.pooler
        self._local = None if is_ours else [word.encode() for word in options.local_settings]
        self._queries = make_queries(options.layout)
        self._seconds = options.patience_seconds
        self._call_seconds = options.call_us / 1_000_000

    def run(self, steps: Steps[T] | Preparation[T], end: float | None = None) -> T:
        """Run a program, until `end` at the latest; each of its statements is a transaction."""
        statement: Statement | Script | None = None
        written = False
        end = time.monotonic() + self._call_seconds if end is None else end
        with self.lines.lend(end) as line:
            try:
                statement = next(steps)
                while True:
                    rows = self._execute(line, statement, end)
                    written = written or is_write(statement)
                    if isinstance(statement, Script):  # which may take longer than any call
                        end = time.monotonic() + self._call_seconds
                    statement = steps.send(rows)
            except StopIteration as stop:
                result: T = stop.value
                return result
            except psycopg.Error as error:
                if isinstance(error, Silence):
                    raise errors.no_answer() from error
                line.tidy()
                told = errors.making if isinstance(statement, Script) else errors.serving
                meaning = told(error, broken=line.is_closed)
                if meaning is None:
                    raise
                if written and isinstance(meaning, StoreUnavailable):
                    meaning.ambiguous = True  # what was committed before this statement stays (S5)
                if errors.is_over(error):
                    line.connection.close()
                raise meaning from error

    def _execute(self, line: Line, statement: Statement | Script, end: float) -> Sequence[Row]:
        if isinstance(statement, Script):
            line.allow(SCRIPT_SECONDS)
            line.connection.execute(statement.sql.encode(), prepare=False)
            return ()
        now = time.monotonic()
        line.allow(answer_by(now, self._seconds, end) - now)
        cursor = line.cursor()
        query = self._queries[statement.name]
        params = [literal(k, v) for k, v in zip(query.kinds, statement.params, strict=True)]
        if self._local is None:
            cursor.execute(query.sql.encode(), params, binary=True)
        else:
            self._execute_in_transaction(line, cursor, query.sql.encode(), params)
        rows: Sequence[Row] = cursor.fetchall() if cursor.description else ()
        if line.unreplicated:
            raise errors.not_replicated()
        return rows

    def _execute_in_transaction(
        self, line: Line, cursor: psycopg.RawCursor[Any], sql: bytes, params: Sequence[Any]
    ) -> None:
        """With our settings, on a connection whose session is not ours to set: in one round trip,
        for which `connection.transaction()` would need three."""
        assert self._local is not None
        connection = line.connection
        with connection.pipeline() if psycopg.Pipeline.is_supported() else nullcontext():
            if connection.autocommit:  # others send it by themselves
                connection.execute(b"BEGIN", prepare=False)
            for setting in self._local:
                connection.execute(setting, prepare=False)
            cursor.execute(sql, params, binary=True, prepare=False)
            connection.execute(b"COMMIT", prepare=False)


class PostgresStore(PostgresBase):
    """A store in a PostgreSQL database, opened by its first call.

    `address` is a URL or conninfo for psycopg, or a psycopg_pool.ConnectionPool of yours. The
    options are those of oncekey.stores.postgres.Options.
    """

    def __init__(self, address: str | ConnectionPool[Any], **options: Any) -> None:
        super().__init__(options)
        self._database = Database(address, self._options)
        self._preparing: dict[int, threading.Lock] = {}  # by process: a fork may copy a held lock

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        end = self._end()
        batch = self._isolation(commands)
        while True:
            try:
                if batch.suspects:
                    asked = partial(self._program.locked, sorted(batch.suspects))
                    batch.found(self._run(asked, end))
                work = partial(self._program.apply, batch.free, end)
                return batch.merge(self._run(work, end) if batch.free else [])
            except StoreUnavailable as error:
                if not batch.goes_on(error):
                    raise

    def bind(self, check: bytes, /) -> None:
        self._run(lambda: self._program.bind(check))
        if self._program.watch.is_due():
            self._promise(self._run(self._program.server))

    def elect(self, token: bytes, lease: int, /) -> bool:
        return self._run(lambda: self._program.elect(token, lease))

    def unfinished(self, after: int, limit: int, /) -> Unfinished:
        listing = Listing(self._program.now(), after, limit)
        while not listing.is_done:
            self._run(listing.page)
        return listing.result

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /, *, tier: str = "all") -> int:
        return self._run(lambda: self._program.sweep(limit, tier))

    def history(self, id: bytes, /) -> list[Record]:
        """Past generations of a key that are still in their audit window, oldest first."""
        return self._run(lambda: self._program.history(id))

    def join(self, connection: Any, /) -> CallerTransaction:
        """The same records on your connection or session, inside its transaction."""
        from oncekey.stores.postgres.callers import enlist_blocking

        return enlist_blocking(connection, self._options, self._program, self._identify)

    def _identify(self) -> None:
        """Read again which store this is: its tables may have been made anew."""
        self._learn(self._database.run(self._preparation()))

    def close(self) -> None:
        self._database.lines.close()

    def reopen(self) -> None:
        """After `close`: the next use connects again."""
        self._database.lines.reopen()

    def prepare(self) -> None:
        """Bring the tables up to date and learn what the server promises; once."""
        arrived = time.monotonic()
        with self._preparing.setdefault(os.getpid(), threading.Lock()):
            if self._is_prepared(arrived):
                return
            try:
                since = time.monotonic()
                self._learn(self._database.run(self._preparation()), since)
            except OncekeyError as error:
                raise self._failed(error) from error.__cause__

    def _run(self, program: Callable[[], Steps[T]], end: float | None = None) -> T:
        if not self._ready:
            self.prepare()
        tries = self._breaker.enter()
        answered: bool | None = None
        try:
            result = self._repeated(program, end or self._end())
            answered = True
        except Exception as error:
            answered = not isinstance(error, errors.NoAnswer)
            raise
        finally:
            self._breaker.leave(tries, answered=answered)
        if self._doubts:
            self._confirm()
        return result

    def _repeated(self, program: Callable[[], Steps[T]], end: float) -> T:
        for turn in range(DEADLOCK_TRIES):
            try:
                return self._database.run(program(), end)
            except StoreUnavailable as error:
                if not self._must_be_repeated(error, turn, end):
                    self._note(error)
                    raise
        raise AssertionError("the last turn returns or raises")

    def _confirm(self) -> None:
        doubts = self._doubts.copy()
        try:
            server = self._database.run(self._confirmation())
        except StoreUnavailable as error:
            raise errors.not_replicated() from error
        self._confirmed(doubts, server)
