"""Taking part in a caller's transaction, whichever driver runs the statements.

The claim locks the key (an advisory lock, tried and never waited for) and writes nothing; steps
and the like are kept here; the finish writes the whole record, in one statement. So a concurrent
duplicate is told at once that the operation is in flight, and a crash leaves nothing.

Every run has a savepoint, set together with the claim, after the lock: a body that raises is undone
to there, and so are its rows if the record comes too late, another owner having ended the key. The
lock outlives that, so a failure can be kept although its rows are not.

Owns the order of these actions. Must not know how they are carried out: whatever fails is thrown
into the generators here.
"""

from __future__ import annotations

import enum
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
from oncekey.stores.postgres.program import TRANSACTION_HINT_US, Program, Statement
from oncekey.stores.postgres.rows import Met, Row, met_of
from oncekey.stores.step_column import pack_steps

T = TypeVar("T")

# A finished run may leave its savepoint open, which saves a round trip and harms nobody, unless
# there are many: then every row that is looked at costs more.
LEFT_OPEN_MAX: Final = 8

NO_SAVEPOINT: Final = "3B001"

_AS_IT_IS_WRITTEN: Final = -1  # the clock is read by the statement that writes the record


# What enlist_1 is asked for.
_TO_RUN: Final = 0
_TO_LOOK: Final = 1
_TO_DECIDE: Final = 2
_NOBODY: Final = bytes(16)


class AnotherStore(ConfigurationError):
    """The caller's connection leads to another store than the engine's."""


class Save(enum.Enum):
    """What is done with a savepoint. Where the transaction is over, or the savepoint was never
    set, there is nothing to go back to."""

    SET = "set it"
    BACK = "go back to it and drop it"
    DROP = "drop it, keeping what was done since"
    LEAVE = "forget it: drop it, or leave it to the end of the transaction"


class Mark:
    """One savepoint, once it is set; `made` is what the driver knows it by."""

    __slots__ = ("made",)

    def __init__(self) -> None:
        self.made: Any = None


class Saving(NamedTuple):
    """Something to be done with a savepoint."""

    how: Save
    mark: Mark


class Standing(enum.Enum):
    """How a connection stands."""

    OPEN = "in a transaction"
    READY = "in none, but the next statement begins one"
    BARE = "in none, and each statement would commit by itself"


Action = Statement | Saving
# Actions are carried out in order, in one round trip where that can be, up to the first that
# fails; the rows of the last statement among them are sent back.
Part = Generator[tuple[Action, ...], Sequence[Row], T]


@dataclass(slots=True, eq=False)
class _Run:
    """An operation this transaction runs: its record as it will be, and what is in the table."""

    record: Record
    met: Met | None
    archive: bool
    claimed_at: int
    left_open: int
    mark: Mark | None  # None: undone


