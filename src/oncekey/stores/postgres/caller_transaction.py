"""The store's commands inside a caller's transaction, for every driver.

1. The claim takes the key's advisory lock, which it tries and never waits for, and writes nothing.
2. Steps and the like change the record in memory.
3. The finish writes the whole record, in one statement.

So a concurrent duplicate is rejected at once because the operation is in flight, and a crash leaves
nothing behind.

Every run has a savepoint, which is set together with the claim, after the lock. If the body raises,
its rows are rolled back to it; so they are if the record comes too late because another owner has
ended the key. The lock outlives that rollback, so a failure can be stored although its rows are
not.

This module owns the order of these actions. It must not know how they are performed, which is up to
caller_connections/: an action that fails is thrown into the generators here.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.core.commands import (
    Busy,
    Claim,
    Claimed,
    Command,
    Done,
    Finish,
    Look,
    Lost,
    Release,
    Reply,
    Resolve,
)
from oncekey.core.errors import ConfigurationError
from oncekey.core.record import Record
from oncekey.core.state_machine import decide
from oncekey.stores.postgres import errors
from oncekey.stores.postgres.program import TRANSACTION_HINT_US, Program
from oncekey.stores.postgres.rows import Joined, Row, StoredRow, joined_of
from oncekey.stores.postgres.statements import Statement
from oncekey.stores.record_format import pack_steps

T = TypeVar("T")

# A finished run may leave its savepoint open, which saves a round trip. A few are harmless; with
# many of them every row that is read costs more.
OPEN_SAVEPOINTS_MAX: Final = 8

NO_SAVEPOINT: Final = "3B001"

_WHEN_WRITTEN: Final = -1  # the statement that writes the record reads the clock


# What the SQL function join_3 is called for.
_TO_RUN: Final = 0
_TO_LOOK: Final = 1
_TO_DECIDE: Final = 2
_NO_OWNER: Final = bytes(16)


class WrongStore(ConfigurationError):
    """The caller's connection leads to another store than the engine's."""


class SavepointAction(enum.Enum):
    """What to do with a savepoint. If its transaction has ended, or if it was never set, only SET
    does anything."""

    SET = "set it"
    ROLLBACK = "roll back to it and release it"
    RELEASE = "release it and keep what was done since"


_numbers = itertools.count(1)
_free_names: list[str] = []


class Savepoint:
    """One savepoint. `handle` is what the driver knows it by while it is set: a name, if it was set
    by our own SQL."""

    __slots__ = ("handle",)

    def __init__(self) -> None:
        self.handle: Any = None

    def take_name(self) -> str:
        """A name that no other active run has.

        If an inner run's savepoint had the same name, the outer run would roll back to that one,
        and half of its rows would stay. Names are reused, because drivers and servers cache
        statements.
        """
        try:
            name = _free_names.pop()
        except IndexError:
            name = f"oncekey_{next(_numbers)}"
        self.handle = name
        return name

    def free_name(self) -> str | None:
        """The name, which others may use from now on. None if the savepoint has none."""
        if type(self.handle) is not str:
            return None
        name, self.handle = self.handle, None
        _free_names.append(name)
        return name


class SavepointCommand(NamedTuple):
    """Something to do with a savepoint."""

    action: SavepointAction
    savepoint: Savepoint


class TransactionState(enum.Enum):
    """Whether a connection is in a transaction."""

    OPEN = "in a transaction"
    IMPLICIT = "in none, but the next statement begins one"
    AUTOCOMMIT = "in none, and each statement would commit by itself"


Action = Statement | SavepointCommand
# A generator of actions. Those of one tuple are performed in order, in one round trip if possible,
# up to the first that fails; the rows of the last statement among them are sent back.
Actions = Generator[tuple[Action, ...], Sequence[Row], T]


@dataclass(slots=True, eq=False)
class _ActiveRun:
    """An operation that runs in this transaction: its future record, and the row in the table."""

    record: Record
    stored: StoredRow | None
    archive: bool
    claimed_at: int
    open_savepoints: int
    savepoint: Savepoint | None  # None: rolled back


class CallerProgram:
    """What the store does on one caller's connection, as programs.

    `may_leave`: savepoints may be left open on this connection.
    """

    def __init__(self, program: Program, *, may_leave: bool) -> None:
        self._program = program
        self._may_leave = may_leave
        self._runs: list[_ActiveRun] = []  # the innermost last

    def apply(self, command: Command, state: TransactionState) -> Actions[Reply]:
        """The actions of one command."""
        if isinstance(command, Claim):
            if state is TransactionState.AUTOCOMMIT:
                raise no_transaction()
            return self._claim(command)
        run = self._run_of(command.id)
        if run is None:
            return self._apply_to_other_key(command)
        if isinstance(command, Finish):
            return self._finish(run, command, state)
        return self._apply_to_run(run, command, state)

    def _apply_to_run(
        self, run: _ActiveRun, command: Command, state: TransactionState
    ) -> Actions[Reply]:
        if isinstance(command, Release):
            yield from self._give_up(run, state)
            return Done()
        # For everybody else, all that happens in a transaction happens at one moment.
        reply, write, _ = decide(run.record, command, run.claimed_at)
        if write is not None:
            run.record = write
        return reply

    def _run_of(self, id: bytes) -> _ActiveRun | None:
        for run in reversed(self._runs):
            if run.record.id == id:
                return run
        return None

    # --- claim and finish -----------------------------------------------------------------------

    def _claim(self, claim: Claim) -> Actions[Reply]:
        if self._program.is_ring:
            self._program.check_terms([claim])
        savepoint = Savepoint()
        join = self._join(_TO_RUN, claim.id, claim.owner, claim.fingerprint)
        rows = yield (join, SavepointCommand(SavepointAction.SET, savepoint))
        joined = joined_of(rows)
        now, open_savepoints, locked, stored, floor, _, _ = joined
        if len(rows) > 1:
            self._program.watch.notify(rows[1][0])
        if now is None or locked is None:
            yield (SavepointCommand(SavepointAction.RELEASE, savepoint),)
            if now is None:
                raise self._wrong_store(joined)
            return Busy(TRANSACTION_HINT_US)
        record = stored.record if stored else None
        reply, write, archive = decide(record, claim, now, floor)
        if isinstance(reply, Claimed):
            assert write is not None
            self._runs.append(
                _ActiveRun(write, stored, archive is not None, now, open_savepoints, savepoint)
            )
            return reply
        actions: list[Action] = [SavepointCommand(SavepointAction.RELEASE, savepoint)]
        if write is not None and stored is not None:
            # A dead owner's key becomes unknown, whatever happens to this transaction.
            actions.insert(0, self._program.replacement([(write, stored, archive is not None)]))
        if locked:
            actions.append(_unlock(claim.id))
        yield tuple(actions)
        return reply

    def _finish(self, run: _ActiveRun, finish: Finish, state: TransactionState) -> Actions[Reply]:
        reply, write, _ = decide(run.record, finish, _WHEN_WRITTEN)
        if write is None:
            return reply
        if state is not TransactionState.OPEN:
            self._runs.remove(run)
            raise transaction_ended()
        leave = self._may_leave and run.open_savepoints < OPEN_SAVEPOINTS_MAX
        before: tuple[Action, ...] = ()
        if run.savepoint is None:
            run.savepoint = Savepoint()
            before = (SavepointCommand(SavepointAction.SET, run.savepoint),)
        try:
            written: Sequence[Row] = ()
            if run.stored is None:
                written = yield (*before, self._insert_record(run, write, leave))
                before = ()
            if not written:
                yield (*before, self._write_record(run, write, leave))
            # Only now, for the rollback below needs the savepoint.
            if not leave or run.savepoint.free_name() is None:
                yield (SavepointCommand(SavepointAction.RELEASE, run.savepoint),)
        except GeneratorExit:
            raise
        except BaseException as error:
            # Rows without their record must not be committed, even if the caller catches this.
            yield from self._give_up(run, state)
            if errors.sqlstate_of(error) == errors.KEY_ENDED:
                return Lost()
            raise
        self._runs.remove(run)
        return reply

    def _insert_record(self, run: _ActiveRun, record: Record, leave: bool) -> Statement:
        """Writes a record where there was none. Its result is empty if it has done nothing."""
        key = (self._program.now(), record.id, leave, self._slot(run))
        return Statement("insert_record", (*key, *_columns(record)))

    def _write_record(self, run: _ActiveRun, record: Record, leave: bool) -> Statement:
        """Writes any record. Fails if there is one that this run has not read, or if the claim is
        gone."""
        old = (run.stored.record.fence, run.stored.revision) if run.stored else (None, None)
        key = (self._program.now(), record.id, *old, run.archive, leave, self._slot(run))
        return Statement("record", (*key, *_columns(record)))

    def _slot(self, run: _ActiveRun) -> int:
        if not self._program.is_ring:
            return 0
        layout = self._program.layout
        return run.claimed_at // layout.period % layout.slots

    def _give_up(self, run: _ActiveRun, state: TransactionState) -> Actions[None]:
        """Roll back what the run has done, and free its key for this transaction; other
        transactions have to wait until this one ends. An error here is dropped, because the caller
        must see the reason for giving up."""
        self._runs.remove(run)
        rollback: tuple[Action, ...] = ()
        if run.savepoint:
            rollback = (SavepointCommand(SavepointAction.ROLLBACK, run.savepoint),)
        # If the transaction has ended, the key is free, and no new transaction must be begun.
        unlock = (_unlock(run.record.id),) if state is TransactionState.OPEN else ()
        if not rollback and not unlock:
            return
        try:
            yield (*rollback, *unlock)
        except Exception:
            return  # the transaction has failed or ended, so nothing of the run is left

    def _apply_to_other_key(self, command: Command) -> Actions[Reply]:
        """Look at or resolve a key that is not run in this transaction."""
        if isinstance(command, Release):
            return Done()  # its transaction was rolled back while the body ran: the key is free
        if not isinstance(command, (Look, Resolve)):
            return Lost()
        purpose = _TO_LOOK if isinstance(command, Look) else _TO_DECIDE
        joined = joined_of((yield (self._join(purpose, command.id, _NO_OWNER, b""),)))
        now, stored = joined.at, joined.stored
        if now is None:
            raise self._wrong_store(joined)
        if joined.locked is None:
            return Lost()  # another transaction runs this key: a claim will tell how it ends
        reply, write, _ = decide(stored.record if stored else None, command, now)
        if write is None or stored is None:
            return reply
        # This transaction has the key's lock by now: other callers see that and do not wait for
        # the row until this transaction ends.
        changed = yield (self._program.replacement([(write, stored, False)]),)
        return reply if changed else Lost()

    def _join(self, purpose: int, id: bytes, owner: bytes, fingerprint: bytes) -> Statement:
        program = self._program
        reads_settings = purpose == _TO_RUN and program.watch.is_due()
        key = (program.now(), program.is_ring, id, owner, fingerprint.hex())
        name = "join_and_settings" if reads_settings else "join"
        return Statement(name, (*key, program.identity.hex(), purpose))

    def _wrong_store(self, joined: Joined) -> WrongStore:
        return WrongStore(
            f"the connection leads to {joined.address}, the store of this engine is in "
            f"{self._program.address}: what commits in one says nothing in the other. Give "
            "in_transaction a connection to the store's database, or open the engine on the one "
            "the connection leads to"
        )

    # --- the body's savepoint -------------------------------------------------------------------

    @property
    def lacks_savepoint(self) -> bool:
        """True if the innermost run has no savepoint. Usually it was set with the claim."""
        return bool(self._runs) and self._runs[-1].savepoint is None

    def set_savepoint(self) -> Actions[None]:
        """Set a savepoint for the innermost run, which has none."""
        self._runs[-1].savepoint = Savepoint()
        yield (SavepointCommand(SavepointAction.SET, self._runs[-1].savepoint),)

    def rollback_to_savepoint(self) -> Actions[None]:
        """Roll back to the savepoint of the innermost run."""
        if self._runs and (savepoint := self._runs[-1].savepoint):
            self._runs[-1].savepoint = None
            yield (SavepointCommand(SavepointAction.ROLLBACK, savepoint),)

    def give_up(self, state: TransactionState = TransactionState.OPEN) -> Actions[None]:
        """Roll back the innermost run and free its key."""
        if self._runs:
            yield from self._give_up(self._runs[-1], state)


def _columns(record: Record) -> tuple[Any, ...]:
    """A record's columns in the order of the queries that write one in a caller's transaction."""
    return (
        int(record.state),
        record.fingerprint,
        record.owner,
        record.fence,
        record.attempt,
        record.retry_safe,
        record.created_at,
        record.lease_until,
        record.keep,
        record.audit,
        record.scope,
        record.label,
        record.key,
        pack_steps(record.steps),
        record.body,
        record.note,
        record.keep_unknown,
    )


def _unlock(id: bytes) -> Statement:
    return Statement("unlock", (id,))


def no_transaction() -> ConfigurationError:
    return ConfigurationError(
        "the connection is in no transaction, so nothing would commit together; begin one first "
        "(psycopg and asyncpg: `with connection.transaction():`, SQLAlchemy: `with "
        "session.begin():` and not AUTOCOMMIT, Django: `with transaction.atomic():`)"
    )


def transaction_ended() -> ConfigurationError:
    return ConfigurationError(
        "the transaction this operation began in is over, or was rolled back to before it: the "
        "body committed it or rolled it back. Leave that to whoever began the transaction, after "
        "the run"
    )
