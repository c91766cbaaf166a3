"""The async store's connections: a pool of its own per event loop, or a pool of the caller's.

This module owns how a connection is acquired, which error is raised if there is none, and that a
connection is not used again if it broke or if a statement on it was abandoned. Nothing connects in
the background: a call learns at once that the server is down, and the first call after the server
is back succeeds. This module knows none of our statements.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg

from oncekey.core.errors import StoreUnavailable
from oncekey.stores.connection_lifetime import ClosedWithLoop
from oncekey.stores.postgres import errors
from oncekey.stores.postgres.durability import SYNC_REPLICATION_WAIT
from oncekey.stores.postgres.errors import pool_exhausted, store_closed
from oncekey.stores.postgres.options import Options
from oncekey.stores.server_watch import STOP_SECONDS

CONNECT_SECONDS: Final = 5.0
# How long to wait for a cancel request to be sent, and again for the server to respond to it.
CANCEL_SECONDS: Final = STOP_SECONDS / 2
# A session never drops its plans and caches, and an address may lead to another host later.
LIFETIME_SECONDS: Final = 3_600.0

ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)


class PooledConnection:
    """One connection of a pool, and what we know of its state."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self.connection = connection
        self.unreplicated = False  # True if no standby has confirmed the last commit
        self.is_idle = True
        self._expires = time.monotonic() + LIFETIME_SECONDS
        connection.add_log_listener(self._on_notice)

    def begin(self) -> None:
        """Called before a statement is sent."""
        self.is_idle = self.unreplicated = False

    def _on_notice(self, connection: Any, message: Any) -> None:
        """Detect commits that were not replicated: the server only sends a warning."""
        if message.server_source_function == SYNC_REPLICATION_WAIT:
            self.unreplicated = True

    @property
    def is_closed(self) -> bool:
        try:
            return bool(self.connection.is_closed())
        except asyncpg.InterfaceError:
            return True  # it was lost, and a caller's pool has taken it back by itself

    def is_fresh(self) -> bool:
        return not self.is_closed and time.monotonic() < self._expires

    async def recover(self) -> None:
        """Make the connection usable after a timeout. asyncpg has sent a cancel request, because
        the statement might go on for as long as a standby is away, with the keys locked and a
        session in use. This waits for the server's response."""
        try:
            await self.connection.execute("SELECT 1", timeout=CANCEL_SECONDS)
            self.is_idle = True
        except (*ERRORS, TimeoutError):
            self.terminate()

    def terminate(self) -> None:
        """Close the connection abruptly, because its protocol state is unknown."""
        if not self.is_closed:
            self.connection.terminate()

    def detach(self) -> None:
        """Restore the connection before it goes back to the caller's pool."""
        if not self.is_closed:
            self.connection.remove_log_listener(self._on_notice)


# --- our own pool ---------------------------------------------------------------------------


class LoopConnections(ClosedWithLoop):
    """The connections of one event loop."""

    def __init__(self, size: int) -> None:
        self.idle: list[PooledConnection] = []  # the one used last is used next
        self.slots = asyncio.Semaphore(size)
        super().__init__()

    def terminate_all(self) -> None:
        while self.idle:
            self.idle.pop().terminate()

    async def close_all(self) -> None:
        while self.idle:
            pooled = self.idle.pop()
            try:
                await pooled.connection.close(timeout=CONNECT_SECONDS)
            except (*ERRORS, TimeoutError):
                pooled.terminate()


