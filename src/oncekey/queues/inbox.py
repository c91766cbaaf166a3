"""The transactional inbox: a message's key, its rows and its outbox commit together.

    inbox = Inbox(once, connect=pool.connection)
    Consumer(once, handler, broker, name="shipping", key="json:$.order", inbox=inbox).run()

The consumer runs each message in a transaction of its own, and removes it from the queue only
after the commit. A crash before that leaves nothing behind, a crash after it leaves a key that
replays: the handler's rows are written exactly once. `run` takes what `Once.run` takes, so an inbox
also serves without a consumer; the attempt that the body is given has the connection
(`attempt.connection`).
"""

from __future__ import annotations

import enum
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
)
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.core.errors import (
    ConfigurationError,
    NotReplayable,
    OutcomeUnknown,
    StoreUnavailable,
    Terminal,
)
from oncekey.core.identity import KeyLike
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.attempts.async_attempt import AsyncAttempt
from oncekey.engine.attempts.attempt import Attempt
from oncekey.engine.once import Once
from oncekey.engine.results import Result
from oncekey.queues.delivery_flow import TransactionAborted
from oncekey.stores.postgres.errors import IN_FAILED_TRANSACTION, sqlstate_of
from oncekey.stores.postgres.transaction_retry import (
    TRANSACTION_TRIES_DEFAULT,
    run_transaction,
    run_transaction_async,
)
from oncekey.stores.sqlalchemy_savepoints import is_a

T = TypeVar("T")

# These errors leave a record that says how the operation ended, and it must be committed. After
# every other error there is nothing to keep.
_KEPT: Final = (Terminal, OutcomeUnknown, NotReplayable)
_PROBE: Final = "oncekey inbox"  # an operation and a key that nobody runs
_log = logging.getLogger("oncekey")


class Inbox:
    """Runs operations, each in a transaction of its own on a connection of yours.

    once      an engine on the database of your rows (PostgreSQL or SQLite)
    connect   a function that gives a connection or session for one transaction, in a `with` block:
              a psycopg pool's `connection`, a sessionmaker of SQLAlchemy or its `begin`,
              `lambda: sqlite3.connect(path)`, `django_transaction()`
    tries     how often a transaction is run that conflicts with another one (a serialization
              failure or a deadlock)
    """

    def __init__(
        self,
        once: Once,
        connect: Callable[[], AbstractContextManager[Any]],
        *,
        tries: int = TRANSACTION_TRIES_DEFAULT,
    ) -> None:
        _check(once, Once, connect, tries)
        self._once = once
        self._connect = connect
        self._tries = tries

    def run(
        self, operation: str, key: KeyLike, body: Callable[[Attempt], T], **options: Any
    ) -> Result[T]:
        """Run `body(attempt)` in a new transaction, or replay its result; returns when that is
        committed. The options are those of `Once.run`."""

        def work(connection: Any) -> _Ended:
            try:
                tx = self._once.in_transaction(connection)
                return _Ended(tx.run(operation, key, body, **options), None)
            except _KEPT as error:
                return _Ended(None, error)
            except StoreUnavailable as error:
                _check_transaction(error)
                raise

        return _concluded(run_transaction(self._begin, work, tries=self._tries))

    def check(self) -> None:
        """Raise ConfigurationError if keys and rows cannot commit together: the store has no
        transactions, its keys are being moved, or the connection leads to another database. A
        consumer asks before its first message, which would otherwise come again for ever. What
        keeps a connection from being had is left to the messages."""
        try:
            with self._begin() as connection:
                self._once.in_transaction(connection).get(_PROBE, _PROBE)
        except ConfigurationError:
            raise
        except Exception as error:
            _log.debug("the inbox could not be checked: %s", error)

    @contextmanager
    def _begin(self) -> Iterator[Any]:
        opened: Any = self._connect()
        # A sqlite3 connection in a `with` block ends its transaction, but it stays open.
        is_sqlite3 = isinstance(opened, sqlite3.Connection)
        with closing(opened) if is_sqlite3 else opened as connection:
            ending = _ending_of(connection)
            if ending is _Ending.BLOCK:
                with connection.transaction():
                    yield connection
                return
            try:
                yield connection
            except BaseException:
                if ending is _Ending.CALLS:
                    connection.rollback()
                raise
            if ending is _Ending.CALLS:
                connection.commit()


