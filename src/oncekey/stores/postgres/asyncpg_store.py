"""`AsyncPostgresStore`: the asyncio store, on asyncpg.

Owns running programs on its connections (see asyncpg_connections.py). A pool of the caller's may be
given instead of an address; then each statement runs in a transaction of its own with our
settings. Every decision is in program.py.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import asyncpg

from oncekey.core.commands import Command, Reply
from oncekey.core.errors import ConfigurationError, OncekeyError, StoreUnavailable
from oncekey.core.record import Record
from oncekey.core.store import SWEEP_LIMIT_DEFAULT, AsyncCallerTransaction, Unfinished
from oncekey.stores.postgres import errors
from oncekey.stores.postgres.asyncpg_connections import (
    CANCEL_SECONDS,
    ERRORS,
    GivenLines,
    Line,
    OwnLines,
)
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.program import Statement, Steps, is_write
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

T = TypeVar("T")


class AsyncDatabase:
    """Programs run on the connections to one database."""

    def __init__(self, address: str | asyncpg.Pool[Any], options: Options) -> None:
        self.lines: OwnLines | GivenLines
        if isinstance(address, str):
            self.lines = OwnLines(address, options)
        elif hasattr(address, "acquire") and hasattr(address, "release"):
            self.lines = GivenLines(address, options)
        else:
            raise ConfigurationError(
                f"a {type(address).__name__} is neither an address nor an asyncpg.Pool"
            )
        self._wrap = options.pooler or not isinstance(address, str)
        self._begin = "; ".join(("BEGIN", *options.local_settings))
        self._queries = make_queries(options.layout)
        self._seconds = options.patience_seconds
        self._call_seconds = options.call_us / 1_000_000

    async def run(self, steps: Steps[T] | Preparation[T], end: float | None = None) -> T:
        """Run a program, until `end` at the latest; each of its statements is a transaction."""
        statement: Statement | Script | None = None
        written = False
        end = time.monotonic() + self._call_seconds if end is None else end
        async with self.lines.lend(end) as line:
            try:
                statement = next(steps)
                while True:
                    line.begin()
                    rows = await self._execute(line, statement, end)
                    line.is_idle = True
                    written = written or is_write(statement)
                    if isinstance(statement, Script):  # which may take longer than any call
                        end = time.monotonic() + self._call_seconds
                    statement = steps.send(rows)
            except StopIteration as stop:
                result: T = stop.value
                return result
            except TimeoutError as error:
                await line.recover()
                if line.unreplicated:
                    raise errors.not_replicated() from error
                if line.is_closed:  # not even to being asked to stop
                    raise errors.no_answer() from error
                raise StoreUnavailable(
                    "no answer from the server in time", timed_out=True
                ) from error
            except ERRORS as error:
                # A server's error is the regular end of a statement, unless it is the last word.
                line.is_idle = isinstance(error, asyncpg.PostgresError)
                told = errors.making if isinstance(statement, Script) else errors.serving
                meaning = told(error, broken=line.is_closed)
                if meaning is None:
                    raise
                if written and isinstance(meaning, StoreUnavailable):
                    meaning.ambiguous = True  # what was committed before this statement stays (S5)
                if errors.is_over(error):
                    line.end()
                raise meaning from error

    async def _execute(
        self, line: Line, statement: Statement | Script, end: float
    ) -> Sequence[Row]:
        if isinstance(statement, Script):
            await self._script(line, statement.sql)
            return ()
        now = time.monotonic()
        seconds = max(0.0, answer_by(now, self._seconds, end) - now)
        query = self._queries[statement.name]
        params = [literal(k, v) for k, v in zip(query.kinds, statement.params, strict=True)]
        if self._wrap:
            rows = await self._in_transaction(line, query.sql, params, seconds)
        else:
            rows = await line.connection.fetch(query.sql, *params, timeout=seconds)
        if line.unreplicated:
            line.is_idle = True
            raise errors.not_replicated()
        return rows

    async def _script(self, line: Line, sql: str) -> None:
        try:
            await line.connection.execute(sql, timeout=SCRIPT_SECONDS)
        except asyncpg.PostgresError:
            await self._roll_back(line)  # the script's own BEGIN is still open
            raise

    async def _in_transaction(
        self, line: Line, sql: str, params: Sequence[Any], seconds: float
    ) -> Sequence[Row]:
        """With our settings, on a connection whose session is not ours to set."""
        connection = line.connection
        try:
            await connection.execute(self._begin, timeout=seconds)
            rows: Sequence[Row] = await connection.fetch(sql, *params, timeout=seconds)
        except asyncpg.PostgresError:
            await self._roll_back(line)
            raise
        await connection.execute("COMMIT", timeout=seconds)
        return rows

    async def _roll_back(self, line: Line) -> None:
        if not line.is_closed:
            await line.connection.execute("ROLLBACK", timeout=CANCEL_SECONDS)


class AsyncPostgresStore(PostgresBase):
    """The same store for asyncio, opened by its first call; several event loops may share it.

    `address` is a URL for asyncpg, or an asyncpg.Pool of yours (of one event loop). The options
    are those of oncekey.stores.postgres.Options.
    """

    def __init__(self, address: str | asyncpg.Pool[Any], **options: Any) -> None:
        super().__init__(options)
        self._database = AsyncDatabase(address, self._options)
        self._preparing: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
        self._preparing = weakref.WeakKeyDictionary()

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        end = self._end()
        batch = self._isolation(commands)
        while True:
            try:
                if batch.suspects:
                    asked = partial(self._program.locked, sorted(batch.suspects))
                    batch.found(await self._run(asked, end))
                work = partial(self._program.apply, batch.free, end)
                return batch.merge(await self._run(work, end) if batch.free else [])
            except StoreUnavailable as error:
                if not batch.goes_on(error):
                    raise

    async def bind(self, check: bytes, /) -> None:
        await self._run(lambda: self._program.bind(check))
        if self._program.watch.is_due():
            self._promise(await self._run(self._program.server))

    async def elect(self, token: bytes, lease: int, /) -> bool:
        return await self._run(lambda: self._program.elect(token, lease))

    async def unfinished(self, after: int, limit: int, /) -> Unfinished:
        listing = Listing(self._program.now(), after, limit)
        while not listing.is_done:
            await self._run(listing.page)
        return listing.result

    async def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /, *, tier: str = "all") -> int:
        return await self._run(lambda: self._program.sweep(limit, tier))

    async def history(self, id: bytes, /) -> list[Record]:
        """Past generations of a key that are still in their audit window, oldest first."""
        return await self._run(lambda: self._program.history(id))

    def join(self, connection: Any, /) -> AsyncCallerTransaction:
        """The same records on your connection or session, inside its transaction."""
        from oncekey.stores.postgres.callers import enlist_async

        return enlist_async(connection, self._options, self._program, self._identify)

    async def _identify(self) -> None:
        """Read again which store this is: its tables may have been made anew."""
        self._learn(await self._database.run(self._preparation()))

    async def close(self) -> None:
        await self._database.lines.close()

    def abandon(self) -> None:
        """Close without waiting, from any thread: the engine that opened it was dropped."""
        self._database.lines.abandon()

    def reopen(self) -> None:
        """After `close`: the next use connects again."""
        self._database.lines.reopen()

    async def prepare(self) -> None:
        """Bring the tables up to date and learn what the server promises; once."""
        arrived = time.monotonic()
        loop = asyncio.get_running_loop()
        async with self._preparing.setdefault(loop, asyncio.Lock()):
            if self._is_prepared(arrived):
                return
            try:
                since = time.monotonic()
                self._learn(await self._database.run(self._preparation()), since)
            except OncekeyError as error:
                raise self._failed(error) from error.__cause__

    async def _run(self, program: Callable[[], Steps[T]], end: float | None = None) -> T:
        if not self._ready:
            await self.prepare()
        tries = self._breaker.enter()
        answered: bool | None = None
        try:
            result = await self._repeated(program, end or self._end())
            answered = True
        except Exception as error:
            answered = not isinstance(error, errors.NoAnswer)
            raise
        finally:
            self._breaker.leave(tries, answered=answered)
        if self._doubts:
            await self._confirm()
        return result

    async def _repeated(self, program: Callable[[], Steps[T]], end: float) -> T:
        for turn in range(DEADLOCK_TRIES):
            try:
                return await self._database.run(program(), end)
            except StoreUnavailable as error:
                if not self._must_be_repeated(error, turn, end):
                    self._note(error)
                    raise
        raise AssertionError("the last turn returns or raises")

    async def _confirm(self) -> None:
        doubts = self._doubts.copy()
        try:
            server = await self._database.run(self._confirmation())
        except StoreUnavailable as error:
            raise errors.not_replicated() from error
        self._confirmed(doubts, server)
