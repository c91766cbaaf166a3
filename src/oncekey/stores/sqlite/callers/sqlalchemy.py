"""Takes part in the transaction of an SQLAlchemy session or connection on SQLite.

Statements of ours run on the driver's own connection below, as with a plain sqlite3 or aiosqlite
connection; the body's savepoint is SQLAlchemy's, so that objects of a session go back with their
rows. SQLAlchemy takes a transaction for begun before SQLite knows of it: what counts here is what
SQLite says, and where it knows of none, BEGIN IMMEDIATE is sent. The session's or connection's own
commit() ends that, whichever way of transaction control the engine was given.

Owns that order and which dialects are accepted. Nothing here commits or rolls back but to our own
savepoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from oncekey.core.commands import Claim, Claimed, Command, Finish, Release, Reply
from oncekey.core.errors import ConfigurationError
from oncekey.stores.sqlalchemy_savepoints import (
    Savepoint,
    connection_of,
    inner_of,
    is_session,
    set_savepoint,
    unscoped,
)
from oncekey.stores.sqlite import errors
from oncekey.stores.sqlite.caller_transaction import Participant
from oncekey.stores.sqlite.callers.drivers import EnlistedAio, EnlistedSQLite

_DIALECTS: Final = {False: "sqlite+pysqlite", True: "sqlite+aiosqlite"}

MakeParticipant = Callable[[Any], Participant]


class _Books:
    """What is known of one session or connection: savepoints and claims, the innermost last."""

    def __init__(self, subject: Any, *, is_async: bool) -> None:
        self._subject = subject
        self._wanted = _DIALECTS[is_async]
        self._savepoints: list[Savepoint] = []
        self._claims: list[Release] = []

    def driver(self) -> Any:
        """The connection below: sqlite3's, or aiosqlite's."""
        bound = connection_of(self._subject)
        dialect = f"{bound.dialect.name}+{bound.dialect.driver}"
        if dialect != self._wanted:
            raise ConfigurationError(
                f"the keys are in an SQLite file, and this SQLAlchemy connection is one of "
                f"{dialect}; in_transaction takes {self._wanted} here, on the same file"
            )
        return bound.connection.driver_connection

    def begin(self, commands: Sequence[Command]) -> Any:
        """The connection below. Where one of the commands begins a transaction, SQLAlchemy has to
        know first: its commit() would do nothing, or it would begin another."""
        claims = any(type(command) is Claim for command in commands)
        if claims and not is_session(self._subject) and not self._subject.in_transaction():
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
        """Write what the body has left unwritten."""
        if is_session(self._subject):
            self._subject.flush()

    def release_savepoint(self) -> None:
        from sqlalchemy.exc import InvalidRequestError

        try:
            self._savepoints.pop().end(keep=True)
        except InvalidRequestError as error:  # it ended with its transaction; another has begun
            raise errors.transaction_over() from error

    def given_up(self) -> list[Command]:
        """What frees the key of the innermost run."""
        return [self._claims[-1]] if self._claims else []


class EnlistedAlchemy:
    """A store's records in the transaction of a Session, scoped_session or Connection."""

    def __init__(self, connection: Any, participant: MakeParticipant) -> None:
        self.connection = unscoped(connection)
        self._books = _Books(self.connection, is_async=False)
        self._make = participant
        self._enlisted: tuple[Any, EnlistedSQLite] | None = None

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        replies = self._on_driver(commands).apply(commands)
        self._books.note(commands, replies)
        return replies

    def set_savepoint(self) -> None:
        try:
            self._books.set_savepoint()
        except BaseException:
            self._give_up()
            raise

    def rollback_to_savepoint(self) -> None:
        self._books.rollback_to_savepoint()

    def release_savepoint(self) -> None:
        try:
            self._books.flush()
            if not self._books.driver().in_transaction:
                raise errors.transaction_over()
        except BaseException:
            # Rows without their record must not be committed, whoever catches this.
            with suppress(Exception):
                self._books.rollback_to_savepoint()
            self._give_up()
            raise
        self._books.release_savepoint()

    def _give_up(self) -> None:
        """Free the key. Why that had to be is what the caller must see: no error of ours."""
        with suppress(Exception):
            self.apply(self._books.given_up())

    def _on_driver(self, commands: Sequence[Command]) -> EnlistedSQLite:
        """On the connection that the session has now: it may have another in the next transaction,
        perhaps to another file."""
        driver = self._books.begin(commands)
        if self._enlisted is None or self._enlisted[0] is not driver:
            self._enlisted = driver, EnlistedSQLite(driver, self._make(driver))
        return self._enlisted[1]


class EnlistedAsyncAlchemy:
    """The same for an AsyncSession, async_scoped_session or AsyncConnection."""

    def __init__(self, connection: Any, participant: MakeParticipant) -> None:
        self.connection = unscoped(connection)
        self._books = _Books(inner_of(self.connection), is_async=True)
        self._make = participant
        self._enlisted: tuple[Any, EnlistedAio] | None = None

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        enlisted = await self._on_driver(commands)
        replies = await enlisted.apply(commands)
        self._books.note(commands, replies)
        return replies

    async def set_savepoint(self) -> None:
        try:
            await self._inside(self._books.set_savepoint)
        except BaseException:
            await self._give_up()
            raise

    async def rollback_to_savepoint(self) -> None:
        await self._inside(self._books.rollback_to_savepoint)

    async def release_savepoint(self) -> None:
        try:
            await self._inside(self._books.flush)
            if not (await self._inside(self._books.driver)).in_transaction:
                raise errors.transaction_over()
        except BaseException:
            with suppress(Exception):
                await self._inside(self._books.rollback_to_savepoint)
            await self._give_up()
            raise
        await self._inside(self._books.release_savepoint)

    async def _give_up(self) -> None:
        with suppress(Exception):
            await self.apply(self._books.given_up())

    async def _on_driver(self, commands: Sequence[Command]) -> EnlistedAio:
        driver = await self._inside(lambda: self._books.begin(commands))
        if self._enlisted is None or self._enlisted[0] is not driver:
            self._enlisted = driver, EnlistedAio(driver, self._make(driver))
        return self._enlisted[1]

    async def _inside(self, call: Callable[[], Any]) -> Any:
        """Where SQLAlchemy's blocking half may wait for its driver."""
        return await self.connection.run_sync(lambda _: call())
