"""A caller's psycopg connection, blocking or not.

Everything that can be goes out as one text, in one round trip. The caller's row and cursor
factories, adapters and loaders have no part in it. Every decision is in caller_transaction.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row

from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres.caller_transaction import Action, Save, Saving, Standing
from oncekey.stores.postgres.callers.base import Async, Blocking, Text, savepoint_text
from oncekey.stores.postgres.program import Program
from oncekey.stores.postgres.rows import Row

_IDLE: Final = psycopg.pq.TransactionStatus.IDLE
_NO_PIPELINE: Final = psycopg.pq.PipelineStatus.OFF
_UNKNOWN: Final = psycopg.pq.TransactionStatus.UNKNOWN  # the connection is broken

# Queries that hold nothing a caller chose: all of a text may end up in a server's log.
_SENT_AS_TEXT: Final = frozenset(("enlist", "let_go"))

_ADAPTERS: Final = AdaptersMap(psycopg.adapters)


class _Cursor(psycopg.RawCursor[Any]):
    """One that adapts values as psycopg does by itself."""

    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS


class _AsyncCursor(psycopg.AsyncRawCursor[Any]):
    """The same for asyncio."""

    @property
    def adapters(self) -> AdaptersMap:
        return _ADAPTERS


class _Text(NamedTuple):
    """Statements to be sent in one go; those of the first are the rows that count."""

    sql: bytes
    gives_rows: bool


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

    def standing(self) -> Standing:
        if self._connection.pgconn.pipeline_status != _NO_PIPELINE:
            raise ConfigurationError(
                "the connection is in pipeline mode, where nobody knows what was done already; run "
                "the operation outside of it. Its body may have a pipeline of its own"
            )
        if self._connection.pgconn.transaction_status != _IDLE:
            return Standing.OPEN
        return Standing.BARE if self._connection.autocommit else Standing.READY

    def steps(self, actions: Sequence[Action]) -> Iterator[_Text | _Query | _Enter | _Leave]:
        texts: list[str] = []
        for action in actions:
            if isinstance(action, Saving):
                yield from self._saving(action, texts)
            elif action.name in _SENT_AS_TEXT:
                texts.append(self._texts[action.name].inline(action.params))
            else:
                yield from _joined(texts)
                text = self._texts[action.name]
                yield _Query(text.dollars.encode(), text.written(action.params))
        yield from _joined(texts)

    def _saving(self, saving: Saving, texts: list[str]) -> Iterator[_Text | _Enter | _Leave]:
        how, mark = saving
        if how is Save.SET and not self._is_in_block():
            yield from _joined(texts)
            mark.made = self._connection.transaction()
            yield _Enter(mark.made)
        elif mark.made is not None and not isinstance(mark.made, str):
            yield from _joined(texts)
            block, mark.made = mark.made, None
            yield _Leave(block, _Undone() if how is Save.BACK else None)
        else:
            status = self._connection.pgconn.transaction_status
            text = savepoint_text(saving, is_over=status in (_IDLE, _UNKNOWN))
            if text is not None:
                texts.append(text)

    def _is_in_block(self) -> bool:
        """Whether the caller's `with connection.transaction():` is around us. If psycopg stops
        telling, a block of our own is always right, and only slower."""
        return bool(getattr(self._connection, "_num_transactions", 0))


def _joined(texts: list[str]) -> Iterator[_Text]:
    if texts:
        yield _Text("; ".join(texts).encode(), texts[0].startswith("SELECT"))
        texts.clear()


class Psycopg(Blocking):
    """A psycopg Connection."""

    leaves_savepoints = True

    def __init__(self, connection: Any, program: Program, identify: Callable[[], None]) -> None:
        super().__init__(connection, program, identify)
        self._wire = _Wire(connection, self._texts)
        self._cursor = _Cursor(connection, row_factory=tuple_row)

    def _standing(self) -> Standing:
        return self._wire.standing()

    def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        rows: Sequence[Row] = ()
        cursor = self._cursor
        for step in self._wire.steps(actions):
            if isinstance(step, _Query):
                rows = cursor.execute(step.sql, step.params).fetchall()
            elif isinstance(step, _Text):
                cursor.execute(step.sql, prepare=False)
                rows = cursor.fetchall() if step.gives_rows else rows
            elif isinstance(step, _Enter):
                step.block.__enter__()
            else:
                step.block.__exit__(type(step.error) if step.error else None, step.error, None)
        return rows


class AsyncPsycopg(Async):
    """A psycopg AsyncConnection."""

    leaves_savepoints = True

    def __init__(
        self, connection: Any, program: Program, identify: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(connection, program, identify)
        self._wire = _Wire(connection, self._texts)
        self._cursor = _AsyncCursor(connection, row_factory=tuple_row)

    async def _standing(self) -> Standing:
        return self._wire.standing()

    async def _perform(self, actions: Sequence[Action]) -> Sequence[Row]:
        rows: Sequence[Row] = ()
        cursor = self._cursor
        for step in self._wire.steps(actions):
            if isinstance(step, _Query):
                rows = await (await cursor.execute(step.sql, step.params)).fetchall()
            elif isinstance(step, _Text):
                await cursor.execute(step.sql, prepare=False)
                rows = await cursor.fetchall() if step.gives_rows else rows
            elif isinstance(step, _Enter):
                await step.block.__aenter__()
            else:
                kind = type(step.error) if step.error else None
                await step.block.__aexit__(kind, step.error, None)
        return rows
