"""Drives the programs of caller_transaction.py: the part that all kinds of connections share.

This module owns running the generators, translating their errors, and the SQL of savepoints. How
actions are performed on a certain driver is in the modules beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from oncekey.core.commands import Command, Reply
from oncekey.core.errors import ConfigurationError
from oncekey.stores.outbox_commands import Added, OutboxRow
from oncekey.stores.postgres import errors, outbox_program
from oncekey.stores.postgres.caller_transaction import (
    NO_SAVEPOINT,
    Action,
    Actions,
    CallerProgram,
    SavepointAction,
    SavepointCommand,
    TransactionState,
    WrongStore,
    transaction_ended,
)
from oncekey.stores.postgres.program import Program
from oncekey.stores.postgres.queries import query_texts
from oncekey.stores.postgres.rows import Row

T = TypeVar("T")


class StoreCalls(NamedTuple):
    """What a caller's transaction needs of its store, on the store's own connections.

    identify   makes the program read again which store it belongs to
    confirm    returns when the outcomes in some replies cannot be lost by a failover
    """

    identify: Callable[[], None]
    confirm: Callable[[Sequence[Reply]], None]


class AsyncStoreCalls(NamedTuple):
    """The same for asyncio."""

    identify: Callable[[], Awaitable[None]]
    confirm: Callable[[Sequence[Reply]], Awaitable[None]]


class CallerTransactionBase(ABC):
    """The methods of a CallerTransaction. How actions are performed depends on the kind of
    connection."""

    may_leave_savepoints = False

    def __init__(self, connection: Any, program: Program, store: StoreCalls) -> None:
        self.connection = connection  # the connection itself, if the caller gave a proxy for it
        self._connection = connection
        self._texts = query_texts(program.layout)
        self._program = program
        self._store = store
        self._actions = CallerProgram(program, may_leave=self.may_leave_savepoints)

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        replies = [self._apply(command) for command in commands]
        self._store.confirm(replies)
        return replies

    def _apply(self, command: Command) -> Reply:
        return self._run_here(lambda state: self._actions.apply(command, state))

    def add_message(self, row: OutboxRow, /) -> Added:
        """Add a message to the store's outbox, in this transaction."""
        return self._run_here(lambda state: outbox_program.add(self._program, row, state))

    def _run_here(self, make: Callable[[TransactionState], Actions[T]]) -> T:
        """Run a program that refuses a connection to another store, once more if it is this one
        that has changed."""
        known = self._program.identity
        try:
            return self._run(make(self._transaction_state()))
        except WrongStore:
            self._store.identify()
            if self._program.identity == known:
                raise
        return self._run(make(self._transaction_state()))

    def set_savepoint(self) -> None:
        if self._actions.lacks_savepoint:
            self._run(self._actions.set_savepoint())

    def rollback_to_savepoint(self) -> None:
        self._run(self._actions.rollback_to_savepoint())

    def release_savepoint(self) -> None:
        """The body has returned. Its savepoint stays until the record is written."""
        try:
            self._flush()
            state = self._transaction_state()
        except BaseException:
            self._run(self._actions.give_up())
            raise
        if state is not TransactionState.OPEN:
            self._run(self._actions.give_up(state))
            raise transaction_ended()

    def _run(self, program: Actions[T]) -> T:
        try:
            actions = next(program)
            while True:
                try:
                    rows = self._perform(actions)
                except BaseException as error:
                    actions = program.throw(error)
                else:
                    actions = program.send(rows)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except Exception as error:
            translated = _translate_error(error, self._program)
            if translated is None:
                raise
            raise translated from error

    def _flush(self) -> None:
        """Write the objects that the body has changed and not flushed."""
        return

    @abstractmethod
    def _transaction_state(self) -> TransactionState: ...

    @abstractmethod
    def _perform(self, actions: Sequence[Action]) -> Sequence[Row]: ...


