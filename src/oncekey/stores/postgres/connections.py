"""Callers' connections, by kind.

    a psycopg Connection or AsyncConnection                          here
    an asyncpg connection, also one that a pool has lent             here
    an SQLAlchemy Session or Connection, blocking or not             frameworks.py
    Django's `connection` or `connections[alias]`                    frameworks.py

Known by their modules, so that nothing is imported that the caller does not use. Nothing here
begins, commits or rolls back but to our own savepoint. Every decision is in enlisting.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Final, NamedTuple

from oncekey.core.contract import AsyncEnlisted, Enlisted
from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres.enlisting import Action, Save, Standing
from oncekey.stores.postgres.executing import Async, Blocking, Text, give_name, take_name
from oncekey.stores.postgres.options import Options
from oncekey.stores.postgres.program import Program, Statement
from oncekey.stores.postgres.rows import Row

_BLOCKING: Final = (
    "a psycopg Connection, an SQLAlchemy Session or Connection, or Django's connection; with "
    "AsyncOnce also those of asyncio"
)
_ASYNC: Final = (
    "an asyncpg connection, a psycopg AsyncConnection, or an SQLAlchemy AsyncSession or "
    "AsyncConnection; with Once also blocking ones"
)
# libpq's PGTransactionStatusType.
_IDLE: Final = 0
_UNKNOWN: Final = 4  # the connection is broken

# Queries that hold nothing a caller chose and whose rows fit any protocol.
_SENT_AS_TEXT: Final = frozenset(("enlist", "let_go"))


def enlist_blocking(connection: Any, options: Options, program: Program) -> Enlisted:
    """The kind of `connection`, made to take part."""
    _check_allowed(options)
    if is_a(connection, "psycopg", "Connection"):
        return Psycopg(connection, program)
    if is_a(connection, "sqlalchemy", "Session", "scoped_session", "Connection"):
        from oncekey.stores.postgres.frameworks import Alchemy

        return Alchemy(connection, program)
    if is_a(connection, "django", "BaseDatabaseWrapper", "ConnectionProxy"):
        from oncekey.stores.postgres.frameworks import Django

        return Django(connection, program)
    raise _refusal(connection, _BLOCKING)


def enlist_async(connection: Any, options: Options, program: Program) -> AsyncEnlisted:
    """The kind of `connection`, made to take part."""
    _check_allowed(options)
    if is_a(connection, "asyncpg", "Connection", "PoolConnectionProxy"):
        return Asyncpg(connection, program)
    if is_a(connection, "psycopg", "AsyncConnection"):
        return AsyncPsycopg(connection, program)
    if is_a(connection, "sqlalchemy", "AsyncSession", "async_scoped_session", "AsyncConnection"):
        from oncekey.stores.postgres.frameworks import AsyncAlchemy

        return AsyncAlchemy(connection, program)
    raise _refusal(connection, _ASYNC)


def is_a(connection: Any, module: str, *names: str) -> bool:
    """Whether one of the object's classes is of this module and has one of these names."""
    return any(
        kind.__module__.partition(".")[0] == module and kind.__name__ in names
        for kind in type(connection).__mro__
    )


def _check_allowed(options: Options) -> None:
    if not options.takes_part:
        raise ConfigurationError(
            "in_transaction needs advisory locks: it works neither with claim='portable' nor "
            "with transactional=False"
        )


def _refusal(connection: Any, wanted: str) -> ConfigurationError:
    kind = type(connection)
    return ConfigurationError(
        f"in_transaction cannot use a {kind.__module__}.{kind.__qualname__}; it takes {wanted}"
    )


# --- savepoints by name -----------------------------------------------------------------------


class _Names:
    """The savepoints of one connection, the latest last."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def text(self, save: Save, *, is_over: bool) -> str | None:
        """What to send, if anything."""
        if save is Save.SET:
            self._names.append(take_name())
            return f"SAVEPOINT {self._names[-1]}"
        name = self._names.pop()
        give_name(name)
        if save is Save.LEAVE or is_over:
            return None
        if save is Save.DROP:
            return f"RELEASE SAVEPOINT {name}"
        return f"ROLLBACK TO SAVEPOINT {name}; RELEASE SAVEPOINT {name}"


# --- psycopg ----------------------------------------------------------------------------------


class _Query(NamedTuple):
    """A query to be sent with its parameters apart."""

    sql: bytes
    params: list[Any]


class _Enter(NamedTuple):
    """A `connection.transaction()` of psycopg's to be entered."""

    block: Any


class _Leave(NamedTuple):
    """... and to be left, by an error where what it did is to be undone."""

    block: Any
    error: Exception | None


class _Undone(Exception):
    """Makes psycopg go back to a savepoint."""


