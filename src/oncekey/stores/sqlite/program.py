"""What the SQLite store does, as generators: they yield statements and are sent rows.

`apply` works in up to three ways, from the cheapest on:

1. Claims and looks are first decided on a plain read, which sees a snapshot and takes no lock. If
   a decision writes nothing (a replay, a rejection), its reply is final.
2. First claims and finishes, the usual commands, are written under BEGIN IMMEDIATE without reading.
3. Everything else is decided under BEGIN IMMEDIATE, from rows and a clock read while the lock is
   held.

Every decision is made by `state_machine.decide`. A program keeps no state between two runs and does
no I/O itself, so a test may drive two of them by hand, statement by statement. This module must not
know connections, threads or asyncio.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.core.commands import (
    Adopt,
    Claim,
    ClaimAlso,
    Command,
    Done,
    Finish,
    Look,
    RaiseFence,
    Reply,
    Seen,
)
from oncekey.core.move_marks import MARK_ID
from oncekey.core.record import Record, State
from oncekey.core.state_machine import decide, is_garbage
from oncekey.core.store import Unfinished
from oncekey.stores.sql_files import load_queries
from oncekey.stores.sqlite.rows import (
    Row,
    claimed_row,
    ended_row,
    finish_row,
    held_row,
    history_row,
    record_of,
    record_row,
)
from oncekey.stores.store_rules import StoreClock, check_same_secret, election_holds

SELECT_IDS_MAX: Final = 512  # SQLite before 3.32 takes 999 parameters
_CHECK: Final = "secret-check"
_ELECTED: Final = "elected"
_TERM: Final = struct.Struct(">qq")  # stored before the token: elected since and until
_DELETED: Final = "deleted-fences"
_FENCE: Final = struct.Struct(">q")  # the highest fence of a deleted record

T = TypeVar("T")


class Statement(NamedTuple):
    """One statement. With `many` it runs once per row of `params`, and its result is the number of
    rows that changed."""

    sql: str
    params: Sequence[Any] | Mapping[str, Any] = ()
    many: bool = False
    locks: bool = False  # True if it takes the write lock, so it may wait for another process


Statements = Generator[Statement, Sequence[Row], T]

QUERIES: Final = load_queries("oncekey.stores.sqlite", "sql/queries.sql")
BEGIN: Final = Statement("BEGIN IMMEDIATE", locks=True)
COMMIT: Final = Statement("COMMIT")
ROLLBACK: Final = Statement("ROLLBACK")
_SELECT_FLOOR: Final = Statement(QUERIES["select_meta"], (_DELETED,))
_INSERT_NEW: Final = QUERIES["insert_new"]
_FINISH_HELD: Final = QUERIES["finish_held"]
_DONE: Final = Done()
_SIMPLE: Final = frozenset((Claim, Finish))
_CLAIMS: Final = frozenset((Claim, ClaimAlso))
_REPLACES: Final = _CLAIMS | {Adopt, RaiseFence}  # these may change every column
LOCK: Final = Statement(QUERIES["lock"], locks=True)


class Program:
    """The store's methods. `clock` is read once per decision (S3)."""

    def __init__(self, clock: StoreClock) -> None:
        self._clock = clock

    def now(self) -> int:
        """What the store's clock says."""
        return self._clock()

    def apply(self, commands: Sequence[Command]) -> Statements[list[Reply]]:
        """Apply commands of any kind, in a transaction of its own if something is written."""
        if not commands:
            return []
        from_snapshot: dict[int, Reply] = {}
        all_unseen = True
        reads = [c for c in commands if type(c) is Claim or type(c) is Look]
        if reads:
            rows: list[Row] = []
            for select in _selects(reads):
                rows += yield select
            if rows or any(type(command) is Look for command in reads):
                from_snapshot, all_unseen = self._reply_from_snapshot(commands, _records(rows))
                if len(from_snapshot) == len(commands):
                    return [from_snapshot[i] for i in range(len(commands))]
        left = commands
        if from_snapshot:
            left = [command for i, command in enumerate(commands) if i not in from_snapshot]
        replies: list[Reply] | None = None
        if all_unseen and _is_simple_batch(left):
            replies = yield from self._write_without_reading(left)
        if replies is None:
            replies = yield from self._apply_under_lock(left)
        if not from_snapshot:
            return replies
        decided = iter(replies)
        return [
            from_snapshot[i] if i in from_snapshot else next(decided) for i in range(len(commands))
        ]

    def _apply_under_lock(self, left: Sequence[Command]) -> Statements[list[Reply]]:
        yield BEGIN
        replies, writes = yield from self._decide(left)
        for write in writes:  # noqa: UP028 (a list cannot be sent rows)
            yield write
        yield COMMIT if writes else ROLLBACK
        return replies

    def _write_without_reading(self, commands: Sequence[Command]) -> Statements[list[Reply] | None]:
        """Write first claims by a bare insert and finishes by compare-and-set (rule 4 of the state
        machine), without reading. None, with nothing written, if one of them found another row than
        it expected: then `decide` has to decide all of them."""
        yield BEGIN
        now = self._clock()
        floor: int | None = None
        replies: list[Reply] = []
        claimed: list[Row] = []
        finished: list[Row] = []
        for command in commands:
            if isinstance(command, Finish):
                finished.append(finish_row(command, now))
                replies.append(_DONE)
            else:
                if floor is None:
                    floor = _fence_floor((yield _SELECT_FLOOR))
                reply, write, _ = decide(None, command, now, floor)
                assert write is not None
                claimed.append(record_row(write))
                replies.append(reply)
        for sql, rows in ((_INSERT_NEW, claimed), (_FINISH_HELD, finished)):
            if rows:
                changed = yield Statement(sql, rows, True)
                if changed[0][0] != len(rows):
                    yield ROLLBACK
                    return None
        yield COMMIT
        return replies

    def apply_in_transaction(self, commands: Sequence[Command]) -> Statements[list[Reply]]:
        """Apply commands inside an open transaction, which is neither begun nor ended here."""
        if any(type(command) is not Look for command in commands):
            yield LOCK
        replies, writes = yield from self._decide(commands)
        for write in writes:  # noqa: UP028
            yield write
        return replies

    def bind(self, check: bytes) -> Statements[Seen]:
        """Remember the secret's check value, or refuse another one (S8)."""
        yield from self._bind_secret(check)
        rows = yield Statement(_select_records(1), (MARK_ID,))
        return Seen(_records(rows).get(MARK_ID), self._clock())

    def _bind_secret(self, check: bytes) -> Statements[None]:
        known = Statement(QUERIES["select_meta"], (_CHECK,))
        rows = yield known
        if not rows:
            yield BEGIN
            rows = yield known
            if not rows:
                yield Statement(QUERIES["insert_meta"], (_CHECK, check))
                yield COMMIT
                return
            yield ROLLBACK
        check_same_secret(rows[0][0], check)

    def sweep(self, limit: int) -> Statements[int]:
        """Remove at most `limit` records that are garbage (S7); 0 means that there is no more."""
        removed = 0
        while removed == 0 and limit > 0:
            now = self._clock()
            rows = yield Statement(QUERIES["any_due"], (now, now))
            if not rows[0][0]:
                return 0
            yield BEGIN
            removed = yield from self._sweep_batch(limit)
            yield COMMIT
        return removed

    def _sweep_batch(self, limit: int) -> Statements[int]:
        """Sweep one batch in one short transaction. Garbage is deleted. A record that is due but is
        not garbage (its lease was renewed, or nobody has decided it) is postponed, so that it does
        not hide the records after it."""
        now = self._clock()
        ended = yield Statement(QUERIES["select_ended"], (now, limit))
        if ended:
            yield Statement(QUERIES["delete_history"], ended, many=True)
        due = yield Statement(QUERIES["select_due"], (now, limit - len(ended)))
        records = [record_of(row) for row in due]
        garbage = [record for record in records if is_garbage(record, now)]
        living = [(r.audit_until, r.id) for r in records if not is_garbage(r, now)]
        if garbage:
            ids = [(record.id,) for record in garbage]
            yield Statement(QUERIES["delete_record"], ids, many=True)
            yield from _raise_fence_floor(max(record.fence for record in garbage))
        if living:
            yield Statement(QUERIES["postpone"], living, many=True)
        return len(ended) + len(garbage)

    def elect(self, token: bytes, lease: int) -> Statements[bool]:
        """Elect this token, unless another one is still elected. A call that fails takes no
        lock."""
        select = Statement(QUERIES["select_meta"], (_ELECTED,))
        if _is_other_elected((yield select), token, self._clock()):
            return False
        yield BEGIN
        rows = yield select
        now = self._clock()
        if _is_other_elected(rows, token, now):
            yield ROLLBACK
            return False
        value = _TERM.pack(now, now + lease) + token
        yield Statement(QUERIES["upsert_meta"], (_ELECTED, value))
        yield COMMIT
        return True

    def unfinished(self, after: int, limit: int) -> Statements[Unfinished]:
        """The records that were claimed after this time and have not ended (S10). It is one read
        without a lock."""
        now = self._clock()
        if limit <= 0:
            return Unfinished((), now)
        since = (after, now)
        rows = yield Statement(QUERIES["select_unfinished"], (*since, *since, limit - 1))
        return Unfinished(tuple(record_of(row) for row in rows), now)

    def history(self, id: bytes) -> Statements[list[Record]]:
        """Past generations of a key that were not swept yet, oldest first."""
        rows = yield Statement(QUERIES["select_history"], (id,))
        return [record_of(row) for row in rows]

    # --- parts --------------------------------------------------------------------------------

    def _reply_from_snapshot(
        self, commands: Sequence[Command], stored: dict[bytes, Record]
    ) -> tuple[dict[int, Reply], bool]:
        """The replies that need no write (S6), by position, and whether all claims among the other
        commands have ids that were never seen. A command after a write of the same id must see that
        write, so it gets no reply here either."""
        now = self._clock()
        replies: dict[int, Reply] = {}
        writing: set[bytes] = set()
        all_unseen = True
        for i, command in enumerate(commands):
            record = stored.get(command.id)
            if type(command) is not Look and (record is None or type(command) is not Claim):
                writing.add(command.id)  # a claim of an unseen id is sure to write as well
            if command.id in writing:
                continue
            decision = decide(record, command, now)
            if decision.write is None:
                replies[i] = decision.reply
            else:
                writing.add(command.id)
                all_unseen = False
        return replies, all_unseen

    def _decide(
        self, commands: Sequence[Command]
    ) -> Statements[tuple[list[Reply], list[Statement]]]:
        """The replies and the writes, decided from rows and a clock read under the lock."""
        rows: list[Row] = []
        for select in _selects(commands):
            rows += yield select
        stored = _records(rows)
        fresh = any(type(c) in _CLAIMS and c.id not in stored for c in commands)
        floor = _fence_floor((yield _SELECT_FLOOR)) if fresh else 0
        now = self._clock()
        records = dict(stored)
        changed: dict[bytes, bool] = {}  # id -> True if every column may have changed
        archived: list[Row] = []
        replies: list[Reply] = []
        for command in commands:
            id = command.id
            reply, write, archive = decide(records.get(id), command, now, floor)
            if write is not None:
                records[id] = write
                changed[id] = type(command) in _REPLACES or changed.get(id, False)
            if archive is not None:
                archived.append(history_row(archive))
            replies.append(reply)
        return replies, _writes(records, stored, changed, archived)