class Participant:
    """One caller's connection, as programs. `leaves`: savepoints may be left open on it."""

    def __init__(self, program: Program, *, leaves: bool) -> None:
        self._program = program
        self._leaves = leaves
        self._runs: list[_Run] = []  # the innermost last

    def apply(self, commands: Sequence[Command], standing: Standing) -> Part[list[Reply]]:
        replies = []
        for command in commands:
            replies.append((yield from self._one(command, standing)))
        return replies

    def _one(self, command: Command, standing: Standing) -> Part[Reply]:
        if isinstance(command, Claim):
            if standing is Standing.BARE:
                raise no_transaction()
            return (yield from self._claim(command))
        run = next((run for run in reversed(self._runs) if run.record.id == command.id), None)
        if run is None:
            return (yield from self._elsewhere(command))
        if isinstance(command, Release):
            yield from self._give_up(run, standing)
            return Done()
        if isinstance(command, Finish):
            return (yield from self._finish(run, command, standing))
        # What happens in a transaction happens, for all others, at one moment.
        reply, write, _ = decide(run.record, command, run.claimed_at)
        if write is not None:
            run.record = write
        return reply

    # --- claim and finish -----------------------------------------------------------------------

    def _claim(self, claim: Claim) -> Part[Reply]:
        layout = self._program.layout
        if layout.is_ring:
            self._program.check_terms([claim])
        mark = Mark()
        asked = self._asking(_TO_RUN, claim.id, claim.owner, claim.fingerprint)
        rows = yield (asked, Saving(Save.SET, mark))
        now, left_open, locked = rows[0][:3]
        if now is None:
            yield (Saving(Save.DROP, mark),)
            raise self._another_store(rows[0])
        if rows[0][-1] is not None:
            self._program.watch.tell(rows[0][-1])
        if locked is None:
            yield (Saving(Save.DROP, mark),)
            return Busy(TRANSACTION_HINT_US)
        met = met_of(rows[0])
        reply, write, archive = decide(met.record if met else None, claim, now, rows[0][23] or 0)
        if isinstance(reply, Claimed):
            assert write is not None
            self._runs.append(_Run(write, met, archive is not None, now, left_open, mark))
            return reply
        actions: list[Action] = [Saving(Save.DROP, mark)]
        if write is not None and met is not None:
            # A dead owner's key is given up: true whatever becomes of this transaction.
            actions.insert(0, self._program.replacement([(write, met, archive is not None)]))
        if locked:
            actions.append(_let_go(claim.id))
        yield tuple(actions)
        return reply

    def _finish(self, run: _Run, finish: Finish, standing: Standing) -> Part[Reply]:
        reply, write, _ = decide(run.record, finish, _AS_IT_IS_WRITTEN)
        if write is None:
            return reply
        if standing is not Standing.OPEN:
            self._runs.remove(run)
            raise transaction_over()
        leave = self._leaves and run.left_open < LEFT_OPEN_MAX
        record = self._recording(run, write, leave)
        before: tuple[Action, ...] = ()
        if run.mark is None:
            run.mark = Mark()
            before = (Saving(Save.SET, run.mark),)
        try:
            yield (*before, record, Saving(Save.LEAVE if leave else Save.DROP, run.mark))
        except GeneratorExit:
            raise
        except BaseException as error:
            # Rows without their record must not be committed, whoever catches this.
            yield from self._give_up(run, standing)
            if errors.state_of(error) == errors.TOO_LATE:
                return Lost()
            raise
        self._runs.remove(run)
        return reply

    def _recording(self, run: _Run, record: Record, leave: bool) -> Statement:
        layout = self._program.layout
        slot = run.claimed_at // layout.period % layout.slots if layout.is_ring else 0
        old = (run.met.record.fence, run.met.revision) if run.met else (None, None)
        return Statement(
            "record",
            (
                self._program.now(),
                record.id,
                *old,
                run.archive,
                leave,
                slot,
                record.state.value,
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
                record.operation,
                record.key,
                pack_steps(record.steps),
                record.body,
                record.note,
                record.keep_unknown,
            ),
        )

    def _give_up(self, run: _Run, standing: Standing) -> Part[None]:
        """Undo what the run has done, and free its key for this transaction; others have to wait
        for its end. Why that had to be is what the caller must see: no error of ours."""
        self._runs.remove(run)
        back = (Saving(Save.BACK, run.mark),) if run.mark else ()
        # Where the transaction is over the key is free, and no new one must be begun for that.
        free = (_let_go(run.record.id),) if standing is Standing.OPEN else ()
        if not back and not free:
            return
        try:
            yield (*back, *free)
        except Exception:
            return  # the transaction has failed or is over, so nothing of the run is left

    def _elsewhere(self, command: Command) -> Part[Reply]:
        """A key that this transaction does not run: to be looked at, or resolved."""
        if isinstance(command, Release):
            return Done()  # its transaction was rolled back under the body: the key is free
        if not isinstance(command, (Look, Resolve)):
            return Lost()
        how = _TO_LOOK if isinstance(command, Look) else _TO_DECIDE
        rows = yield (self._asking(how, command.id, _NOBODY, b""),)
        now, _, locked = rows[0][:3]
        if now is None:
            raise self._another_store(rows[0])
        if locked is None:
            return Lost()  # another one is at this key: claiming tells what becomes of it
        met = met_of(rows[0])
        reply, write, _ = decide(met.record if met else None, command, now)
        if write is None or met is None:
            return reply
        # The key's lock is ours by now: who comes from outside is told that, and does not wait for
        # the row until this transaction ends.
        changed = yield (self._program.replacement([(write, met, False)]),)
        return reply if changed else Lost()

    def _asking(self, how: int, id: bytes, owner: bytes, fingerprint: bytes) -> Statement:
        program = self._program
        asked = (program.now(), program.layout.is_ring, id, owner, fingerprint)
        asks_settings = how == _TO_RUN and program.watch.is_due()
        return Statement("enlist", (*asked, program.identity, how, asks_settings))

    def _another_store(self, row: Row) -> AnotherStore:
        return AnotherStore(
            f"the connection leads to {row[20]}, the store of this engine is in "
            f"{self._program.address}: what commits in one says nothing in the other. Give "
            "in_transaction a connection to the store's database, or open the engine on the one "
            "the connection leads to"
        )

    # --- the body's savepoint -------------------------------------------------------------------

    def set_savepoint(self) -> Part[None]:
        """Nothing to do at a body's start: its savepoint was set with the claim."""
        if self._runs and self._runs[-1].mark is None:
            self._runs[-1].mark = Mark()
            yield (Saving(Save.SET, self._runs[-1].mark),)

    def rollback_to_savepoint(self) -> Part[None]:
        """Back to the savepoint of the innermost run."""
        if self._runs and (mark := self._runs[-1].mark):
            self._runs[-1].mark = None
            yield (Saving(Save.BACK, mark),)

    def release_savepoint(self, standing: Standing) -> Part[None]:
        """The body is through. Its savepoint stays until the record is written."""
        if standing is not Standing.OPEN:
            yield from self.give_up(standing)
            raise transaction_over()

    def give_up(self, standing: Standing = Standing.OPEN) -> Part[None]:
        """Nothing becomes of the innermost run."""
        if self._runs:
            yield from self._give_up(self._runs[-1], standing)


def _let_go(id: bytes) -> Statement:
    return Statement("let_go", (id,))


def no_transaction() -> ConfigurationError:
    return ConfigurationError(
        "the connection is in no transaction, so nothing would commit together; begin one first "
        "(psycopg and asyncpg: `with connection.transaction():`, SQLAlchemy: `with "
        "session.begin():` and not AUTOCOMMIT, Django: `with transaction.atomic():`)"
    )


def transaction_over() -> ConfigurationError:
    return ConfigurationError(
        "the transaction this operation began in is over, or was rolled back to before it: the "
        "body committed it or rolled it back. Leave that to whoever began the transaction, after "
        "the run"
    )