class AsyncCallerTransactionBase(ABC):
    """The methods of an AsyncCallerTransaction."""

    may_leave_savepoints = False

    def __init__(self, connection: Any, program: Program, store: AsyncStoreCalls) -> None:
        self.connection = connection  # the connection itself, if the caller gave a proxy for it
        self._connection = connection
        self._texts = query_texts(program.layout)
        self._program = program
        self._store = store
        self._actions = CallerProgram(program, may_leave=self.may_leave_savepoints)

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        replies = [await self._apply(command) for command in commands]
        await self._store.confirm(replies)
        return replies

    async def _apply(self, command: Command) -> Reply:
        return await self._run_here(lambda state: self._actions.apply(command, state))

    async def add_message(self, row: OutboxRow, /) -> Added:
        """Add a message to the store's outbox, in this transaction."""
        return await self._run_here(lambda state: outbox_program.add(self._program, row, state))

    async def _run_here(self, make: Callable[[TransactionState], Actions[T]]) -> T:
        known = self._program.identity
        try:
            return await self._run(make(await self._transaction_state()))
        except WrongStore:
            await self._store.identify()
            if self._program.identity == known:
                raise
        return await self._run(make(await self._transaction_state()))

    async def set_savepoint(self) -> None:
        if self._actions.lacks_savepoint:
            await self._run(self._actions.set_savepoint())

    async def rollback_to_savepoint(self) -> None:
        await self._run(self._actions.rollback_to_savepoint())

    async def release_savepoint(self) -> None:
        """The body has returned. Its savepoint stays until the record is written."""
        try:
            await self._flush()
            state = await self._transaction_state()
        except BaseException:
            await self._run(self._actions.give_up())
            raise
        if state is not TransactionState.OPEN:
            await self._run(self._actions.give_up(state))
            raise transaction_ended()

    async def _run(self, program: Actions[T]) -> T:
        try:
            actions = next(program)
            while True:
                try:
                    rows = await self._perform(actions)
                except GeneratorExit:
                    raise  # the event loop is shutting down: nothing can be awaited any more
                except BaseException as error:
                    actions = program.throw(error)
                else:
                    actions = program.send(rows)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except Exception as error:
            translated = _translate_error(error, self._program)
            if translated is None:
                raise
            raise translated from error

    async def _flush(self) -> None:
        """Write the objects that the body has changed and not flushed."""
        return

    @abstractmethod
    async def _transaction_state(self) -> TransactionState: ...

    @abstractmethod
    async def _perform(self, actions: Sequence[Action]) -> Sequence[Row]: ...


def _translate_error(error: BaseException, program: Program) -> Exception | None:
    """The error to raise for a driver's; None to raise the driver's error unchanged."""
    if isinstance(error, ConfigurationError):
        return None
    if errors.lacks_outbox(error):
        return errors.no_outbox()
    if errors.sqlstate_of(error) in errors.SCHEMA_MISSING:
        return ConfigurationError(
            f"the connection leads to a database without oncekey's schema "
            f"{program.layout.schema!r}; the store is in {program.address}. Give in_transaction a "
            f"connection to that database, or open the store where the connection leads and run "
            f"`oncekey migrate` there ({errors.describe(error)})"
        )
    if errors.sqlstate_of(error) in (errors.CLAIM_TRANSACTION_ENDED, NO_SAVEPOINT):
        return transaction_ended()
    return errors.translate_caller_error(error)


# --- savepoints in SQL --------------------------------------------------------------------------


def savepoint_sql(command: SavepointCommand, *, has_ended: bool) -> str | None:
    """The SQL to send, None for nothing. `has_ended`: the transaction has ended."""
    action, savepoint = command
    if action is SavepointAction.SET:
        return f"SAVEPOINT {savepoint.take_name()}"
    name = savepoint.free_name()
    if name is None or has_ended:
        return None
    if action is SavepointAction.RELEASE:
        return f"RELEASE SAVEPOINT {name}"
    return f"ROLLBACK TO SAVEPOINT {name}; RELEASE SAVEPOINT {name}"
