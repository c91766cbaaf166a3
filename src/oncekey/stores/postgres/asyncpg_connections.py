"""The asyncio store's connections: a few of its own per event loop, or those of a caller's pool.

Owns how one is had, what is said when there is none, and that one which broke or was left in the
middle of something is not used again. Nothing is dialled in the background: a call learns at once
that the server is down, and the first call after it is back finds it. Knows no statement of ours.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg

from oncekey.core.errors import StoreUnavailable
from oncekey.stores.postgres import errors
from oncekey.stores.postgres.durability import UNREPLICATED
from oncekey.stores.postgres.errors import none_free, was_closed
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.server_clock import STOP_SECONDS

CONNECT_SECONDS: Final = 5.0
# How long to wait for what the server says to being asked to stop.
CANCEL_SECONDS: Final = STOP_SECONDS / 2  # for each: asking, and hearing
# A session keeps plans and caches for ever, and an address may come to mean another host.
LIFETIME_SECONDS: Final = 3_600.0

ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)


class Line:
    """One connection while we have it, and what was heard on it."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self.connection = connection
        self.unreplicated = False  # a commit of ours that no standby has confirmed
        self.is_idle = True
        self._expires = time.monotonic() + LIFETIME_SECONDS
        connection.add_log_listener(self._hear)

    def begin(self) -> None:
        """Something new is sent."""
        self.is_idle = self.unreplicated = False

    def _hear(self, connection: Any, message: Any) -> None:
        """Notice commits that were not replicated: the server only warns."""
        if message.server_source_function == UNREPLICATED:
            self.unreplicated = True

    @property
    def is_closed(self) -> bool:
        return bool(self.connection.is_closed())

    def is_fresh(self) -> bool:
        return not self.is_closed and time.monotonic() < self._expires

    async def recover(self) -> None:
        """After a timeout: asyncpg has asked the server to stop, else that might go on for as long
        as a standby is away, with the keys locked and a session taken. Hear what it says."""
        try:
            await self.connection.execute("SELECT 1", timeout=CANCEL_SECONDS)
            self.is_idle = True
        except (*ERRORS, TimeoutError):
            self.end()

    def end(self) -> None:
        """At once and without a word: it may be anywhere in the middle of something."""
        if not self.connection.is_closed():
            self.connection.terminate()

    def leave(self) -> None:
        if not self.connection.is_closed():
            self.connection.remove_log_listener(self._hear)


# --- our own --------------------------------------------------------------------------------