class _Wire:
    """What to do on a psycopg connection, of either colour, for some actions.

    Everything that can be goes out as one text. A connection in a transaction that it began by
    itself would obey a `commit()` in the body; under a `transaction()` of its own it refuses.
    """

    def __init__(self, connection: Any, texts: dict[str, Text]) -> None:
        self._connection = connection
        self._texts = texts
        self._names = _Names()
        self._blocks: list[Any] = []  # for each savepoint, psycopg's block or None

    def standing(self) -> Standing:
        if self._connection.info.transaction_status != _IDLE:
            return Standing.OPEN
        return Standing.BARE if self._connection.autocommit else Standing.READY

    def steps(self, actions: Sequence[Action]) -> Iterator[bytes | _Query | _Enter | _Leave]:
        texts: list[str] = []
        for action in actions:
            if isinstance(action, Statement) and action.name in _SENT_AS_TEXT:
                texts.append(self._texts[action.name].inline(action.params))
            elif isinstance(action, Statement):
                yield from _joined(texts)
                text = self._texts[action.name]
                yield _Query(text.dollars.encode(), text.written(action.params))
            elif action is Save.SET and not self._is_in_block():
                yield from _joined(texts)
                self._blocks.append(self._connection.transaction(savepoint_name=take_name()))
                yield _Enter(self._blocks[-1])
            else:
                yield from self._saving(action, texts)
        yield from _joined(texts)

    def _saving(self, save: Save, texts: list[str]) -> Iterator[bytes | _Leave]:
        if save is Save.SET:
            self._blocks.append(None)
        block = self._blocks[-1] if save is Save.SET else self._blocks.pop()
        if block is not None:
            yield from _joined(texts)
            give_name(block.savepoint_name)
            yield _Leave(block, _Undone() if save is Save.BACK else None)
            return
        status = self._connection.info.transaction_status
        text = self._names.text(save, is_over=status in (_IDLE, _UNKNOWN))
        if text is not None:
            texts.append(text)

    def _is_in_block(self) -> bool:
        """Whether the caller's `with connection.transaction():` is around us. If psycopg stops
        telling, a block of our own is always right, and only slower."""
        return bool(getattr(self._connection, "_num_transactions", 0))


def _joined(texts: list[str]) -> Iterator[bytes]:
    if texts:
        yield "; ".join(texts).encode()
        texts.clear()


class Psycopg(Blocking):
    """A psycopg Connection."""

    leaves_savepoints = True

    def __init__(self, connection: Any, program: Program) -> None:
        super().__init__(connection, program)
        self._wire = _Wire(connection, self._texts)

    def _standing(self) -> Standing:
        return self._wire.standing()

    def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        import psycopg
        from psycopg.rows import tuple_row

        rows: Sequence[Row] = ()
        for step in self._wire.steps(actions):
            if isinstance(step, _Enter):
                step.block.__enter__()
            elif isinstance(step, _Leave):
                error = step.error
                step.block.__exit__(type(error) if error else None, error, None)
            else:
                # Not connection.cursor(): the caller's factories have no part in it.
                cursor = psycopg.RawCursor(self._connection, row_factory=tuple_row)
                if isinstance(step, bytes):
                    cursor.execute(step, prepare=False)
                else:
                    cursor.execute(step.sql, step.params)
                rows = cursor.fetchall() if cursor.description else rows
        return rows


class AsyncPsycopg(Async):
    """A psycopg AsyncConnection."""

    leaves_savepoints = True

    def __init__(self, connection: Any, program: Program) -> None:
        super().__init__(connection, program)
        self._wire = _Wire(connection, self._texts)

    async def _standing(self) -> Standing:
        return self._wire.standing()

    async def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        import psycopg
        from psycopg.rows import tuple_row

        rows: Sequence[Row] = ()
        for step in self._wire.steps(actions):
            if isinstance(step, _Enter):
                await step.block.__aenter__()
            elif isinstance(step, _Leave):
                error = step.error
                await step.block.__aexit__(type(error) if error else None, error, None)
            else:
                cursor = psycopg.AsyncRawCursor(self._connection, row_factory=tuple_row)
                if isinstance(step, bytes):
                    await cursor.execute(step, prepare=False)
                else:
                    await cursor.execute(step.sql, step.params)
                rows = await cursor.fetchall() if cursor.description else rows
        return rows


# --- asyncpg ----------------------------------------------------------------------------------


class Asyncpg(Async):
    """An asyncpg connection, also one that a pool has lent."""

    leaves_savepoints = True

    def __init__(self, connection: Any, program: Program) -> None:
        super().__init__(connection, program)
        self._names = _Names()

    async def _standing(self) -> Standing:
        connection = self._connection
        is_open = connection.is_closed() or connection.is_in_transaction()
        return Standing.OPEN if is_open else Standing.BARE

    async def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        rows: Sequence[Row] = ()
        for action in actions:
            if isinstance(action, Statement):
                text = self._texts[action.name]
                rows = await self._connection.fetch(text.dollars, *text.typed(action.params))
                continue
            is_over = self._connection.is_closed() or not self._connection.is_in_transaction()
            sql = self._names.text(action, is_over=is_over)
            if sql is not None:
                await self._connection.execute(sql)
        return rows
