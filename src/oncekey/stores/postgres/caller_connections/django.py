"""Performs actions on a caller's Django connection, inside `transaction.atomic()`.

Django's own savepoints are used, so that a rollback also drops Django's callbacks for the commit.
This module is imported only if the caller uses Django.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres.caller_connections.base import CallerTransactionBase, StoreCalls
from oncekey.stores.postgres.caller_transaction import Action, SavepointAction, TransactionState
from oncekey.stores.postgres.program import Program
from oncekey.stores.postgres.rows import Row
from oncekey.stores.postgres.statements import Statement


class _Rollback(Exception):
    """Makes Django roll back to a savepoint."""


class DjangoTransaction(CallerTransactionBase):
    """The store's records in the transaction of Django's `connection` or `connections[alias]`."""

    def __init__(self, connection: Any, program: Program, store: StoreCalls) -> None:
        from django.db import connections

        # `connection` is a proxy for the connection of the current thread.
        super().__init__(connections[connection.alias], program, store)
        if connection.vendor != "postgresql":
            raise ConfigurationError(
                f"in_transaction cannot use Django's connection {connection.alias!r}: it leads to "
                f"{connection.vendor}, and the keys are in PostgreSQL"
            )
        from django.db.backends.postgresql.psycopg_any import is_psycopg3

        if not is_psycopg3:
            raise ConfigurationError("in_transaction needs Django on psycopg 3, not on psycopg2")

    def _transaction_state(self) -> TransactionState:
        connection = self._connection
        if connection.in_atomic_block:
            return TransactionState.OPEN
        if connection.get_autocommit():
            return TransactionState.AUTOCOMMIT
        is_idle = connection.connection.info.transaction_status == 0
        return TransactionState.IMPLICIT if is_idle else TransactionState.OPEN

    def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        rows: Sequence[Row] = ()
        for action in actions:
            if isinstance(action, Statement):
                text = self._texts[action.name]
                with self._connection.cursor() as cursor:
                    cursor.execute(text.percent, text.positional(action.params))
                    rows = cursor.fetchall() if cursor.description else ()
            elif action.action is SavepointAction.SET:
                from django.db import transaction

                block = transaction.atomic(using=self._connection.alias)
                block.__enter__()
                action.savepoint.handle = block
            elif action.savepoint.handle is not None:
                block, action.savepoint.handle = action.savepoint.handle, None
                error = _Rollback() if action.action is SavepointAction.ROLLBACK else None
                block.__exit__(type(error) if error else None, error, None)
        return rows
