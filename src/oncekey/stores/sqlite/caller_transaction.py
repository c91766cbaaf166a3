"""The store's commands inside a caller's transaction, for every driver.

If no transaction is open, one is begun with BEGIN IMMEDIATE, and the caller ends it. This module
decides which connections are accepted, what their commits promise, and what happens if the
transaction ended while a body ran.
It must not know how statements are executed; caller_connections/ does that.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Sequence
from typing import Any, Final

from oncekey.core.commands import Claim, Command, Done, Look, Release, Reply
from oncekey.core.errors import ConfigurationError
from oncekey.core.guarantees import Guarantee
from oncekey.stores.outbox_commands import Added, OutboxRow
from oncekey.stores.sqlite import durability, errors, outbox_program
from oncekey.stores.sqlite.program import BEGIN, LOCK, QUERIES, Program, Statement, Statements

_SAVEPOINT: Final = Statement("SAVEPOINT oncekey_body")
_ROLLBACK_TO: Final = Statement("ROLLBACK TO oncekey_body")
_RELEASE: Final = Statement("RELEASE oncekey_body")
_CONNECTION: Final = Statement(QUERIES["connection"])


class CallerProgram:
    """What the store does on one caller's connection, as programs.

    `guarantee` is known after the first statement, and only if the connection's commits promise
    less than the store's, `store_guarantee`.
    """

    def __init__(
        self, program: Program, path: str, store_guarantee: Guarantee, *, may_begin: bool
    ) -> None:
        self.guarantee: Guarantee | None = None
        self._program = program
        self._path = path
        self._store_guarantee = store_guarantee
        self._may_begin = may_begin
        self._checked = False

    def apply(self, commands: Sequence[Command], in_transaction: bool) -> Statements[list[Reply]]:
        yield from self.check(in_transaction)
        if not in_transaction:
            if any(type(command) is Claim for command in commands):
                self._check_may_begin()
                yield BEGIN
            elif all(type(command) is Release for command in commands):
                # The claim's transaction was rolled back while the body ran: the key is free, and
                # the caller must see the body's own error.
                return [Done() for _ in commands]
            elif any(type(command) is not Look for command in commands):
                raise errors.transaction_ended()
        return (yield from self._program.apply_in_transaction(commands))

    def add_message(self, row: OutboxRow, in_transaction: bool) -> Statements[Added]:
        """Add a message to the store's outbox."""
        yield from self.check(in_transaction)
        if in_transaction:
            yield LOCK
        else:
            self._check_may_begin()
            yield BEGIN
        return (yield from outbox_program.add(row, self._program.now()))

    def check(self, in_transaction: bool) -> Statements[None]:
        """Read once where the connection leads and what its commits promise."""
        if self._checked:
            return
        if in_transaction:
            # Lock before anything is read: a deferred transaction that has read does not wait for
            # the lock, and what follows is a read.
            yield LOCK
        file, synchronous = (yield _CONNECTION)[0]
        self._check_location(file)
        self.guarantee = durability.connection_guarantee(self._store_guarantee, synchronous)
        self._checked = True

    def set_savepoint(self) -> Statements[None]:
        yield _SAVEPOINT

    def rollback_to_savepoint(self, in_transaction: bool) -> Statements[None]:
        if in_transaction:  # otherwise everything was rolled back already
            yield _ROLLBACK_TO
            yield _RELEASE

    def release_savepoint(self, in_transaction: bool) -> Statements[None]:
        # The savepoint may be released before Finish, because Finish cannot be Lost here. The
        # transaction has held the write lock since the claim, so nobody else has decided the key;
        # and if it ended or was rolled back to before the claim, the savepoint went with it and
        # this statement fails.
        if not in_transaction:
            raise errors.transaction_ended()
        yield _RELEASE

    def _check_location(self, name: bytes | None) -> None:
        """Records in another file, even in an attached one, would not commit with the caller's
        rows, and callers without a transaction would not see them."""
        file = os.fsdecode(name or b"")
        if file and _same_file(file, self._path):
            return
        raise ConfigurationError(
            f"the connection's main database is {file or 'in memory'}, this store is "
            f"{self._path}; they must be the same file to commit together"
        )

    def _check_may_begin(self) -> None:
        if not self._may_begin:
            raise ConfigurationError(
                "the connection has autocommit=True and no open transaction, and its commit() "
                "would do nothing; begin one yourself with execute('BEGIN IMMEDIATE')"
            )


def may_begin(connection: Any) -> bool:
    """True if `with connection:` or commit() would end a transaction that we begin."""
    return getattr(connection, "autocommit", None) is not True


def is_sqlite3(connection: Any) -> bool:
    return isinstance(connection, sqlite3.Connection)


def is_aiosqlite(connection: Any) -> bool:
    module = sys.modules.get("aiosqlite")  # if the caller has such a connection, it is imported
    return module is not None and isinstance(connection, module.Connection)


def unsupported_connection(connection: Any, wanted: str) -> ConfigurationError:
    return ConfigurationError(
        f"in_transaction needs {wanted} on the store's file, not a "
        f"{type(connection).__module__}.{type(connection).__qualname__}"
    )


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them does not exist (yet)
        return False
