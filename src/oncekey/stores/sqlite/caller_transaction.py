"""Taking part in a caller's transaction, whichever driver runs the statements.

If no transaction is open, one is begun with BEGIN IMMEDIATE for the caller to end. Owns which
connections are accepted and what happens when the transaction has ended under a running body.
Must not know how statements are executed.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Sequence
from typing import Any, Final

from oncekey.core.commands import Claim, Command, Done, Look, Release, Reply
from oncekey.core.errors import ConfigurationError
from oncekey.stores.sqlite import errors
from oncekey.stores.sqlite.program import BEGIN, LOCK, QUERIES, Program, Statement, Steps

_SAVEPOINT: Final = Statement("SAVEPOINT oncekey_body")
_ROLLBACK_TO: Final = Statement("ROLLBACK TO oncekey_body")
_RELEASE: Final = Statement("RELEASE oncekey_body")
_LOCATION: Final = Statement(QUERIES["location"])


class Participant:
    """One caller's connection, as programs."""

    def __init__(self, program: Program, path: str, *, may_begin: bool) -> None:
        self._program = program
        self._path = path
        self._may_begin = may_begin
        self._checked = False

    def apply(self, commands: Sequence[Command], in_transaction: bool) -> Steps[list[Reply]]:
        if not self._checked:
            if in_transaction:
                # Before anything is read: a deferred transaction that has read does not wait for
                # the lock, and asking for the location counts as reading.
                yield LOCK
            self._check_location((yield _LOCATION))
            self._checked = True
        if not in_transaction:
            if any(type(command) is Claim for command in commands):
                self._check_may_begin()
                yield BEGIN
            elif all(type(command) is Release for command in commands):
                # The transaction of the claim was rolled back under the body: the key is free,
                # and the body's own error is what its caller has to see.
                return [Done() for _ in commands]
            elif any(type(command) is not Look for command in commands):
                raise errors.transaction_over()
        return (yield from self._program.apply_locked(commands))

    def set_savepoint(self) -> Steps[None]:
        yield _SAVEPOINT

    def rollback_to_savepoint(self, in_transaction: bool) -> Steps[None]:
        if in_transaction:  # else it is undone already
            yield _ROLLBACK_TO
            yield _RELEASE

    def release_savepoint(self, in_transaction: bool) -> Steps[None]:
        # The mark may go before Finish: that cannot be Lost here. The transaction has held the
        # write lock since the claim, so nobody else has decided the key; and if it was ended or
        # rolled back to before the claim, the savepoint went with it and this fails.
        if not in_transaction:
            raise errors.transaction_over()
        yield _RELEASE

    def _check_location(self, rows: Sequence[Sequence[Any]]) -> None:
        """Records in another file, even in an attached one, would not commit with the caller's
        rows, and would not be met by those who come without a transaction."""
        file = os.fsdecode(rows[0][0] or b"")
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
    """Whether `with connection:` or commit() would end a transaction that we begin."""
    return getattr(connection, "autocommit", None) is not True


def is_sqlite3(connection: Any) -> bool:
    return isinstance(connection, sqlite3.Connection)


def is_aiosqlite(connection: Any) -> bool:
    module = sys.modules.get("aiosqlite")  # whoever has such a connection has imported it
    return module is not None and isinstance(connection, module.Connection)


def refuse(connection: Any, wanted: str) -> ConfigurationError:
    return ConfigurationError(
        f"in_transaction needs {wanted} on the store's file, not a "
        f"{type(connection).__module__}.{type(connection).__qualname__}"
    )


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is not there (yet)
        return False
