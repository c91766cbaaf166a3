"""The sync store's connections: a pool of its own per process, or a pool of the caller's.

This module owns how a connection is acquired, which error is raised if there is none, that every
wait on a connection has a limit, and that a broken connection is not used again. Nothing connects
in the background: a call learns at once that the server is down, and the first call after the
server is back succeeds. This module knows none of our statements.
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import capabilities
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8BinaryDumper

from oncekey.core.errors import StoreUnavailable
from oncekey.stores.postgres import errors
from oncekey.stores.postgres.durability import SYNC_REPLICATION_WAIT
from oncekey.stores.postgres.errors import pool_exhausted, store_closed
from oncekey.stores.postgres.options import Options
from oncekey.stores.server_watch import STOP_SECONDS

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

CONNECT_SECONDS: Final = 5
CONNECT_MIN_SECONDS: Final = 2  # the least that libpq allows
# A session never drops its plans and caches, and an address may lead to another host later.
LIFETIME_SECONDS: Final = 3_600.0
# How long to wait for a cancel request to be sent, and again for the server to respond to it.
CANCEL_SECONDS: Final = STOP_SECONDS / 2
_PROBE_SECONDS: Final = 2


class ReplyTimeout(psycopg.OperationalError):
    """The server did not reply in time."""


class PooledConnection:
    """One connection of a pool, and what we know of its state."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.unreplicated = False  # True if no standby has confirmed the last commit
        self._end = 0.0
        self._cancel_sent = False
        self._expires = time.monotonic() + LIFETIME_SECONDS
        self._driver_wait = connection.wait
        connection.wait = self._wait  # type: ignore[method-assign,assignment]
        connection.add_notice_handler(self._on_notice)

    def cursor(self) -> psycopg.RawCursor[Any]:
        """A new cursor for one statement, so that its rows are not kept longer than needed."""
        return psycopg.RawCursor(self.connection, row_factory=tuple_row)

    def start_timeout(self, seconds: float) -> None:
        """Called before a statement is sent: all waits for it together may take this long."""
        self._end = time.monotonic() + seconds
        self._cancel_sent = self.unreplicated = False

    def _wait(self, waits: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        return self._driver_wait(self._limited(waits), *args, **options)

    def _limited(self, waits: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The driver's generator with a time limit: it has none if the network is silent."""
        ready: Any = None
        while True:
            try:
                wanted = waits.send(ready)
            except StopIteration as stop:
                return stop.value
            ready = yield wanted
            if not ready and time.monotonic() > self._end:
                self._cancel()

    def _cancel(self) -> None:
        """Make the server cancel the statement, which might go on for as long as a standby is away,
        with the keys locked and a session in use. If the server does not even reply to that, close
        the connection."""
        if not self._cancel_sent and capabilities.has_cancel_safe():
            self._cancel_sent = True
            self._end = time.monotonic() + CANCEL_SECONDS
            with suppress(psycopg.Error):
                return self.connection.cancel_safe(timeout=CANCEL_SECONDS)
        self.connection.close()
        raise ReplyTimeout("no answer from the server")

    def _on_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        """Detect commits that were not replicated: the server only sends a warning."""
        if notice.source_function == SYNC_REPLICATION_WAIT:
            self.unreplicated = True

    @property
    def is_closed(self) -> bool:
        return self.connection.closed

    def is_fresh(self) -> bool:
        """True if the connection can be used, as far as that is known without a round trip: an idle
        connection is readable only if the server has closed it."""
        if self.connection.closed or time.monotonic() > self._expires:
            return False
        return not _readable(self.connection.pgconn.socket)

    def reset(self) -> None:
        """After a failure: roll back an open transaction, or close the connection."""
        status = self.connection.info.transaction_status
        if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            try:
                self.connection.rollback()
            except psycopg.Error:
                self.connection.close()
        elif status != TransactionStatus.IDLE:
            self.connection.close()

    def detach(self) -> None:
        """Restore the connection before it goes back to the caller's pool."""
        del self.connection.wait
        self.connection.remove_notice_handler(self._on_notice)


def _readable(fd: int) -> bool:
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLPRI)
    return bool(poll.poll(0))


# --- our own pool ---------------------------------------------------------------------------


class ProcessConnections:
    """The connections of one process. A forked child starts without any, because two processes
    cannot share a socket."""

    def __init__(self, size: int) -> None:
        self.idle: list[PooledConnection] = []  # the one used last is used next
        self.slots = threading.Semaphore(size)
        weakref.finalize(self, _close_all, self.idle, os.getpid())


def _pop(idle: list[PooledConnection]) -> PooledConnection | None:
    """The last connection, None if there is none. Other threads may pop at the same time."""
    try:
        return idle.pop()
    except IndexError:
        return None


def _close_all(idle: list[PooledConnection], process: int) -> None:
    """Close the connections of this process; a forked child leaves those of its parent open."""
    if os.getpid() == process:
        while (pooled := _pop(idle)) is not None:
            pooled.connection.close()


class OwnPool:
    """Connections that are opened when needed and kept."""

    def __init__(self, address: str, options: Options) -> None:
        self._address = address
        self._size = options.pool_size
        self._seconds = options.us("pool_timeout") / 1_000_000
        self._kwargs = _settings(address, options)
        self._by_process: dict[int, ProcessConnections] = {}
        self._closed = threading.Event()

    @contextmanager
    def acquire(self, end: float) -> Iterator[PooledConnection]:
        """A connection, acquired before `end` of the monotonic clock."""
        own = self._of_this_process()
        if not own.slots.acquire(timeout=max(0.0, min(self._seconds, end - time.monotonic()))):
            raise pool_exhausted(self._size)
        try:
            pooled = self._take(own, end)
            try:
                yield pooled
            finally:
                self._put_back(own, pooled)
        finally:
            own.slots.release()

    def _of_this_process(self) -> ProcessConnections:
        process = os.getpid()
        own = self._by_process.get(process)
        return own or self._by_process.setdefault(process, ProcessConnections(self._size))

    def _take(self, own: ProcessConnections, end: float) -> PooledConnection:
        if self._closed.is_set():
            raise store_closed()
        while (pooled := _pop(own.idle)) is not None:
            if pooled.is_fresh():
                return pooled
            pooled.connection.close()
        left = max(CONNECT_MIN_SECONDS, int(end - time.monotonic()))
        timeout = min(int(self._kwargs["connect_timeout"]), left)
        kwargs = {**self._kwargs, "connect_timeout": timeout}
        try:
            connection = psycopg.connect(self._address, **kwargs)
        except psycopg.errors.ConnectionTimeout as error:
            raise errors.connect_timeout() from error
        except psycopg.Error as error:
            raise errors.translate_connect_error(error) from error
        # psycopg's type for a number depends on how large it is, and it prepares a statement for
        # each combination of types.
        connection.adapters.register_dumper(int, Int8BinaryDumper)
        return PooledConnection(connection)

    def _put_back(self, own: ProcessConnections, pooled: PooledConnection) -> None:
        if pooled.is_closed:
            # Whatever broke this connection broke the idle ones too.
            _close_all(own.idle, os.getpid())
        elif (
            self._closed.is_set()
            or pooled.connection.info.transaction_status != TransactionStatus.IDLE
        ):
            pooled.connection.close()
        else:
            own.idle.append(pooled)
            if self._closed.is_set():  # the pool was closed meanwhile
                _close_all(own.idle, os.getpid())

    def close(self) -> None:
        self._closed.set()
        own = self._by_process.get(os.getpid())
        if own is not None:
            _close_all(own.idle, os.getpid())

    def reopen(self) -> None:
        self._closed.clear()


def _settings(address: str, options: Options) -> dict[str, Any]:
    try:
        given = conninfo_to_dict(address)
    except psycopg.ProgrammingError as error:
        raise errors.invalid_address(str(error)) from None
    settings: dict[str, Any] = {
        "autocommit": True,
        "prepare_threshold": None if options.pooler else 0,
        "connect_timeout": given.get("connect_timeout") or CONNECT_SECONDS,
        "application_name": given.get("application_name") or "oncekey",
    }
    if not options.pooler:
        ours = {**options.session_settings, **options.planner_settings}.items()
        flags = ["-c " + f"{name}={value}".replace(" ", "\\ ") for name, value in ours]
        settings["options"] = " ".join([str(given.get("options") or ""), *flags]).strip()
    return settings


# --- a caller's pool ------------------------------------------------------------------------


class CallerPool:
    """A psycopg_pool of the caller's, from which a connection is acquired for each call."""

    def __init__(self, pool: ConnectionPool[Any], options: Options) -> None:
        self._pool = pool
        self._seconds = options.us("pool_timeout") / 1_000_000
        self._closed = False

    @contextmanager
    def acquire(self, end: float) -> Iterator[PooledConnection]:
        connection = self._take(min(end, time.monotonic() + self._seconds))
        pooled = PooledConnection(connection)
        try:
            yield pooled
        finally:
            pooled.detach()
            self._pool.putconn(connection)

    def _take(self, end: float) -> psycopg.Connection[Any]:
        if self._closed:
            raise store_closed()
        while True:
            try:
                connection = self._pool.getconn(max(0.0, end - time.monotonic()))
            except psycopg.Error as error:
                raise self._translate_error(error) from error
            if not connection.closed and not _readable(connection.pgconn.socket):
                return connection  # type: ignore[no-any-return]
            connection.close()  # the server has closed it; the pool opens another one
            self._pool.putconn(connection)

    def _translate_error(self, error: psycopg.Error) -> StoreUnavailable:
        """The pool's error says only that it has no connection, so this tries why."""
        conninfo, kwargs = self._pool.conninfo, self._pool.kwargs
        if type(error).__name__ == "PoolTimeout" and isinstance(conninfo, str):
            plain = kwargs if isinstance(kwargs, dict) else {}
            try:
                psycopg.connect(conninfo, **{**plain, "connect_timeout": _PROBE_SECONDS}).close()
            except psycopg.Error as why:
                return errors.translate_connect_error(why)
        return StoreUnavailable(
            f"the pool that was given has no connection: {error}", ambiguous=False
        )

    def close(self) -> None:
        """The pool stays open: it is the caller's."""
        self._closed = True

    def reopen(self) -> None:
        self._closed = False