def _writes(
    records: dict[bytes, Record],
    stored: dict[bytes, Record],
    changed: dict[bytes, bool],
    archived: list[Row],
) -> list[Statement]:
    new: list[Row] = []
    claimed: list[Row] = []
    held: list[Row] = []
    ended: list[Row] = []
    for id, replaced in changed.items():
        if id not in stored:
            new.append(record_row(records[id]))
        elif replaced:
            claimed.append(claimed_row(records[id]))
        elif records[id].state is State.PENDING:
            held.append(held_row(records[id]))
        else:
            ended.append(ended_row(records[id]))
    batches = (
        ("insert_history", archived),
        ("insert_record", new),
        ("update_claimed", claimed),
        ("update_held", held),
        ("update_ended", ended),
    )
    return [Statement(QUERIES[name], rows, many=True) for name, rows in batches if rows]


def _is_other_elected(rows: Sequence[Row], token: bytes, now: int) -> bool:
    """True if another token is elected at this time."""
    if not rows:
        return False
    value: bytes = rows[0][0]
    since, until = _TERM.unpack_from(value)
    return election_holds(since, until, now) and value[_TERM.size :] != token


def _is_simple_batch(commands: Sequence[Command]) -> bool:
    """True for claims and finishes of different keys, with which most attempts begin and end."""
    if len(commands) == 1:
        return type(commands[0]) in _SIMPLE
    if not {type(command) for command in commands} <= _SIMPLE:
        return False
    return len({command.id for command in commands}) == len(commands)


