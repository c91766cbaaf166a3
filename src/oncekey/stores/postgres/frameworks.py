"""Connections of frameworks that keep books of their own: SQLAlchemy and Django.

Their own savepoints are used, so that what they remember goes back together with the rows: objects
of a session that are not flushed yet, Django's callbacks for the commit. And where they would let a
body commit the caller's transaction, half of which is still to come, they are told not to.

Imported only for who has such a connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres.enlisting import Action, Save, Saving, Standing, no_transaction
from oncekey.stores.postgres.executing import Async, Blocking, Text
from oncekey.stores.postgres.program import Program, Statement
from oncekey.stores.postgres.rows import Row

_DRIVERS: Final = ("psycopg", "psycopg_async", "asyncpg")


# --- SQLAlchemy -------------------------------------------------------------------------------


class _Savepoint(NamedTuple):
    """An SQLAlchemy nested transaction, and who refuses a commit while it lasts."""

    nested: Any
    target: Any
    event: str
    refusal: Any


class _Books:
    """A Session or Connection of SQLAlchemy's, under a blocking or an async face."""

    def __init__(self, subject: Any, texts: dict[str, Text]) -> None:
        self._subject = subject
        self._texts = texts
        self._is_session = hasattr(subject, "flush")

    def standing(self) -> Standing:
        return Standing.OPEN if self._subject.in_transaction() else Standing.READY

    def flush(self) -> None:
        if self._is_session:
            self._subject.flush()

    def perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        rows: Sequence[Row] = ()
        if any(isinstance(action, Saving) and action.how is Save.SET for action in actions):
            _check(self._bound())
        for action in actions:
            if isinstance(action, Statement):
                rows = self._execute(action)
            elif action.how is Save.SET:
                action.mark.made = self._set()
            elif action.mark.made is not None:
                savepoint, action.mark.made = action.mark.made, None
                self._end(savepoint, keep=action.how is not Save.BACK)
        return rows

    def _bound(self) -> Any:
        return self._subject.connection() if self._is_session else self._subject

    def _execute(self, statement: Statement) -> Sequence[Row]:
        bound = self._bound()
        text = self._texts[statement.name]
        sql, params = text.percents, text.positional(statement.params)
        if bound.dialect.driver == "asyncpg":
            sql, params = text.dollars, tuple(text.written(statement.params))
        result = bound.exec_driver_sql(sql, params)
        return result.fetchall() if result.returns_rows else ()

    def _set(self) -> _Savepoint:
        from sqlalchemy import event

        nested = self._subject.begin_nested()
        bound = self._bound()  # a session sends its SAVEPOINT only when this is asked for

        def refuse(_: object) -> None:
            if not self._is_session:
                # Whatever is raised now, SQLAlchemy takes the transaction for ended.
                bound.connection.dbapi_connection.rollback()
            elif self._subject.get_nested_transaction() is not nested:
                return  # a session tells of nested commits too: this is one of the body's own
            raise ConfigurationError(
                "the body of an operation must not commit the transaction it runs in: its record "
                "would be missing. Leave that to whoever began the transaction, after the run"
            )

        target, name = (self._subject, "before_commit") if self._is_session else (bound, "commit")
        event.listen(target, name, refuse)
        return _Savepoint(nested, target, name, refuse)

    def _end(self, savepoint: _Savepoint, *, keep: bool) -> None:
        from sqlalchemy import event, exc

        event.remove(savepoint.target, savepoint.event, savepoint.refusal)
        nested = savepoint.nested
        if not self._is_session and nested.is_active:
            # Those the body has left open; a session sees to that by itself.
            while (inner := self._subject.get_nested_transaction()) is not nested:
                inner.commit() if keep else inner.rollback()
        if keep:
            nested.commit()
        elif self._is_session or nested.is_active:
            try:
                nested.rollback()
            except exc.ResourceClosedError:
                pass  # it ended with its transaction


def _check(bound: Any) -> None:
    if bound.dialect.driver not in _DRIVERS:
        raise ConfigurationError(
            f"in_transaction does not know SQLAlchemy's {bound.dialect.name}+{bound.dialect.driver}"
            "; it takes postgresql+psycopg and postgresql+asyncpg"
        )
    if bound.connection.dbapi_connection.autocommit:
        raise no_transaction()


def _unscoped(connection: Any) -> Any:
    """The session itself, where a scoped one was given."""
    return connection() if hasattr(connection, "registry") else connection


class Alchemy(Blocking):
    """An SQLAlchemy Session, scoped_session or Connection."""

    def __init__(self, connection: Any, program: Program, identify: Callable[[], None]) -> None:
        super().__init__(_unscoped(connection), program, identify)
        self._books = _Books(self._connection, self._texts)

    def _standing(self) -> Standing:
        return self._books.standing()

    def _flush(self) -> None:
        self._books.flush()

    def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        return self._books.perform(actions)


class AsyncAlchemy(Async):
    """An SQLAlchemy AsyncSession, async_scoped_session or AsyncConnection."""

    def __init__(
        self, connection: Any, program: Program, identify: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(_unscoped(connection), program, identify)
        subject = self._connection
        is_session = hasattr(subject, "sync_session")
        inner = subject.sync_session if is_session else subject.sync_connection
        if inner is None:
            raise ConfigurationError(
                "this AsyncConnection is not open yet: `async with engine.connect() as connection:`"
            )
        self._books = _Books(inner, self._texts)

    async def _standing(self) -> Standing:
        return self._books.standing()

    async def _flush(self) -> None:
        await self._connection.run_sync(lambda _: self._books.flush())

    async def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        rows: Sequence[Row] = await self._connection.run_sync(
            lambda _: self._books.perform(actions)
        )
        return rows


# --- Django -----------------------------------------------------------------------------------


class _Undone(Exception):
    """Makes Django go back to a savepoint."""


class Django(Blocking):
    """Django's `connection` or `connections[alias]`, inside `transaction.atomic()`."""

    def __init__(self, connection: Any, program: Program, identify: Callable[[], None]) -> None:
        from django.db import connections

        # `connection` is one name for a connection of each thread.
        super().__init__(connections[connection.alias], program, identify)
        if connection.vendor != "postgresql":
            raise ConfigurationError(
                f"in_transaction cannot use Django's connection {connection.alias!r}: it leads to "
                f"{connection.vendor}, and the keys are in PostgreSQL"
            )
        from django.db.backends.postgresql.psycopg_any import is_psycopg3

        if not is_psycopg3:
            raise ConfigurationError("in_transaction needs Django on psycopg 3, not on psycopg2")

    def _standing(self) -> Standing:
        connection = self._connection
        if connection.in_atomic_block:
            return Standing.OPEN
        if connection.get_autocommit():
            return Standing.BARE
        is_idle = connection.connection.info.transaction_status == 0
        return Standing.READY if is_idle else Standing.OPEN

    def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        rows: Sequence[Row] = ()
        for action in actions:
            if isinstance(action, Statement):
                text = self._texts[action.name]
                with self._connection.cursor() as cursor:
                    cursor.execute(text.percents, text.positional(action.params))
                    rows = cursor.fetchall() if cursor.description else ()
            elif action.how is Save.SET:
                from django.db import transaction

                block = transaction.atomic(using=self._connection.alias)
                block.__enter__()
                action.mark.made = block
            elif action.mark.made is not None:
                block, action.mark.made = action.mark.made, None
                why = _Undone() if action.how is Save.BACK else None
                block.__exit__(type(why) if why else None, why, None)
        return rows
