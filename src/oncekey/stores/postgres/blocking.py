"""`PostgresStore`: the blocking store, on a psycopg pool.

Owns its connections: how one is had, what is said when there is none, and that a broken one is not
used again. A pool of the caller's may be given instead; then each statement runs in a transaction
of its own with our settings, in one round trip. Every decision is in program.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from oncekey.core.commands import Command, Reply
from oncekey.core.contract import SWEEP_LIMIT_DEFAULT, Enlisted
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


class Database:
    """Connections to one database, and programs run on them."""

    def __init__(self, address: str | ConnectionPool[Any], options: Options) -> None:
        self._address = address
        self._options = options
        self._queries = make_queries(options.layout)
        self._given = address if isinstance(address, ConnectionPool) else None
        self._local = options.local_settings if self._given or options.pooler else None
        self._pools: dict[int, ConnectionPool[Any]] = {}  # by process: a fork shares no socket
        self._lock = threading.Lock()
        self._closed = False

    def run(self, steps: Steps[T] | Preparation[T]) -> T:
        """Run a program; each of its statements is a transaction."""
        with self._connection() as connection:
            cursor: psycopg.RawCursor[Any] = psycopg.RawCursor(connection, row_factory=tuple_row)
            try:
                statement = next(steps)
                while True:
                    statement = steps.send(self._execute(connection, cursor, statement))
            except StopIteration as stop:
                result: T = stop.value
                return result
            except psycopg.Error as error:
                meaning = faults.serving(error, broken=connection.broken)
                if meaning is None:
                    raise
                raise meaning from error

    def _execute(
        self,
        connection: psycopg.Connection[Any],
        cursor: psycopg.RawCursor[Any],
        statement: Statement | Script,
    ) -> Sequence[Row]:
        if isinstance(statement, Script):
            try:
                connection.execute(statement.sql.encode(), prepare=False)
            except psycopg.Error:
                connection.rollback()  # the script's own BEGIN is still open
                raise
            return ()
        query = self._queries[statement.name]
        params = [literal(k, v) for k, v in zip(query.kinds, statement.params, strict=True)]
        if self._local is None:
            cursor.execute(query.sql.encode(), params, binary=True)
        else:
            with connection.pipeline(), connection.transaction():
                for setting in self._local:
                    connection.execute(setting.encode(), prepare=False)
                cursor.execute(query.sql.encode(), params, binary=True, prepare=False)
        rows: Sequence[Row] = cursor.fetchall() if cursor.description else ()
        if getattr(connection, "oncekey_unreplicated", False):
            connection.oncekey_unreplicated = False  # type: ignore[attr-defined]
            raise not_replicated()
        return rows

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        if self._closed:
            raise StoreUnavailable("the store was closed", ambiguous=False, final=True)
        pool = self._given or self._pool()
        try:
            connection = pool.getconn(self._options.us("pool_timeout") / 1_000_000)
        except (PoolTimeout, PoolClosed) as error:
            raise self._unreachable(error) from error
        try:
            yield connection
        finally:
            broken = connection.broken
            pool.putconn(connection)
            if broken:
                pool.check()  # a restart broke the idle ones as well

    def _pool(self) -> ConnectionPool[Any]:
        pool = self._pools.get(os.getpid())
        if pool is None:
            with self._lock:
                pool = self._pools.get(os.getpid())
                if pool is None:
                    pool = self._open()
                    self._pools[os.getpid()] = pool
        return pool

    def _open(self) -> ConnectionPool[Any]:
        options = self._options
        assert isinstance(self._address, str)
        kwargs: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0}
        if options.pooler:
            kwargs["prepare_threshold"] = None
        else:
            given = psycopg.conninfo.conninfo_to_dict(self._address).get("options")
            settings = {**options.session, **options.planning}.items()
            ours = ["-c " + f"{name}={value}".replace(" ", "\\ ") for name, value in settings]
            kwargs["options"] = " ".join([str(given), *ours] if given else ours)
        kwargs.setdefault("application_name", "oncekey")
        return ConnectionPool(
            self._address,
            kwargs=kwargs,
            min_size=1,
            max_size=options.pool_size,
            configure=_listen,
            name="oncekey",
            open=True,
        )

    def _unreachable(self, error: Exception) -> StoreUnavailable:
        """Why there is no connection: the pool only says that there is none."""
        if isinstance(error, PoolTimeout) and isinstance(self._address, str):
            try:
                with psycopg.connect(self._address, connect_timeout=2, autocommit=True):
                    pass
            except psycopg.Error as why:
                return StoreUnavailable(faults.text(why), ambiguous=False)
        return StoreUnavailable(
            f"no connection became free within pool_timeout: {error}", ambiguous=False
        )

    def close(self) -> None:
        self._closed = True
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            pool.close()


def _listen(connection: psycopg.Connection[Any]) -> None:
    """Notice commits that were not replicated: the server only warns."""

    def hear(notice: psycopg.errors.Diagnostic) -> None:
        if notice.source_function == UNREPLICATED:
            connection.oncekey_unreplicated = True  # type: ignore[attr-defined]

    connection.add_notice_handler(hear)


class PostgresStore(PostgresBase):
    """A store in a PostgreSQL database, opened by its first call.

    `address` is a URL or conninfo for psycopg, or a psycopg_pool.ConnectionPool of yours. The
    options are those of oncekey.stores.postgres.Options.
    """

    def __init__(self, address: str | ConnectionPool[Any], **options: Any) -> None:
        super().__init__(options)
        self._database = Database(address, self._options)
        self._preparing = threading.Lock()

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return self._run(lambda: self._program.apply(commands))

    def bind(self, check: bytes, /) -> None:
        self._run(lambda: self._program.bind(check))

    def elect(self, token: bytes, lease: int, /) -> bool:
        return self._run(lambda: self._program.elect(token, lease))

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /, *, tier: str = "all") -> int:
        return self._run(lambda: self._program.sweep(limit, tier))

    def history(self, id: bytes, /) -> list[Record]:
        """Past generations of a key that are still in their audit window, oldest first."""
        return self._run(lambda: self._program.history(id))

    def enlist(self, connection: Any, /) -> Enlisted:
        """The same records on your connection or session, inside its transaction."""
        from oncekey.stores.postgres.connections import enlist_blocking

        return enlist_blocking(connection, self._options, self._program)

    def close(self) -> None:
        self._database.close()

    def prepare(self) -> None:
        """Bring the tables up to date and learn what the server promises; once."""
        with self._preparing:
            if not self._ready:
                self._learn(self._database.run(self._preparation()))

    def _run(self, program: Callable[[], Steps[T]]) -> T:
        if not self._ready:
            self.prepare()
        for turn in range(DEADLOCK_TRIES):
            try:
                return self._database.run(program())
            except StoreUnavailable as error:
                if not must_be_repeated(error, turn):
                    raise
        raise AssertionError("the last turn returns or raises")