class OwnPool:
    """Connections that are opened when needed and kept while their event loop runs."""

    def __init__(self, address: str, options: Options) -> None:
        self._size = options.pool_size
        self._seconds = options.us("pool_timeout") / 1_000_000
        self._address, self._kwargs = _settings(address, options)
        self._closed = False
        self._inherited: list[Any] = []
        self._reset()
        _alive.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopConnections]
        self._by_loop = weakref.WeakKeyDictionary()
        self._all: weakref.WeakSet[PooledConnection] = weakref.WeakSet()

    def disown(self) -> None:
        """Called in a forked child: the connections are the parent's. If the child closed them, the
        event loop's selector, which both share, would stop reporting them to the parent."""
        for pooled in self._all:
            pooled.connection._aborted = True  # so that the driver considers it closed
        self._inherited.append(self._by_loop)
        self._reset()

    async def _add_loop(self) -> LoopConnections:
        own = LoopConnections(self._size)
        with self._lock:
            # Forget loops that were closed; their connections end with their last reference.
            for loop in [loop for loop in self._by_loop if loop.is_closed()]:
                del self._by_loop[loop]
            own = self._by_loop.setdefault(asyncio.get_running_loop(), own)
        await own.begin()
        return own

    @asynccontextmanager
    async def acquire(self, end: float) -> AsyncIterator[PooledConnection]:
        """A connection, acquired before `end` of the monotonic clock."""
        own = self._by_loop.get(asyncio.get_running_loop()) or await self._add_loop()
        if own.slots.locked():
            try:
                async with asyncio.timeout(min(self._seconds, max(0.0, end - time.monotonic()))):
                    await own.slots.acquire()
            except TimeoutError:
                raise pool_exhausted(self._size) from None
        else:
            await own.slots.acquire()  # without a timer, which would cost more than the wait
        try:
            pooled = await self._take(own, end)
            try:
                yield pooled
            finally:
                self._put_back(own, pooled)
        finally:
            own.slots.release()

    async def _take(self, own: LoopConnections, end: float) -> PooledConnection:
        if self._closed:
            raise store_closed()
        while own.idle:
            pooled = own.idle.pop()
            if pooled.is_fresh():
                return pooled
            pooled.terminate()
        left = max(CANCEL_SECONDS, end - time.monotonic())
        kwargs = {**self._kwargs, "timeout": min(self._kwargs["timeout"], left)}
        try:
            pooled = PooledConnection(await asyncpg.connect(self._address, **kwargs))
        except TimeoutError as error:
            raise errors.connect_timeout() from error
        except (*ERRORS, ValueError) as error:
            raise errors.translate_connect_error(error) from error
        self._all.add(pooled)
        return pooled

    def _put_back(self, own: LoopConnections, pooled: PooledConnection) -> None:
        if pooled.is_closed:
            own.terminate_all()  # whatever broke this connection broke the idle ones too
        elif self._closed or not pooled.is_idle or pooled.connection.is_in_transaction():
            pooled.terminate()
        else:
            own.idle.append(pooled)

    async def close(self) -> None:
        self._closed = True
        current = asyncio.get_running_loop()
        with self._lock:
            by_loop = list(self._by_loop.items())
        for loop, own in by_loop:
            if loop is current:
                await own.close_all()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(own.terminate_all)

    def abandon(self) -> None:
        """Close without waiting, from any thread: each loop terminates its own connections."""
        self._closed = True
        with self._lock:
            by_loop = list(self._by_loop.items())
        for loop, own in by_loop:
            with suppress(RuntimeError):  # the loop was closed, and its connections with it
                loop.call_soon_threadsafe(own.terminate_all)

    def reopen(self) -> None:
        self._closed = False


_alive: weakref.WeakSet[OwnPool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_alive):
        pool.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _settings(address: str, options: Options) -> tuple[str, dict[str, Any]]:
    """The address and the arguments for asyncpg, which takes fewer options in a URL than libpq."""
    settings = {"application_name": "oncekey"}
    seconds = CONNECT_SECONDS
    try:
        parts = urlsplit(address)
        query = parse_qsl(parts.query, keep_blank_values=True)
        seconds = float(dict(query).get("connect_timeout") or CONNECT_SECONDS)
    except ValueError:
        raise errors.invalid_address() from None
    if any(name == "application_name" for name, _ in query):
        settings = {}
    if not options.pooler:
        settings |= {**options.session_settings, **options.planner_settings}
    kept = [(name, value) for name, value in query if name != "connect_timeout"]
    return (
        urlunsplit(parts._replace(query=urlencode(kept, quote_via=quote))),
        {
            "timeout": seconds,
            "command_timeout": CANCEL_SECONDS,  # for asyncpg's own statements; ours have another
            "server_settings": settings,
            **({"statement_cache_size": 0} if options.pooler else {}),
        },
    )


# --- a caller's pool ------------------------------------------------------------------------


class CallerPool:
    """An asyncpg.Pool of the caller's, from which a connection is acquired for each call."""

    def __init__(self, pool: asyncpg.Pool[Any], options: Options) -> None:
        self._pool = pool
        self._seconds = options.us("pool_timeout") / 1_000_000
        self._closed = False

    @asynccontextmanager
    async def acquire(self, end: float) -> AsyncIterator[PooledConnection]:
        if self._closed:
            raise store_closed()
        seconds = min(self._seconds, max(0.0, end - time.monotonic()))
        try:
            connection: Any = await self._pool.acquire(timeout=seconds)
        except TimeoutError as error:
            raise StoreUnavailable(
                "the pool that was given had no connection within pool_timeout", ambiguous=False
            ) from error
        except (*ERRORS, ValueError) as error:
            raise errors.translate_connect_error(error) from error
        pooled = PooledConnection(connection)
        try:
            yield pooled
        finally:
            pooled.detach()
            if not pooled.is_idle:
                pooled.terminate()
            await self._pool.release(connection)

    async def close(self) -> None:
        """The pool stays open: it is the caller's."""
        self._closed = True

    def abandon(self) -> None:
        self._closed = True

    def reopen(self) -> None:
        self._closed = False
