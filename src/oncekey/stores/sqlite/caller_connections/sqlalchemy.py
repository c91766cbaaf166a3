"""Runs statements in the transaction of a caller's SQLAlchemy session or connection on SQLite.

Our statements run on the driver's connection below SQLAlchemy, as with a plain sqlite3 or aiosqlite
connection. The body's savepoint is SQLAlchemy's own, so that a rollback also restores the session's
objects. SQLAlchemy considers a transaction begun before SQLite does: here SQLite's view counts, and
if SQLite has no transaction, BEGIN IMMEDIATE is sent. The session's or connection's commit() ends
it, whichever kind of transaction control its engine uses.

This module owns that order, and which dialects are accepted. Nothing here commits, and a rollback
goes back to our own savepoint at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from oncekey.core.commands import Claim, Claimed, Command, Finish, Release, Reply
from oncekey.core.errors import ConfigurationError
from oncekey.core.guarantees import Guarantee
from oncekey.stores.outbox_commands import Added, OutboxRow
from oncekey.stores.sqlalchemy_savepoints import (
    Savepoint,
    connection_of,
    is_session,
    set_savepoint,
    sync_part_of,
    unscoped,
)
from oncekey.stores.sqlite import errors
from oncekey.stores.sqlite.caller_connections.drivers import (
    AiosqliteTransaction,
    SQLite3Transaction,
)
from oncekey.stores.sqlite.caller_transaction import CallerProgram

_DIALECTS: Final = {False: "sqlite+pysqlite", True: "sqlite+aiosqlite"}

MakeCallerProgram = Callable[[Any], CallerProgram]


class _SessionState:
    """The open savepoints and claims of one session or connection, the innermost last."""

    def __init__(self, subject: Any, *, is_async: bool) -> None:
        self._subject = subject
        self._dialect = _DIALECTS[is_async]
        self._savepoints: list[Savepoint] = []
        self._claims: list[Release] = []

    def driver(self) -> Any:
        """The driver's connection: a sqlite3 or an aiosqlite connection."""
        bound = connection_of(self._subject)
        dialect = f"{bound.dialect.name}+{bound.dialect.driver}"
        if dialect != self._dialect:
            raise ConfigurationError(
                f"the keys are in an SQLite file, and this SQLAlchemy connection is one of "
                f"{dialect}; in_transaction takes {self._dialect} here, on the same file"
            )
        return bound.connection.driver_connection

    def begin(self, begins: bool) -> Any:
        """The driver's connection. If what follows begins a transaction, SQLAlchemy must begin
        first: otherwise its commit() would do nothing, or it would begin another one."""
        if begins and not is_session(self._subject) and not self._subject.in_transaction():
            self._subject.begin()
        return self.driver()

    def note(self, commands: Sequence[Command], replies: Sequence[Reply]) -> None:
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(command, Claim) and isinstance(reply, Claimed):
                self._claims.append(Release(command.id, command.owner, reply.fence))
            elif isinstance(command, (Finish, Release)):
                self._claims = [claim for claim in self._claims if claim.id != command.id]

    def set_savepoint(self) -> None:
        self._savepoints.append(set_savepoint(self._subject))

    def rollback_to_savepoint(self) -> None:
        self._savepoints.pop().end(keep=False)

    def flush(self) -> None:
        """Write the objects that the body has changed and not flushed."""
        if is_session(self._subject):
            self._subject.flush()

    def release_savepoint(self) -> None:
        from sqlalchemy.exc import InvalidRequestError

        try:
            self._savepoints.pop().end(keep=True)
        except InvalidRequestError as error:  # its transaction ended and another one began
            raise errors.transaction_ended() from error

    def release_commands(self) -> list[Command]:
        """The commands that free the key of the innermost run."""
        return [self._claims[-1]] if self._claims else []


def _has_claim(commands: Sequence[Command]) -> bool:
    return any(type(command) is Claim for command in commands)


