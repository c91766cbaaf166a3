"""Performs actions on a caller's asyncpg connection, also on one acquired from a pool.

Every decision is in caller_transaction.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncekey.stores.postgres.caller_connections.base import (
    AsyncCallerTransactionBase,
    savepoint_sql,
)
from oncekey.stores.postgres.caller_transaction import Action, TransactionState
from oncekey.stores.postgres.rows import Row
from oncekey.stores.postgres.statements import Statement


class AsyncpgTransaction(AsyncCallerTransactionBase):
    """The store's records in the transaction of an asyncpg connection."""

    may_leave_savepoints = True

    async def _transaction_state(self) -> TransactionState:
        connection = self._connection
        is_open = connection.is_closed() or connection.is_in_transaction()
        return TransactionState.OPEN if is_open else TransactionState.AUTOCOMMIT

    async def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        rows: Sequence[Row] = ()
        for action in actions:
            if isinstance(action, Statement):
                query = self._texts[action.name].query
                rows = await self._connection.fetch(query.sql, *query.encode(action.params))
                continue
            has_ended = self._connection.is_closed() or not self._connection.is_in_transaction()
            sql = savepoint_sql(action, has_ended=has_ended)
            if sql is not None:
                await self._connection.execute(sql)
        return rows
