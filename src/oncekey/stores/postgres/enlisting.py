"""Taking part in a caller's transaction, whichever driver runs the statements.

The claim locks the key (an advisory lock, tried and never waited for) and writes nothing; steps
and the like are kept here; the finish writes the whole record, in one statement. So a concurrent
duplicate is told at once that the operation is in flight, and a crash leaves nothing.

    mark      a savepoint before the body
    undo      back to it
    settle    nothing: the savepoint stays until the record is written, for if that comes too late
              (another owner has ended the key meanwhile), the body's rows must go

Owns the order of these statements. Must not know how they are executed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.core.commands import Busy, Claim, Command, Done, Finish, Look, Lost, Release, Reply
from oncekey.core.errors import ConfigurationError
from oncekey.core.machine import decide
from oncekey.core.record import Record, State
from oncekey.stores.postgres.program import TRANSACTION_HINT_US, Program, Statement
from oncekey.stores.postgres.rows import Met, Row, met_of

T = TypeVar("T")


class Plain(NamedTuple):
    """A statement without parameters or rows."""

    sql: str


Part = Generator[Statement | Plain, Sequence[Row], T]

_SAVEPOINT: Final = Plain("SAVEPOINT oncekey_body")
_ROLLBACK_TO: Final = Plain("ROLLBACK TO SAVEPOINT oncekey_body")
_RELEASE: Final = Plain("RELEASE SAVEPOINT oncekey_body")
_AS_IT_IS_WRITTEN: Final = -1  # the clock is read by the statement that writes the record


class _Held(NamedTuple):
    """A key this transaction runs: its record as it will be, and what is in the table."""

    record: Record
    met: Met | None
    archive: Record | None


class Participant:
    """One caller's connection, as programs."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._held: dict[bytes, _Held] = {}
        self._marks = 0

    def apply(self, commands: Sequence[Command], in_transaction: bool) -> Part[list[Reply]]:
        replies = []
        for command in commands:
            replies.append((yield from self._one(command, in_transaction)))
        return replies

    def _one(self, command: Command, in_transaction: bool) -> Part[Reply]:
        if isinstance(command, Claim):
            if not in_transaction:
                raise _no_transaction()
            return (yield from self._claim(command))
        held = self._held.get(command.id)
        if held is None:
            if isinstance(command, Release):
                return Done()  # its transaction was rolled back under the body: the key is free
            return (yield from self._elsewhere(command))
        if not in_transaction:
            del self._held[command.id]
            if isinstance(command, Release):
                return Done()
            raise _transaction_over()
        if isinstance(command, Release):
            del self._held[command.id]
            return Done()
        if isinstance(command, Finish):
            return (yield from self._finish(held, command))
        now = yield from self._now()
        reply, write, _ = decide(held.record, command, now)
        if write is not None:
            self._held[command.id] = held._replace(record=write)
        return reply

    def _claim(self, claim: Claim) -> Part[Reply]:
        is_ring = self._program.layout.is_ring
        params = (self._program.now(), is_ring, claim.id, claim.owner, claim.fingerprint)
        row = (yield Statement("enlist", params))[0]
        if row[2] is None:
            return Busy(TRANSACTION_HINT_US)
        met = met_of(row)
        reply, write, archive = decide(met.record if met else None, claim, row[0])
        if write is not None and write.state is State.PENDING:
            self._held[claim.id] = _Held(write, met, archive)
        elif write is not None:
            # A dead owner's key is given up: true whatever becomes of this transaction.
            yield from self._write(_Held(write, met, archive), row[0])
        return reply

    def _finish(self, held: _Held, finish: Finish) -> Part[Reply]:
        reply, write, _ = decide(held.record, finish, _AS_IT_IS_WRITTEN)
        del self._held[finish.id]
        if write is None:
            return reply
        written = yield from self._write(held._replace(record=write), held.record.created_at)
        if not written:
            if self._marks:
                yield _ROLLBACK_TO
            yield from self._forget()
            return Lost()
        yield from self._forget()
        return reply

    def _write(self, held: _Held, now: int) -> Part[bool]:
        if held.met is None:
            rows = yield self._program.insertion([held.record], now)
        else:
            change = (held.record, held.met, held.archive is not None)
            rows = yield self._program.replacement([change])
        return bool(rows)

    def _elsewhere(self, command: Command) -> Part[Reply]:
        """A key that this transaction does not run: only to be looked at."""
        if not isinstance(command, Look):
            return Lost()
        found, now = yield from self._program.look([command.id])
        met = found.get(command.id)
        return decide(met.record if met else None, command, now).reply

    def _now(self) -> Part[int]:
        given = self._program.now()
        if given is not None:
            return given
        rows = yield Statement("clock", (None,))
        now: int = rows[0][0]
        return now

    # --- the body's savepoint -----------------------------------------------------------------

    def mark(self) -> Part[None]:
        yield _SAVEPOINT
        self._marks += 1

    def undo(self, in_transaction: bool) -> Part[None]:
        if in_transaction and self._marks:  # else it is undone already
            yield _ROLLBACK_TO
            yield _RELEASE
        self._marks = max(0, self._marks - 1)

    def settle(self, in_transaction: bool) -> None:
        if not in_transaction:
            self._marks = 0
            raise _transaction_over()

    def _forget(self) -> Part[None]:
        if self._marks:
            self._marks -= 1
            yield _RELEASE


def _no_transaction() -> ConfigurationError:
    return ConfigurationError(
        "the connection is in no transaction, so nothing would commit together; begin one first "
        "(psycopg and asyncpg: `with connection.transaction():`, SQLAlchemy: `with "
        "session.begin():`, Django: `with transaction.atomic():`)"
    )


def _transaction_over() -> ConfigurationError:
    return ConfigurationError(
        "the transaction this operation began in is over: the body committed it or rolled it "
        "back. Leave that to whoever began the transaction, after the run"
    )


def refuse(connection: Any, wanted: str) -> ConfigurationError:
    kind = type(connection)
    return ConfigurationError(
        f"in_transaction cannot use a {kind.__module__}.{kind.__qualname__}; it takes {wanted}"
    )