class SQLAlchemyTransaction:
    """The store's records in the transaction of a Session, scoped_session or Connection."""

    def __init__(self, connection: Any, make_program: MakeCallerProgram) -> None:
        self.connection = unscoped(connection)
        self._session = _SessionState(self.connection, is_async=False)
        self._make_program = make_program
        self._transaction: tuple[Any, SQLite3Transaction] | None = None

    @property
    def guarantee(self) -> Guarantee | None:
        return self._transaction and self._transaction[1].guarantee

    def read_guarantee(self) -> None:
        self._on_driver(False).read_guarantee()

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        replies = self._on_driver(_has_claim(commands)).apply(commands)
        self._session.note(commands, replies)
        return replies

    def add_message(self, row: OutboxRow, /) -> Added:
        return self._on_driver(True).add_message(row)

    def set_savepoint(self) -> None:
        try:
            self._session.set_savepoint()
        except BaseException:
            self._release_claim()
            raise

    def rollback_to_savepoint(self) -> None:
        self._session.rollback_to_savepoint()

    def release_savepoint(self) -> None:
        try:
            self._session.flush()
            if not self._session.driver().in_transaction:
                raise errors.transaction_ended()
        except BaseException:
            # Rows without their record must not be committed, even if the caller catches this.
            with suppress(Exception):
                self._session.rollback_to_savepoint()
            self._release_claim()
            raise
        self._session.release_savepoint()

    def _release_claim(self) -> None:
        """Free the key. An error here is dropped, because the caller must see the first one."""
        with suppress(Exception):
            self.apply(self._session.release_commands())

    def _on_driver(self, begins: bool) -> SQLite3Transaction:
        """The transaction on the connection that the session has now. In its next transaction the
        session may have another connection, perhaps to another file."""
        driver = self._session.begin(begins)
        if self._transaction is None or self._transaction[0] is not driver:
            self._transaction = driver, SQLite3Transaction(driver, self._make_program(driver))
        return self._transaction[1]


class AsyncSQLAlchemyTransaction:
    """The store's records in the transaction of an AsyncSession, async_scoped_session or
    AsyncConnection."""

    def __init__(self, connection: Any, make_program: MakeCallerProgram) -> None:
        self.connection = unscoped(connection)
        self._session = _SessionState(sync_part_of(self.connection), is_async=True)
        self._make_program = make_program
        self._transaction: tuple[Any, AiosqliteTransaction] | None = None

    @property
    def guarantee(self) -> Guarantee | None:
        return self._transaction and self._transaction[1].guarantee

    async def read_guarantee(self) -> None:
        await (await self._on_driver(False)).read_guarantee()

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        transaction = await self._on_driver(_has_claim(commands))
        replies = await transaction.apply(commands)
        self._session.note(commands, replies)
        return replies

    async def add_message(self, row: OutboxRow, /) -> Added:
        return await (await self._on_driver(True)).add_message(row)

    async def set_savepoint(self) -> None:
        try:
            await self._inside(self._session.set_savepoint)
        except BaseException:
            await self._release_claim()
            raise

    async def rollback_to_savepoint(self) -> None:
        await self._inside(self._session.rollback_to_savepoint)

    async def release_savepoint(self) -> None:
        try:
            await self._inside(self._session.flush)
            if not (await self._inside(self._session.driver)).in_transaction:
                raise errors.transaction_ended()
        except BaseException:
            with suppress(Exception):
                await self._inside(self._session.rollback_to_savepoint)
            await self._release_claim()
            raise
        await self._inside(self._session.release_savepoint)

    async def _release_claim(self) -> None:
        with suppress(Exception):
            await self.apply(self._session.release_commands())

    async def _on_driver(self, begins: bool) -> AiosqliteTransaction:
        driver = await self._inside(lambda: self._session.begin(begins))
        if self._transaction is None or self._transaction[0] is not driver:
            self._transaction = driver, AiosqliteTransaction(driver, self._make_program(driver))
        return self._transaction[1]

    async def _inside(self, call: Callable[[], Any]) -> Any:
        """Call a function where SQLAlchemy's sync half may wait for its driver."""
        return await self.connection.run_sync(lambda _: call())