class AsyncInbox:
    """The same for asyncio: `connect` gives an `async with` block, such as an asyncpg pool's
    `acquire`, a psycopg pool's `connection`, an async_sessionmaker, or `lambda:
    aiosqlite.connect(path)`."""

    def __init__(
        self,
        once: AsyncOnce,
        connect: Callable[[], AbstractAsyncContextManager[Any]],
        *,
        tries: int = TRANSACTION_TRIES_DEFAULT,
    ) -> None:
        _check(once, AsyncOnce, connect, tries)
        self._once = once
        self._connect = connect
        self._tries = tries

    async def run(
        self,
        operation: str,
        key: KeyLike,
        body: Callable[[AsyncAttempt], Awaitable[T]],
        **options: Any,
    ) -> Result[T]:
        """Run `body(attempt)` in a new transaction: see `Inbox.run`."""

        async def work(connection: Any) -> _Ended:
            try:
                tx = self._once.in_transaction(connection)
                return _Ended(await tx.run(operation, key, body, **options), None)
            except _KEPT as error:
                return _Ended(None, error)
            except StoreUnavailable as error:
                _check_transaction(error)
                raise

        return _concluded(await run_transaction_async(self._begin, work, tries=self._tries))

    async def check(self) -> None:
        """Raise ConfigurationError if keys and rows cannot commit together: see `Inbox.check`."""
        try:
            async with self._begin() as connection:
                await self._once.in_transaction(connection).get(_PROBE, _PROBE)
        except ConfigurationError:
            raise
        except Exception as error:
            _log.debug("the inbox could not be checked: %s", error)

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[Any]:
        async with self._connect() as connection:
            ending = _ending_of(connection)
            if ending is _Ending.BLOCK:
                async with connection.transaction():
                    yield connection
                return
            try:
                yield connection
            except BaseException:
                if ending is _Ending.CALLS:
                    await connection.rollback()
                raise
            if ending is _Ending.CALLS:
                await connection.commit()


def django_transaction(using: str = "default") -> Callable[[], AbstractContextManager[Any]]:
    """A `connect=` for Django: a transaction on one of its databases."""

    @contextmanager
    def begin() -> Iterator[Any]:
        from django.db import connections, transaction

        with transaction.atomic(using=using, durable=True):
            yield connections[using]

    return begin


def _check_transaction(error: StoreUnavailable) -> None:
    """Raise TransactionAborted if the body is to blame, and not the store."""
    if sqlstate_of(error) == IN_FAILED_TRANSACTION:
        raise TransactionAborted(
            "a statement of the body failed and it went on; PostgreSQL rolls such a transaction "
            "back. Let the error through, or run the statement in a savepoint"
        ) from error


class _Ended(NamedTuple):
    """How a run ended whose transaction is to be committed."""

    result: Result[Any] | None
    error: Exception | None


def _concluded(ended: _Ended) -> Result[Any]:
    if ended.error is not None:
        raise ended.error
    assert ended.result is not None
    return ended.result


class _Ending(enum.Enum):
    """How the transaction of a connection is ended."""

    BLOCK = "by a block of the driver that we open"
    CALLS = "by commit() and rollback(), which we call"
    THEIRS = "by the block that gave us the connection"


def _ending_of(connection: Any) -> _Ending:
    """Never left to chance: SQLAlchemy's `with Session() as session:` does not commit by itself,
    and a message whose rows are not committed must not be removed."""
    if is_a(connection, "psycopg", "Connection", "AsyncConnection"):
        if getattr(connection, "_num_transactions", 0):
            return _Ending.THEIRS
        return _Ending.BLOCK if connection.autocommit else _Ending.CALLS
    if is_a(connection, "asyncpg", "Connection", "PoolConnectionProxy"):
        return _Ending.THEIRS if connection.is_in_transaction() else _Ending.BLOCK
    if is_a(connection, "django", "BaseDatabaseWrapper", "ConnectionProxy"):
        return _Ending.THEIRS
    return _Ending.CALLS


def _check(once: Any, kind: type[Any], connect: Any, tries: int) -> None:
    if not isinstance(once, kind):
        raise ConfigurationError(f"this inbox needs a {kind.__name__}, not a {type(once).__name__}")
    if not callable(connect):
        raise ConfigurationError(
            "connect= must be a function that gives a connection for one transaction in a with "
            f"block, such as pool.connection, not a {type(connect).__name__}"
        )
    if not isinstance(tries, int) or tries < 1:
        raise ConfigurationError(f"tries={tries!r} must be 1 or more")
