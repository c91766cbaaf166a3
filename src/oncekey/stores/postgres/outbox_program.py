"""The outbox of a PostgreSQL store: commands become statements, rows become replies.

The rules of taking, ordering and settling are SQL functions (sql/outbox_table.sql), because each
statement of the store is a transaction of its own. This module must not know connections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from oncekey.stores.outbox_commands import (
    RECHECK_MAX_US,
    RECHECK_MIN_US,
    TAKE_BYTES,
    TAKE_ROUNDS,
    Added,
    DiscardParked,
    ListParked,
    Measure,
    OutboxCommand,
    OutboxCounts,
    OutboxEntry,
    OutboxRow,
    Purge,
    ReleaseParked,
    Settle,
    Take,
)
from oncekey.stores.postgres.caller_transaction import (
    Actions,
    TransactionState,
    WrongStore,
    no_transaction,
)
from oncekey.stores.postgres.program import Program
from oncekey.stores.postgres.queries import Layout, substitute
from oncekey.stores.postgres.rows import Row
from oncekey.stores.postgres.schema import SchemaProgram, Script
from oncekey.stores.postgres.statements import Statement, Statements
from oncekey.stores.sql_files import load_queries

R = TypeVar("R")


def creation_script(layout: Layout) -> str:
    """The script that makes the table and its functions, or brings them up to date."""
    parts = load_queries("oncekey.stores.postgres", "sql/outbox_table.sql")
    return substitute(parts["create"], layout) + ";\n"


def create(layout: Layout) -> SchemaProgram[None]:
    yield Script(creation_script(layout))


def run(command: OutboxCommand[R], now: int | None) -> Statements[R]:
    """The statements of one command. `now` is a test's clock, None for the server's."""
    statement, reply_of = _PROGRAMS[type(command)]
    rows = yield statement(command, now)
    reply: R = reply_of(rows)
    return reply


def add(program: Program, row: OutboxRow, state: TransactionState) -> Actions[Added]:
    """The actions that add a message in a caller's transaction."""
    if state is TransactionState.AUTOCOMMIT:
        raise no_transaction()
    id, queue, group, headers, body, fence = row
    key = (program.now(), program.identity.hex(), id)
    rows = yield (Statement("outbox_add", (*key, queue, group, headers, body, fence)),)
    added = Added(rows[0][0])
    if added is Added.WRONG_STORE:
        raise WrongStore(
            f"the connection leads to another database than {program.address}, where this outbox "
            "is: nobody would publish the message. Give add() a connection to that database"
        )
    return added


def _take(command: Take, now: int | None) -> Statement:
    limits = (command.limit, TAKE_ROUNDS, RECHECK_MIN_US, RECHECK_MAX_US, TAKE_BYTES)
    return Statement("outbox_take", (now, command.owner, command.lease, *limits))


def _settle(command: Settle, now: int | None) -> Statement:
    failed = command.failed
    columns = (
        [one.seq for one in failed],
        [one.delay for one in failed],
        [one.error for one in failed],
        [one.counts for one in failed],
        [one.park for one in failed],
    )
    seqs = (command.published, command.unsent)
    params = (now, command.owner, *seqs, *columns, command.keep, command.limit)
    return Statement("outbox_settle", params)


def _entries(rows: Sequence[Row]) -> list[OutboxEntry]:
    return [OutboxEntry(*row) for row in rows]


def _number(rows: Sequence[Row]) -> int:
    return int(rows[0][0])


_Program = tuple[Callable[[Any, int | None], Statement], Callable[[Sequence[Row]], Any]]
_PROGRAMS: Final[dict[type[OutboxCommand[Any]], _Program]] = {
    Take: (_take, _entries),
    Settle: (_settle, _number),
    Purge: (lambda c, now: Statement("outbox_purge", (now, c.keep, c.limit)), _number),
    Measure: (
        lambda c, now: Statement("outbox_measure", (now,)),
        lambda rows: OutboxCounts(*map(int, rows[0])),
    ),
    ListParked: (lambda c, now: Statement("outbox_parked", (c.limit,)), _entries),
    ReleaseParked: (lambda c, now: Statement("outbox_release", (c.ids,)), _number),
    DiscardParked: (lambda c, now: Statement("outbox_discard", (c.ids,)), _number),
}
