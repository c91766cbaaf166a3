"""The doctor's own connection to a PostgreSQL server, and what is between the two.

This module owns how the queries of sql/checkup.sql are sent: each in a read-only transaction of its
own with a timeout, so that they also work through a pooler, and one that fails costs only itself.
It finds out whether a pooler is in between, and how it works. It judges nothing.
"""

from __future__ import annotations

import enum
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from oncekey.core.errors import StoreUnavailable
from oncekey.stores.postgres import errors
from oncekey.stores.postgres.options import NO_SCANS, Options
from oncekey.stores.postgres.queries import make_queries, make_query, substitute
from oncekey.stores.postgres.rows import Row
from oncekey.stores.postgres.schema_inspection import parse_address
from oncekey.stores.sql_files import load_queries

if TYPE_CHECKING:
    import psycopg

# How long a checkup may take in all. Then its connections are cut off, whatever they wait for.
CHECKUP_SECONDS: Final = 30.0
# How often two connections are compared. One comparison can miss a pooler with many idle servers.
_PROBES: Final = 3
_PROBE_SECONDS: Final = 5.0
_NO_TRANSACTIONS: Final = "08P01"  # PgBouncer's refusal of BEGIN in statement mode
_PID: Final = b"SELECT pg_catalog.pg_backend_pid()"


class Pooler(enum.Enum):
    """What is between us and the server."""

    NONE = "no pooler"
    SESSION = "a pooler in session mode"
    TRANSACTION = "a pooler in transaction mode"
    STATEMENT = "a pooler in statement mode"
    UNKNOWN = "a pooler whose mode cannot be found out"


class CheckupSession:
    """A connection that answers the queries of sql/checkup.sql."""

    def __init__(self, connection: psycopg.Connection[Any], address: str, options: Options) -> None:
        self._connection = connection
        self._address = address
        texts = load_queries("oncekey.stores.postgres", "sql/checkup.sql")
        layout = options.layout
        self._queries = {name: make_query(substitute(sql, layout)) for name, sql in texts.items()}
        # What the store itself reads of a server.
        stores = make_queries(layout)
        self._queries |= {"server": stores["server"], "store_settings": stores["settings"]}
        settings = {"statement_timeout": options.session_settings["statement_timeout"]}
        settings["lock_timeout"] = options.session_settings["lock_timeout"]
        settings.update(dict.fromkeys(NO_SCANS, "off"))
        each = ", ".join(
            f"set_config('{name}', '{value}', true)" for name, value in settings.items()
        )
        self._settings = f"SELECT {each}".encode()

    @property
    def name(self) -> str:
        """Where the server is, for messages."""
        info = self._connection.info
        return f"{info.dbname} at {info.host}:{info.port}"

    def rows(self, name: str, params: Sequence[Any] = ()) -> list[Row]:
        """The rows of a query."""
        import psycopg
        from psycopg.rows import tuple_row

        query = self._queries[name]
        with self._connection.transaction():
            self._connection.execute(b"SET TRANSACTION READ ONLY")
            self._connection.execute(self._settings)
            cursor = psycopg.RawCursor(self._connection, row_factory=tuple_row)
            return [*cursor.execute(query.raw, query.encode(params))]

    def rows_or_reason(self, name: str, params: Sequence[Any] = ()) -> list[Row] | str:
        """The rows of a query, or why the server did not give them: no right, or no time."""
        import psycopg

        try:
            return self.rows(name, params)
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.QueryCanceled) as error:
            return " ".join(str(error).split())
        except psycopg.errors.LockNotAvailable:
            return "another session holds a lock on the table"

    # --- the pooler ---------------------------------------------------------------------------

    def pooler(self) -> Pooler:
        """Find out what is in between. A server tells each client its own process number when it
        connects; a pooler makes that number up. Two clients that get the same process one after
        the other share it by transaction."""
        import psycopg

        first = self._process()
        if first == self._connection.info.backend_pid:
            return Pooler.NONE
        try:
            with self._connection.transaction():
                self._connection.execute(b"SET TRANSACTION READ ONLY")
        except psycopg.Error as error:
            if error.sqlstate == _NO_TRANSACTIONS or self._connection.closed:
                return Pooler.STATEMENT
            raise
        with _limited(_PROBE_SECONDS) as limit:
            try:
                return Pooler.TRANSACTION if self._is_shared(limit) else Pooler.SESSION
            except psycopg.OperationalError:
                # In session mode a second client can wait for a server that is free.
                return Pooler.UNKNOWN

    def _is_shared(self, limit: _Limit) -> bool:
        import psycopg

        for _ in range(_PROBES):
            first = self._process()
            with psycopg.connect(self._address, **_arguments(self._address)) as other:
                limit.add(other)
                # It begins a transaction, which keeps its server until the end of the block.
                if other.execute(_PID).fetchall()[0][0] == first:
                    return True
                if self._process() != first:
                    return True
        return False

    def _process(self) -> int:
        number: int = self._connection.execute(_PID).fetchall()[0][0]
        return number


@contextmanager
def checkup_session(address: str, options: Options) -> Iterator[CheckupSession]:
    """A session that ends after CHECKUP_SECONDS at the latest. Translates the driver's errors."""
    arguments = _arguments(address)
    import psycopg

    with _limited(CHECKUP_SECONDS) as limit:
        try:
            with psycopg.connect(address, autocommit=True, **arguments) as connection:
                limit.add(connection)
                yield CheckupSession(connection, address, options)
        except psycopg.Error as error:
            if limit.is_over:
                raise StoreUnavailable(
                    f"the server did not answer within {CHECKUP_SECONDS:.0f} s", ambiguous=False
                ) from error
            raise errors.translate_connect_error(error) from error


def _arguments(address: str) -> dict[str, Any]:
    timeout = parse_address(address).get("connect_timeout") or int(_PROBE_SECONDS)
    return {"prepare_threshold": None, "connect_timeout": timeout}


class _Limit:
    """Cuts connections off when the time is over, because neither the driver nor a frozen server
    ends a wait."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True
        self._timer.start()

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end

    def add(self, connection: psycopg.Connection[Any]) -> None:
        # A descriptor of our own, which stays valid if the driver closes its one meanwhile.
        self._sockets.append(socket.socket(fileno=os.dup(connection.fileno())))

    def end(self) -> None:
        self._timer.cancel()
        self._timer.join()
        for one in self._sockets:
            one.close()

    def _cut(self) -> None:
        for one in list(self._sockets):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed already


@contextmanager
def _limited(seconds: float) -> Iterator[_Limit]:
    limit = _Limit(seconds)
    try:
        yield limit
    finally:
        limit.end()