class Home:
    """The connections of one event loop."""

    def __init__(self, size: int) -> None:
        self.free: list[Line] = []  # the one used last is used next
        self.slots = asyncio.Semaphore(size)
        self._ending = self._until_the_loop_ends()

    def end_all(self) -> None:
        while self.free:
            self.free.pop().end()

    async def close_all(self) -> None:
        while self.free:
            line = self.free.pop()
            try:
                await line.connection.close(timeout=CONNECT_SECONDS)
            except (*ERRORS, TimeoutError):
                line.end()

    async def begin(self) -> None:
        """Before the first use: `asyncio.run` and its like end the generators of their loop, this
        one among them, so no connection outlives a loop that nobody closed the store on."""
        await anext(self._ending)

    async def _until_the_loop_ends(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self.close_all()


class OwnLines:
    """Connections dialled when they are needed, and kept while their loop runs."""

    def __init__(self, address: str, options: Options) -> None:
        self._size = options.pool_size
        self._seconds = options.us("pool_timeout") / 1_000_000
        self._address, self._kwargs = _settings(address, options)
        self._closed = False
        self._inherited: list[Any] = []
        self._begin()
        _alive.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._homes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Home]
        self._homes = weakref.WeakKeyDictionary()
        self._lines: weakref.WeakSet[Line] = weakref.WeakSet()

    def disown(self) -> None:
        """In a forked child: the connections are the parent's. Were they ended here, the loop's
        selector, which both share, would no longer tell the parent what they say."""
        for line in self._lines:
            line.connection._aborted = True  # so the driver takes it for ended and leaves it alone
        self._inherited.append(self._homes)
        self._begin()

    async def _make_home(self) -> Home:
        home = Home(self._size)
        with self._lock:
            # A loop that ended without a word; its connections end with their last reference.
            for loop in [loop for loop in self._homes if loop.is_closed()]:
                del self._homes[loop]
            home = self._homes.setdefault(asyncio.get_running_loop(), home)
        await home.begin()
        return home

    @asynccontextmanager
    async def lend(self, end: float) -> AsyncIterator[Line]:
        """One of them, had before `end` of the monotonic clock."""
        home = self._homes.get(asyncio.get_running_loop()) or await self._make_home()
        if home.slots.locked():
            try:
                async with asyncio.timeout(min(self._seconds, max(0.0, end - time.monotonic()))):
                    await home.slots.acquire()
            except TimeoutError:
                raise none_free(self._size) from None
        else:
            await home.slots.acquire()  # at once: a timer would cost more than the waiting
        try:
            line = await self._take(home, end)
            try:
                yield line
            finally:
                self._put_back(home, line)
        finally:
            home.slots.release()

    async def _take(self, home: Home, end: float) -> Line:
        if self._closed:
            raise was_closed()
        while home.free:
            line = home.free.pop()
            if line.is_fresh():
                return line
            line.end()
        left = max(CANCEL_SECONDS, end - time.monotonic())
        allowed = {"timeout": min(self._kwargs["timeout"], left)}
        try:
            line = Line(await asyncpg.connect(self._address, **{**self._kwargs, **allowed}))
        except TimeoutError as error:
            raise errors.not_connected() from error
        except (*ERRORS, ValueError) as error:
            raise errors.opening(error) from error
        self._lines.add(line)
        return line

    def _put_back(self, home: Home, line: Line) -> None:
        if line.is_closed:
            home.end_all()  # whatever broke this one broke the idle ones too
        elif self._closed or not line.is_idle or line.connection.is_in_transaction():
            line.end()
        else:
            home.free.append(line)

    async def close(self) -> None:
        self._closed = True
        here = asyncio.get_running_loop()
        with self._lock:
            homes = list(self._homes.items())
        for loop, home in homes:
            if loop is here:
                await home.close_all()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(home.end_all)

    def abandon(self) -> None:
        """From any thread, and without waiting: each loop ends its own connections."""
        self._closed = True
        with self._lock:
            homes = list(self._homes.items())
        for loop, home in homes:
            with suppress(RuntimeError):  # it was closed, and they ended with it
                loop.call_soon_threadsafe(home.end_all)

    def reopen(self) -> None:
        self._closed = False


_alive: weakref.WeakSet[OwnLines] = weakref.WeakSet()


def _after_fork() -> None:
    for lines in list(_alive):
        lines.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _settings(address: str, options: Options) -> tuple[str, dict[str, Any]]:
    """What asyncpg takes, for what libpq would take."""
    settings = {"application_name": "oncekey"}
    seconds = CONNECT_SECONDS
    try:
        parts = urlsplit(address)
        query = parse_qsl(parts.query, keep_blank_values=True)
        seconds = float(dict(query).get("connect_timeout") or CONNECT_SECONDS)
    except ValueError:
        raise errors.unreadable() from None
    if any(name == "application_name" for name, _ in query):
        settings = {}
    if not options.pooler:
        settings |= {**options.session, **options.planning}
    kept = [(name, value) for name, value in query if name != "connect_timeout"]
    return urlunsplit(parts._replace(query=urlencode(kept, quote_via=quote))), {
        "timeout": seconds,
        "command_timeout": CANCEL_SECONDS,  # for what asyncpg does by itself; ours have their own
        "server_settings": settings,
        **({"statement_cache_size": 0} if options.pooler else {}),
    }


# --- a caller's pool ------------------------------------------------------------------------


class GivenLines:
    """Connections of an asyncpg.Pool, lent for one call."""

    def __init__(self, pool: asyncpg.Pool[Any], options: Options) -> None:
        self._pool = pool
        self._seconds = options.us("pool_timeout") / 1_000_000
        self._closed = False

    @asynccontextmanager
    async def lend(self, end: float) -> AsyncIterator[Line]:
        if self._closed:
            raise was_closed()
        seconds = min(self._seconds, max(0.0, end - time.monotonic()))
        try:
            connection: Any = await self._pool.acquire(timeout=seconds)
        except TimeoutError as error:
            raise StoreUnavailable(
                "the pool that was given had no connection within pool_timeout", ambiguous=False
            ) from error
        except (*ERRORS, ValueError) as error:
            raise errors.opening(error) from error
        line = Line(connection)
        try:
            yield line
        finally:
            line.leave()
            if not line.is_idle:
                line.end()
            await self._pool.release(connection)

    async def close(self) -> None:
        """The pool stays open: it is the caller's."""
        self._closed = True

    def abandon(self) -> None:
        self._closed = True

    def reopen(self) -> None:
        self._closed = False
