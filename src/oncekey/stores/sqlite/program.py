"""What the SQLite store does, as generators: they yield statements and are sent rows.

`apply` is the store's verb. Claims and looks are first tried on a plain read, which sees a
snapshot and takes no lock; what writes nothing (a replay, a rejection) is answered from it. The
rest is decided again under BEGIN IMMEDIATE, from rows and a clock read while the lock is held.

Every decision is `machine.decide`'s. Keeps no state between two runs and does no I/O itself, so a
test may drive two of these by hand, statement by statement. Must not know connections, threads
or asyncio.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.core.commands import Claim, Command, Done, Finish, Look, Reply
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
    past_row,
    record_of,
    whole_row,
)
from oncekey.stores.store_rules import StoreClock, is_elected, refuse_another_secret

SELECT_IDS_MAX: Final = 512  # SQLite before 3.32 takes 999 parameters
_CHECK: Final = "secret-check"
_ELECTED: Final = "elected"
_TERM: Final = struct.Struct(">qq")  # before the token: since when and until when it is elected
_DELETED: Final = "deleted-fences"
_FENCE: Final = struct.Struct(">q")  # the highest fence among what was deleted

T = TypeVar("T")


class Statement(NamedTuple):
    """One statement; with `many`, once per row of `params`, answered by the number of rows
    changed."""

    sql: str
    params: Sequence[Any] = ()
    many: bool = False
    locks: bool = False  # takes the write lock, so it may wait for another process


Steps = Generator[Statement, Sequence[Row], T]

QUERIES: Final = load_queries("oncekey.stores.sqlite", "sql/queries.sql")
BEGIN: Final = Statement("BEGIN IMMEDIATE", locks=True)
COMMIT: Final = Statement("COMMIT")
ROLLBACK: Final = Statement("ROLLBACK")
_DONE: Final = Done()
LOCK: Final = Statement(QUERIES["lock"], locks=True)


class Program:
    """The store's verbs. `clock` is read once per decision (S3)."""

    def __init__(self, clock: StoreClock) -> None:
        self._clock = clock

    def apply(self, commands: Sequence[Command]) -> Steps[list[Reply]]:
        """The whole verb, with its own transaction where one is needed: from a snapshot what
        writes nothing, without reading again what usually comes, else the whole way."""
        if not commands:
            return []
        answers: dict[int, Reply] = {}
        unseen = True
        if any(type(command) is Claim or type(command) is Look for command in commands):
            answers, unseen = yield from self._answer_from_snapshot(commands)
            if len(answers) == len(commands):
                return [answers[i] for i in range(len(commands))]
        left = commands
        if answers:
            left = [command for i, command in enumerate(commands) if i not in answers]
        replies: list[Reply] | None = None
        if unseen and _usual(left):
            replies = yield from self._write_at_once(left)
        if replies is None:
            replies = yield from self._apply_under_lock(left)
        if not answers:
            return replies
        decided = iter(replies)
        return [answers[i] if i in answers else next(decided) for i in range(len(commands))]

    def _apply_under_lock(self, left: Sequence[Command]) -> Steps[list[Reply]]:
        yield BEGIN
        replies, writes = yield from self._decide(left)
        for write in writes:  # noqa: UP028 (a list cannot be sent rows)
            yield write
        yield COMMIT if writes else ROLLBACK
        return replies

    def _write_at_once(self, commands: Sequence[Command]) -> Steps[list[Reply] | None]:
        """First claims by a bare insert, finishes as compare-and-set (rule 4 of the machine),
        without reading. None, and nothing written, if one of them came too late: then `decide`
        says what that means."""
        yield BEGIN
        floor = (yield from _load_floor()) if any(type(c) is Claim for c in commands) else 0
        now = self._clock()
        replies: list[Reply] = []
        claimed: list[Row] = []
        finished: list[Row] = []
        for command in commands:
            if isinstance(command, Finish):
                finished.append(finish_row(command, now))
                replies.append(_DONE)
            else:
                decision = decide(None, command, now, floor)
                assert decision.write is not None
                claimed.append(whole_row(decision.write))
                replies.append(decision.reply)
        for query, rows in (("insert_new", claimed), ("finish_held", finished)):
            if rows:
                changed = yield Statement(QUERIES[query], rows, many=True)
                if changed[0][0] != len(rows):
                    yield ROLLBACK
                    return None
        yield COMMIT
        return replies

    def apply_locked(self, commands: Sequence[Command]) -> Steps[list[Reply]]:
        """The same inside a transaction that is open already; it is neither begun nor ended."""
        if any(type(command) is not Look for command in commands):
            yield LOCK
        replies, writes = yield from self._decide(commands)
        for write in writes:  # noqa: UP028
            yield write
        return replies

    def bind(self, check: bytes) -> Steps[None]:
        """Remember the secret's check value, or refuse another one (S8)."""
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
        refuse_another_secret(rows[0][0], check)

    def sweep(self, limit: int) -> Steps[int]:
        """Remove at most `limit` records that are garbage (S7); 0 means that there is no more."""
        removed = 0
        while removed == 0 and limit > 0:
            now = self._clock()
            rows = yield Statement(QUERIES["any_due"], (now, now))
            if not rows[0][0]:
                return 0
            yield BEGIN
            removed = yield from self._sweep_some(limit)
            yield COMMIT
        return removed

    def _sweep_some(self, limit: int) -> Steps[int]:
        """One short transaction's worth: garbage goes, and what is due but not garbage (its
        lease was renewed, or nobody has decided it) is put off, so that it does not hide what
        comes after it."""
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
            yield from _raise_floor(max(record.fence for record in garbage))
        if living:
            yield Statement(QUERIES["postpone"], living, many=True)
        return len(ended) + len(garbage)

    def elect(self, token: bytes, lease: int) -> Steps[bool]:
        """Make this token the elected one, unless another is for some time yet. Who asks in vain
        takes no lock."""
        held = Statement(QUERIES["select_meta"], (_ELECTED,))
        if _elected_other((yield held), token, self._clock()):
            return False
        yield BEGIN
        rows = yield held
        now = self._clock()
        if _elected_other(rows, token, now):
            yield ROLLBACK
            return False
        value = _TERM.pack(now, now + lease) + token
        yield Statement(QUERIES["upsert_meta"], (_ELECTED, value))
        yield COMMIT
        return True

    def unfinished(self, after: int, limit: int) -> Steps[Unfinished]:
        """What was claimed after this time and has not ended (S10). One read, no lock."""
        now = self._clock()
        if limit <= 0:
            return Unfinished((), now)
        since = (after, now)
        rows = yield Statement(QUERIES["select_unfinished"], (*since, *since, limit - 1))
        return Unfinished(tuple(record_of(row) for row in rows), now)

    def history(self, id: bytes) -> Steps[list[Record]]:
        """Past generations of a key that were not yet swept, oldest first."""
        rows = yield Statement(QUERIES["select_history"], (id,))
        return [record_of(row) for row in rows]

    # --- parts --------------------------------------------------------------------------------

    def _answer_from_snapshot(
        self, commands: Sequence[Command]
    ) -> Steps[tuple[dict[int, Reply], bool]]:
        """Answers, by position, that need no write (S6), and whether all claims among the others
        are of ids never seen. Whatever comes after a write of the same id must see it, so it is
        left as well."""
        stored = yield from _load([c for c in commands if type(c) is Claim or type(c) is Look])
        now = self._clock()
        answers: dict[int, Reply] = {}
        writing: set[bytes] = set()
        unseen = True
        for i, command in enumerate(commands):
            record = stored.get(command.id)
            if type(command) is not Look and (record is None or type(command) is not Claim):
                writing.add(command.id)  # also a claim of what was never seen is sure to write
            if command.id in writing:
                continue
            decision = decide(record, command, now)
            if decision.write is None:
                answers[i] = decision.reply
            else:
                writing.add(command.id)
                unseen = False
        return answers, unseen

    def _decide(self, commands: Sequence[Command]) -> Steps[tuple[list[Reply], list[Statement]]]:
        """Replies and writes, from rows and a clock read under the lock."""
        stored = yield from _load(commands)
        fresh = any(type(c) is Claim and c.id not in stored for c in commands)
        floor = (yield from _load_floor()) if fresh else 0
        now = self._clock()
        records = dict(stored)
        changed: dict[bytes, bool] = {}  # id: whether a claim was among what changed it
        archived: list[Row] = []
        replies: list[Reply] = []
        for command in commands:
            id = command.id
            reply, write, archive = decide(records.get(id), command, now, floor)
            if write is not None:
                records[id] = write
                changed[id] = type(command) is Claim or changed.get(id, False)
            if archive is not None:
                archived.append(past_row(archive))
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
    for id, by_claim in changed.items():
        if id not in stored:
            new.append(whole_row(records[id]))
        elif by_claim:
            claimed.append(claimed_row(records[id]))
        elif records[id].state is State.PENDING:
            held.append(held_row(records[id]))
        else:
            ended.append(ended_row(records[id]))
    work = (
        ("insert_history", archived),
        ("insert_record", new),
        ("update_claimed", claimed),
        ("update_held", held),
        ("update_ended", ended),
    )
    return [Statement(QUERIES[name], rows, many=True) for name, rows in work if rows]


