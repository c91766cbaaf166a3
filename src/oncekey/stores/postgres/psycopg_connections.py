"""The blocking store's connections: a few of its own per process, or those of a caller's pool.

Owns how one is had, what is said when there is none, that no wait on one is without end, and that
a broken one is not used again. Nothing is dialled in the background: a call learns at once that
the server is down, and the first call after it is back finds it. Knows no statement of ours.
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

from oncekey.core.errors import StoreUnavailable
from oncekey.stores.postgres import errors
from oncekey.stores.postgres.durability import UNREPLICATED
from oncekey.stores.postgres.errors import none_free, was_closed
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.server_clock import STOP_SECONDS

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

CONNECT_SECONDS: Final = 5
CONNECT_MIN_SECONDS: Final = 2  # libpq allows no less
# A session keeps plans and caches for ever, and an address may come to mean another host.
LIFETIME_SECONDS: Final = 3_600.0
# How long to wait for what the server says to being asked to stop.
CANCEL_SECONDS: Final = STOP_SECONDS / 2  # for each: asking, and hearing
_PROBE_SECONDS: Final = 2


class Silence(psycopg.OperationalError):
    """No answer came in the time allowed."""


class Line:
    """One connection while we have it, and what was heard on it."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.unreplicated = False  # a commit of ours that no standby has confirmed
        self._end = 0.0
        self._asked_to_stop = False
        self._expires = time.monotonic() + LIFETIME_SECONDS
        self._patient = connection.wait
        connection.wait = self._wait  # type: ignore[method-assign,assignment]
        connection.add_notice_handler(self._hear)

    def cursor(self) -> psycopg.RawCursor[Any]:
        """For one statement: its rows are not kept longer than needed."""
        return psycopg.RawCursor(self.connection, row_factory=tuple_row)

    def allow(self, seconds: float) -> None:
        """Begin something new, and say how long all that is waited for in it may take."""
        self._end = time.monotonic() + seconds
        self._asked_to_stop = self.unreplicated = False

    def _wait(self, steps: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        return self._patient(self._until_end(steps), *args, **options)

    def _until_end(self, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The driver's own steps; nothing else would end them when the network is silent."""
        ready: Any = None
        while True:
            try:
                wanted = steps.send(ready)
            except StopIteration as stop:
                return stop.value
            ready = yield wanted
            if not ready and time.monotonic() > self._end:
                self._stop()

    def _stop(self) -> None:
        """Have the server cancel what it does, else it might go on for as long as a standby is
        away, with the keys locked and a session taken; give up if it does not even say that."""
        if not self._asked_to_stop and capabilities.has_cancel_safe():
            self._asked_to_stop = True
            self._end = time.monotonic() + CANCEL_SECONDS
            with suppress(psycopg.Error):
                return self.connection.cancel_safe(timeout=CANCEL_SECONDS)
        self.connection.close()
        raise Silence("no answer from the server")

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        """Notice commits that were not replicated: the server only warns."""
        if notice.source_function == UNREPLICATED:
            self.unreplicated = True

    @property
    def is_closed(self) -> bool:
        return self.connection.closed

    def is_fresh(self) -> bool:
        """Whether the server still listens, as far as can be told without asking it: on an idle
        connection there is nothing to read but its end."""
        if self.connection.closed or time.monotonic() > self._expires:
            return False
        return not _readable(self.connection.pgconn.socket)

    def tidy(self) -> None:
        """After a failure: out of the transaction, or closed."""
        status = self.connection.info.transaction_status
        if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            try:
                self.connection.rollback()
            except psycopg.Error:
                self.connection.close()
        elif status != TransactionStatus.IDLE:
            self.connection.close()

    def leave(self) -> None:
        """Give the connection its own ways back."""
        del self.connection.wait
        self.connection.remove_notice_handler(self._hear)


def _readable(fd: int) -> bool:
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLPRI)
    return bool(poll.poll(0))


# --- our own --------------------------------------------------------------------------------


class Place:
    """The connections of one process. A fork begins without any: a socket has one user."""

    def __init__(self, size: int) -> None:
        self.free: list[Line] = []  # the one used last is used next
        self.slots = threading.Semaphore(size)
        weakref.finalize(self, _close_all, self.free, os.getpid())


def _pop(lines: list[Line]) -> Line | None:
    """Safe against other threads that do the same."""
    try:
        return lines.pop()
    except IndexError:
        return None


def _close_all(lines: list[Line], process: int) -> None:
    """Say goodbye to the server; a fork leaves that to its parent."""
    if os.getpid() == process:
        while (line := _pop(lines)) is not None:
            line.connection.close()


class OwnLines:
    """Connections dialled when they are needed, and kept."""

    def __init__(self, address: str, options: Options) -> None:
        self._address = address
        self._size = options.pool_size
        self._seconds = options.us("pool_timeout") / 1_000_000
        self._kwargs = _settings(address, options)
        self._places: dict[int, Place] = {}  # by process
        self._closed = threading.Event()

    @contextmanager
    def lend(self, end: float) -> Iterator[Line]:
        """One of them, had before `end` of the monotonic clock."""
        place = self._place()
        if not place.slots.acquire(timeout=max(0.0, min(self._seconds, end - time.monotonic()))):
            raise none_free(self._size)
        try:
            line = self._take(place, end)
            try:
                yield line
            finally:
                self._put_back(place, line)
        finally:
            place.slots.release()

    def _place(self) -> Place:
        here = os.getpid()
        place = self._places.get(here)
        return place or self._places.setdefault(here, Place(self._size))

    def _take(self, place: Place, end: float) -> Line:
        if self._closed.is_set():
            raise was_closed()
        while (line := _pop(place.free)) is not None:
            if line.is_fresh():
                return line
            line.connection.close()
        left = max(CONNECT_MIN_SECONDS, int(end - time.monotonic()))
        allowed = {"connect_timeout": min(int(self._kwargs["connect_timeout"]), left)}
        try:
            return Line(psycopg.connect(self._address, **{**self._kwargs, **allowed}))
        except psycopg.errors.ConnectionTimeout as error:
            raise errors.not_connected() from error
        except psycopg.Error as error:
            raise errors.opening(error) from error

    def _put_back(self, place: Place, line: Line) -> None:
        if line.is_closed:
            _close_all(place.free, os.getpid())  # whatever broke this one broke the idle ones too
        elif (
            self._closed.is_set()
            or line.connection.info.transaction_status != TransactionStatus.IDLE
        ):
            line.connection.close()
        else:
            place.free.append(line)
            if self._closed.is_set():  # meanwhile
                _close_all(place.free, os.getpid())

    def close(self) -> None:
        self._closed.set()
        place = self._places.get(os.getpid())
        if place is not None:
            _close_all(place.free, os.getpid())

    def reopen(self) -> None:
        self._closed.clear()


def _settings(address: str, options: Options) -> dict[str, Any]:
    try:
        given = conninfo_to_dict(address)
    except psycopg.ProgrammingError as error:
        raise errors.unreadable(str(error)) from None
    settings: dict[str, Any] = {
        "autocommit": True,
        "prepare_threshold": None if options.pooler else 0,
        "connect_timeout": given.get("connect_timeout") or CONNECT_SECONDS,
        "application_name": given.get("application_name") or "oncekey",
    }
    if not options.pooler:
        ours = {**options.session, **options.planning}.items()
        words = ["-c " + f"{name}={value}".replace(" ", "\\ ") for name, value in ours]
        settings["options"] = " ".join([str(given.get("options") or ""), *words]).strip()
    return settings


# --- a caller's pool ------------------------------------------------------------------------


class GivenLines:
    """Connections of a psycopg_pool, lent for one call."""

    def __init__(self, pool: ConnectionPool[Any], options: Options) -> None:
        self._pool = pool
        self._seconds = options.us("pool_timeout") / 1_000_000
        self._closed = False

    @contextmanager
    def lend(self, end: float) -> Iterator[Line]:
        connection = self._take(min(end, time.monotonic() + self._seconds))
        line = Line(connection)
        try:
            yield line
        finally:
            line.leave()
            self._pool.putconn(connection)

    def _take(self, end: float) -> psycopg.Connection[Any]:
        if self._closed:
            raise was_closed()
        while True:
            try:
                connection = self._pool.getconn(max(0.0, end - time.monotonic()))
            except psycopg.Error as error:
                raise self._why_none(error) from error
            if not connection.closed and not _readable(connection.pgconn.socket):
                return connection  # type: ignore[no-any-return]
            connection.close()  # the server has ended it; the pool makes another
            self._pool.putconn(connection)

    def _why_none(self, error: psycopg.Error) -> StoreUnavailable:
        """The pool only says that there is none."""
        conninfo, kwargs = self._pool.conninfo, self._pool.kwargs
        if type(error).__name__ == "PoolTimeout" and isinstance(conninfo, str):
            plain = kwargs if isinstance(kwargs, dict) else {}
            try:
                psycopg.connect(conninfo, **{**plain, "connect_timeout": _PROBE_SECONDS}).close()
            except psycopg.Error as why:
                return errors.opening(why)
        return StoreUnavailable(
            f"the pool that was given has no connection: {error}", ambiguous=False
        )

    def close(self) -> None:
        """The pool stays open: it is the caller's."""
        self._closed = True

    def reopen(self) -> None:
        self._closed = False