def _selects(commands: Sequence[Command]) -> list[Statement]:
    """The statements that read the stored records of the commands' ids."""
    if len(commands) == 1:
        return [Statement(_select_records(1), (commands[0].id,))]
    ids = list({command.id: None for command in commands})
    statements = []
    for start in range(0, len(ids), SELECT_IDS_MAX):
        batch = ids[start : start + SELECT_IDS_MAX]
        # The number of placeholders is rounded up to a power of two and the last id repeated, so
        # that there are few different texts, and each is prepared once.
        size = 1 << (len(batch) - 1).bit_length()
        batch += batch[-1:] * (size - len(batch))
        statements.append(Statement(_select_records(size), batch))
    return statements


def _records(rows: Sequence[Row]) -> dict[bytes, Record]:
    return {row[0]: record_of(row) for row in rows}


def _fence_floor(rows: Sequence[Row]) -> int:
    """The highest fence of a deleted record, from the rows of _SELECT_FLOOR. The fence of a new
    record must be above it."""
    return int(_FENCE.unpack(rows[0][0])[0]) if rows else 0


def _raise_fence_floor(fence: int) -> Statements[None]:
    if fence > _fence_floor((yield _SELECT_FLOOR)):
        yield Statement(QUERIES["upsert_meta"], (_DELETED, _FENCE.pack(fence)))


@cache
def _select_records(size: int) -> str:
    return QUERIES["select_records"].replace("/*ids*/", ",".join("?" * size))