def _elected_other(rows: Sequence[Row], token: bytes, now: int) -> bool:
    """Whether somebody else is elected at this time."""
    if not rows:
        return False
    value: bytes = rows[0][0]
    since, until = _TERM.unpack_from(value)
    return is_elected(since, until, now) and value[_TERM.size :] != token


def _usual(commands: Sequence[Command]) -> bool:
    """Claims and finishes only, of different keys: how most attempts begin and end."""
    if any(type(command) is not Claim and type(command) is not Finish for command in commands):
        return False
    return len({command.id for command in commands}) == len(commands)


def _load(commands: Sequence[Command]) -> Steps[dict[bytes, Record]]:
    """The records of the commands' ids that there are."""
    ids = list({command.id: None for command in commands})
    found: dict[bytes, Record] = {}
    for start in range(0, len(ids), SELECT_IDS_MAX):
        some = ids[start : start + SELECT_IDS_MAX]
        # As many placeholders as the next power of two, the last id repeated: so there are few
        # distinct texts, and each is prepared once.
        size = 1 << (len(some) - 1).bit_length()
        some += some[-1:] * (size - len(some))
        rows = yield Statement(_select_records(size), some)
        for row in rows:
            found[row[0]] = record_of(row)
    return found


def _load_floor() -> Steps[int]:
    """The highest fence among what was deleted: those of fresh keys are above it."""
    rows = yield Statement(QUERIES["select_meta"], (_DELETED,))
    return int(_FENCE.unpack(rows[0][0])[0]) if rows else 0


def _raise_floor(fence: int) -> Steps[None]:
    if fence > (yield from _load_floor()):
        yield Statement(QUERIES["upsert_meta"], (_DELETED, _FENCE.pack(fence)))


@cache
def _select_records(size: int) -> str:
    return QUERIES["select_records"].replace("/*ids*/", ",".join("?" * size))
