"""`AsyncPostgresStore`: the asyncio store, on asyncpg.

Owns its connections: a few per event loop, opened when needed and kept. A pool of the caller's
may be given instead; then each statement runs in a transaction of its own with our settings. Every
decision is in program.py.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from oncekey.core.commands import Command, Reply
from oncekey.core.contract import SWEEP_LIMIT_DEFAULT, AsyncEnlisted
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import Record
from oncekey.stores.postgres import faults
from oncekey.stores.postgres.base import (
    DEADLOCK_TRIES,
    UNREPLICATED,
    PostgresBase,
    must_be_repeated,
    not_replicated,
)
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.program import Statement, Steps
from oncekey.stores.postgres.queries import literal, make_queries
from oncekey.stores.postgres.rows import Row
from oncekey.stores.postgres.schema import Preparation, Script

T = TypeVar("T")

CONNECT_SECONDS = 5.0
# The client's own timeout, should the server's statement_timeout not be heard of.
GRACE_SECONDS = 2.0


class Home:
    """The connections of one event loop."""

    def __init__(self, size: int) -> None:
        self.free: list[asyncpg.Connection[Any]] = []
        self.slots = asyncio.Semaphore(size)
        self.preparing = asyncio.Lock()


class AsyncDatabase:
    """Connections to one database, and programs run on them."""

    def __init__(self, address: str | asyncpg.Pool[Any], options: Options) -> None:
        self._given = None if isinstance(address, str) else address
        self._address = address
        self._options = options
        self._queries = make_queries(options.layout)
        self._begin = "; ".join(("BEGIN", *options.local_settings))
        self._wrap = self._given is not None or options.pooler
        self._homes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Home]
        self._homes = weakref.WeakKeyDictionary()
        self._process = os.getpid()
        self._inherited: list[Any] = []
        self._closed = False
        self._unreplicated: weakref.WeakSet[Any] = weakref.WeakSet()

    def home(self) -> Home:
        if self._process != os.getpid():
            # The parent's sockets: never closed from here, that would end its sessions.
            self._inherited.append(self._homes)
            self._homes = weakref.WeakKeyDictionary()
            self._process = os.getpid()
        loop = asyncio.get_running_loop()
        home = self._homes.get(loop)
        if home is None:
            home = self._homes.setdefault(loop, Home(self._options.pool_size))
        return home

    async def run(self, steps: Steps[T] | Preparation[T]) -> T:
        """Run a program; each of its statements is a transaction."""
        async with self._connection() as connection:
            try:
                statement = next(steps)
                while True:
                    statement = steps.send(await self._execute(connection, statement))
            except StopIteration as stop:
                result: T = stop.value
                return result
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
                meaning = faults.serving(error, broken=connection.is_closed())
                if meaning is None:
                    raise
                raise meaning from error
            except TimeoutError as error:
                connection.terminate()
                raise StoreUnavailable("the server did not answer in time") from error

    async def _execute(
        self, connection: asyncpg.Connection[Any], statement: Statement | Script
    ) -> Sequence[Row]:
        if isinstance(statement, Script):
            try:
                await connection.execute(statement.sql, timeout=None)
            except asyncpg.PostgresError:
                await connection.execute("ROLLBACK")  # the script's own BEGIN is still open
                raise
            return ()
        query = self._queries[statement.name]
        params = [literal(k, v) for k, v in zip(query.kinds, statement.params, strict=True)]
        if self._wrap:
            rows = await self._in_transaction(connection, query.sql, params)
        else:
            rows = await connection.fetch(query.sql, *params)
        if connection in self._unreplicated:
            self._unreplicated.discard(connection)
            raise not_replicated()
        return rows

    async def _in_transaction(
        self, connection: asyncpg.Connection[Any], sql: str, params: Sequence[Any]
    ) -> Sequence[Row]:
        """With our settings, on a connection whose session is not ours to set."""
        await connection.execute(self._begin)
        try:
            rows: Sequence[Row] = await connection.fetch(sql, *params)
        except asyncpg.PostgresError:
            await connection.execute("ROLLBACK")
            raise
        await connection.execute("COMMIT")
        return rows

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection[Any]]:
        if self._closed:
            raise StoreUnavailable("the store was closed", ambiguous=False, final=True)
        home = self.home()
        seconds = self._options.us("pool_timeout") / 1_000_000
        try:
            await asyncio.wait_for(home.slots.acquire(), seconds)
        except TimeoutError:
            raise StoreUnavailable(
                f"none of {self._options.pool_size} connections became free within pool_timeout",
                ambiguous=False,
            ) from None
        try:
            connection = await self._take(home)
            try:
                yield connection
            finally:
                await self._give_back(home, connection)
        finally:
            home.slots.release()

    async def _take(self, home: Home) -> asyncpg.Connection[Any]:
        while home.free:
            connection = home.free.pop()
            if not connection.is_closed():
                return connection
        options = self._options
        try:
            if self._given is not None:
                given: Any = await self._given.acquire(timeout=options.us("pool_timeout") / 1e6)
                given.add_log_listener(self._listen)
                return given
            cache = {"statement_cache_size": 0} if options.pooler else {}
            session = {} if options.pooler else {**options.session, **options.planning}
            opened: asyncpg.Connection[Any] = await asyncpg.connect(
                self._address,
                timeout=CONNECT_SECONDS,
                command_timeout=options.us("statement_timeout") / 1e6 + GRACE_SECONDS,
                server_settings={"application_name": "oncekey", **session},
                **cache,
            )
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise StoreUnavailable(faults.text(error), ambiguous=False) from error
        opened.add_log_listener(self._listen)
        return opened

    async def _give_back(self, home: Home, connection: asyncpg.Connection[Any]) -> None:
        if self._given is not None:
            if not connection.is_closed():
                connection.remove_log_listener(self._listen)
            await self._given.release(connection)
        elif connection.is_closed():
            pass
        elif self._closed or connection.is_in_transaction():
            connection.terminate()
        else:
            home.free.append(connection)

    def _listen(self, connection: Any, message: Any) -> None:
        """Notice commits that were not replicated: the server only warns."""
        if message.server_source_function == UNREPLICATED:
            self._unreplicated.add(connection)

    async def close(self) -> None:
        self._closed = True
        here = asyncio.get_running_loop()
        for loop, home in list(self._homes.items()):
            while home.free:
                connection = home.free.pop()
                if loop is here:
                    await connection.close()
                elif not loop.is_closed():
                    loop.call_soon_threadsafe(connection.terminate)


class AsyncPostgresStore(PostgresBase):
    """The same store for asyncio, opened by its first call; several event loops may share it.

    `address` is a URL for asyncpg, or an asyncpg.Pool of yours (of one event loop). The options
    are those of oncekey.stores.postgres.Options.
    """

    def __init__(self, address: str | asyncpg.Pool[Any], **options: Any) -> None:
        super().__init__(options)
        self._database = AsyncDatabase(address, self._options)

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return await self._run(lambda: self._program.apply(commands))

    async def bind(self, check: bytes, /) -> None:
        await self._run(lambda: self._program.bind(check))

    async def elect(self, token: bytes, lease: int, /) -> bool:
        return await self._run(lambda: self._program.elect(token, lease))

    async def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /, *, tier: str = "all") -> int:
        return await self._run(lambda: self._program.sweep(limit, tier))

    async def history(self, id: bytes, /) -> list[Record]:
        """Past generations of a key that are still in their audit window, oldest first."""
        return await self._run(lambda: self._program.history(id))

    def enlist(self, connection: Any, /) -> AsyncEnlisted:
        """The same records on your connection or session, inside its transaction."""
        from oncekey.stores.postgres.connections import enlist_async

        return enlist_async(connection, self._options, self._program)

    async def close(self) -> None:
        await self._database.close()

    async def prepare(self) -> None:
        """Bring the tables up to date and learn what the server promises; once."""
        async with self._database.home().preparing:
            if not self._ready:
                self._learn(await self._database.run(self._preparation()))

    async def _run(self, program: Callable[[], Steps[T]]) -> T:
        if not self._ready:
            await self.prepare()
        for turn in range(DEADLOCK_TRIES):
            try:
                return await self._database.run(program())
            except StoreUnavailable as error:
                if not must_be_repeated(error, turn):
                    raise
        raise AssertionError("the last turn returns or raises")
