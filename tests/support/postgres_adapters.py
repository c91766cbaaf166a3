"""PostgreSQL stores on either driver behind sync methods, and servers that tests may break."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg_pool import ConnectionPool
from tests.support.postgres_stores import server
from tests.support.servers import PgBouncer, require
from tests.support.servers.postgres import Postgres, Settings

from oncekey.core.commands import Claim, Claimed, Finish, Look, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import Record, State
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.once import Once
from oncekey.stores.postgres import AsyncPostgresStore, PostgresStore
from oncekey.testing.contract.engine_case import wait_until_true
from oncekey.testing.sync_facade import LoopThread, SyncOnce

STORE_DRIVERS = ["psycopg", "asyncpg"]
LEASE = 30_000_000
KEEP = 3_600_000_000


class StoreAdapter:
    """A sync or async store with sync methods: coroutines are run on the adapter's loop."""

    def __init__(self, store: Any, loop: LoopThread | None) -> None:
        self.store = store
        self.loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if self.loop is None or not inspect.iscoroutinefunction(found):
            return found
        loop = self.loop
        return lambda *args, **options: loop.run(found(*args, **options))

    def claim(self, claim: Claim) -> Claimed:
        (reply,) = self.apply([claim])
        assert isinstance(reply, Claimed), reply
        return reply

    def record(self, id: bytes) -> Record | None:
        (reply,) = self.apply([Look(id)])
        assert isinstance(reply, Seen)
        return reply.record


class StoreAdapters:
    """Opens stores and engines of one driver, and closes them all."""

    def __init__(self, driver: str) -> None:
        self.driver = driver
        self.is_async = driver == "asyncpg"
        self._loop: LoopThread | None = None
        self._open: list[Any] = []
        self._threads = ThreadPoolExecutor(16)

    @property
    def loop(self) -> LoopThread | None:
        if self.is_async and self._loop is None:
            self._loop = LoopThread()
        return self._loop

    def store(self, address: Any, **options: Any) -> StoreAdapter:
        kind = AsyncPostgresStore if self.is_async else PostgresStore
        adapter = StoreAdapter(kind(address, **options), self.loop)
        self._open.append(adapter)
        return adapter

    def once(self, adapter: StoreAdapter, **options: Any) -> Any:
        """Return an engine with sync methods on the store."""
        if self.loop is None:
            return Once(adapter.store, **options)
        return SyncOnce(AsyncOnce(adapter.store, **options), self.loop)

    def start(self, call: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
        """Call a function in a thread of its own."""
        return self._threads.submit(call, *args, **options)

    def close(self) -> None:
        self._threads.shutdown()
        for adapter in self._open:
            adapter.close()
        if self._loop is not None:
            self._loop.close()


def fresh_server(settings: Settings | None = None, **options: Any) -> Postgres:
    """A running server of its own that the test may stop, kill and fill."""
    postgres = require(lambda: Postgres(server().base, settings=settings, **options))
    postgres.start()
    return postgres


def make_claim(name: str, owner: str = "owner", **changes: Any) -> Claim:
    terms: dict[str, Any] = {"lease": LEASE, "keep": KEEP, "audit": 0, "retry_safe": False}
    return Claim(token(name), token(owner), b"\x01f", **{**terms, **changes})


def make_finish(claim: Claim, fence: int, body: bytes = b"done") -> Finish:
    return Finish(claim.id, claim.owner, fence, State.SUCCEEDED, body)


UNCONFIRMED = "no synchronous standby has confirmed"


def unconfirmed(store: StoreAdapter, command: object) -> None:
    """Send a command until it is said that no synchronous standby has its record. On a busy machine
    a statement may be cancelled before its commit, and the calls behind it are not sent for a
    while: then it is sent again, with more patience each time."""
    database, patience = store._database, store._database._reply_timeout

    def is_said() -> bool:
        with pytest.raises(StoreUnavailable) as raised:
            store.apply([command])
        if UNCONFIRMED in str(raised.value):
            assert raised.value.ambiguous
            return True
        if raised.value.ambiguous:
            database._reply_timeout *= 2
        return False

    wait_until_true(is_said)
    database._reply_timeout = patience


def token(name: str) -> bytes:
    return name.encode().ljust(16, b".")[:16]


@contextmanager
def locked(postgres: Postgres, table: str) -> Iterator[psycopg.Connection[Any]]:
    """Another session holds a lock on the whole table."""
    with closing(psycopg.connect(postgres.url())) as other:
        other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        yield other


def waiting(postgres: Postgres, schema: str) -> int:
    """Return how many sessions wait for a lock in a statement about this schema."""
    query = """SELECT count(*) FROM pg_stat_activity
               WHERE wait_event_type = 'Lock' AND position(%s IN query) > 0
                 AND backend_type = 'client backend'"""  # autovacuum waits too
    rows = postgres.execute(query, (schema,))
    return int(rows[0][0])


# --- addresses of a server ------------------------------------------------------------------------

Reach = Callable[[StoreAdapters, Postgres, ExitStack], tuple[Any, dict[str, Any]]]


def direct_url(
    adapters: StoreAdapters, postgres: Postgres, stack: ExitStack
) -> tuple[Any, dict[str, Any]]:
    return postgres.url(), {}


def caller_pool(
    adapters: StoreAdapters, postgres: Postgres, stack: ExitStack
) -> tuple[Any, dict[str, Any]]:
    """A pool of the caller's, whose sessions have no timeouts."""
    options = "-c statement_timeout=0 -c lock_timeout=0"
    if adapters.loop is None:
        pool = ConnectionPool(
            postgres.url(), kwargs={"options": options}, min_size=1, max_size=2, open=True
        )
        stack.callback(pool.close)
        return pool, {}
    loop = adapters.loop

    async def make() -> Any:
        settings = {"statement_timeout": "0", "lock_timeout": "0"}
        return await asyncpg.create_pool(
            postgres.url(), min_size=1, max_size=2, server_settings=settings
        )

    async_pool = loop.run(make())
    stack.callback(lambda: loop.run(async_pool.close()))
    return async_pool, {}


def through_pgbouncer(
    adapters: StoreAdapters, postgres: Postgres, stack: ExitStack
) -> tuple[Any, dict[str, Any]]:
    bouncer = stack.enter_context(require(lambda: PgBouncer(postgres)))
    return bouncer.url(), {"pooler": True}


# --- standbys -------------------------------------------------------------------------------------


def with_standby(
    primary: Postgres, *, synchronous: bool = False, through: int | None = None
) -> Postgres:
    """A standby that streams from the primary, or through the port `through`, which leads to it."""
    standby = primary.basebackup()
    if through is not None:
        path = standby.data / "postgresql.auto.conf"
        path.write_text(path.read_text().replace(f"port={primary.port}", f"port={through}"))
    standby.start()
    if synchronous:
        primary.configure({"synchronous_standby_names": "standby"})
    primary.wait_for_standby(sync=synchronous)
    return standby
