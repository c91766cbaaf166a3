"""What the Redis store does, as generators: they yield lists of calls and are sent their replies.

Every script is atomic, and the server runs one at a time. `apply` works in two phases:

1. A batch's commands are sent together. Scripts handle the usual claims, finishes and renewals; of
   the other ones they return the records they found.
2. `state_machine.decide` turns those records into replies. What it writes is sent as a whole
   record, and written only if the version that was read is still there; if not, the script
   returns the version that is, and the command is decided again.

On one node a script takes all of a batch's commands; on a cluster it takes those of one bucket,
because a bucket lies in one slot. A program does no I/O itself. This module must not know redis-py,
threads or asyncio.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from oncekey.core.commands import (
    CLAIMS,
    PUTTING,
    Busy,
    Claim,
    Claimed,
    Command,
    Done,
    Finish,
    Lost,
    Renew,
    Reply,
    Seen,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.move_marks import MARK_ID
from oncekey.core.record import Record, State
from oncekey.core.state_machine import decide, is_expired
from oncekey.stores.record_format import Stored, unpack_record
from oncekey.stores.redis.errors import ClaimTooLate, MemoryFull, unreadable
from oncekey.stores.redis.garbage import GarbageProgram
from oncekey.stores.redis.scripts import (
    Calls,
    Part,
    RecordCalls,
    archive_arguments,
    claim_record,
    finish_head,
    given,
    readable,
    renew_head,
    replace_arguments,
)
from oncekey.stores.redis.server_settings import ServerSettings
from oncekey.stores.server_watch import ServerClock
from oncekey.stores.store_rules import (
    EarlierReplies,
    Positioned,
    check_same_secret,
    raise_if_all_failed,
    split_by_id,
)

TRIES_MAX: Final = 20
# How long a caller should wait for a key that changed with every try.
CONTENTION_HINT_US: Final = 100_000

_ENDS: Final = (State.SUCCEEDED, State.FAILED)

# The position of a command, the version that was read, the record to write and the one to archive.
Change = tuple[int, Stored | None, Record, Record | None]
_USUAL: Final = ("claim", "finish", "renew", "look")
_DONE: Final = Done()
_LOST: Final = Lost()


class Found(NamedTuple):
    """A command that its script left to be decided: its record, None if there is none, and when;
    without a record, the highest fence that its key may have had."""

    stored: Stored | None
    now: int
    floor: int = 0


class CommandBatch(NamedTuple):
    """Commands of distinct ids, by position; the replies to them go to the same positions. No claim
    is made after `end`, a time of our monotonic clock."""

    commands: Positioned
    replies: list[Any]
    end: float | None

    def parts(
        self, calls: RecordCalls, script: str, args: Mapping[int, Sequence[Any]], *shared: Any
    ) -> list[Part]:
        """The calls of a script for some commands; `args` has those of each, by its position."""
        positions = [*args]
        ids = [self.commands[i].id for i in positions]
        parts = calls.for_records(script, ids, [*args.values()], *shared)
        return [Part([positions[at] for at in own], call) for own, call in parts]

    def read(self, part: Part, answer: list[Any], left: dict[int, Found]) -> None:
        """Take in the reply of claim, finish, renew or look: the time, then something of the
        commands that the script did not simply carry out."""
        positions, script, now = part.positions, part.call.script, int(answer[0])
        if script == "look":
            for i, value in zip(positions, answer[1:], strict=True):
                self.note_found(i, value, now, left)
            return
        usual = Claimed(now, 1, ()) if script == "claim" else _DONE
        for i in positions:
            self.replies[i] = usual
        if script == "renew":
            for number in answer[1:]:
                self.replies[positions[number - 1]] = _LOST
            return
        for i, value in exceptions(positions, answer):
            if script == "claim" and isinstance(value, int):
                self.replies[i] = Claimed(value, 1, ())
            else:
                self.note_found(i, value, now, left)

    def note_found(self, i: int, value: bytes | int, now: int, left: dict[int, Found]) -> None:
        """Take in the record that a command has found: empty if there is none, or a number, the
        highest fence that its key may have had. One that cannot be read is an error of this command
        alone, since the others of its batch have taken effect."""
        self.replies[i] = None
        if isinstance(value, int):
            left[i] = Found(None, now, value)
            return
        try:
            stored = unpack_record(self.commands[i].id, value) if value else None
        except ValueError as error:
            self.replies[i] = unreadable(error)
        else:
            left[i] = Found(stored, now)


def exceptions(positions: Sequence[int], answer: list[Any]) -> Iterator[tuple[int, bytes | int]]:
    """The positions of the commands that a script left alone, and what it found of each."""
    for at in range(1, len(answer), 2):
        yield positions[answer[at] - 1], answer[at + 1]


def usual_call(command: Command) -> tuple[str, tuple[Any, ...]]:
    """The script that a command is sent to first, and its arguments there. Unusual commands only
    look at their record."""
    if type(command) is Claim:
        return "claim", (claim_record(command),)
    if type(command) is Finish and command.state in _ENDS:
        return "finish", (finish_head(command), command.body)
    if type(command) is Renew:
        return "renew", (renew_head(command),)
    return "look", ()


class Program:
    """The store's methods. Beside claims it reads the servers' settings, when that is due."""

    def __init__(self, calls: RecordCalls, settings: ServerSettings) -> None:
        self.calls = calls
        self.settings = settings
        self.server_clock = ServerClock()
        self.garbage = GarbageProgram(calls)

    # --- commands -----------------------------------------------------------------------------

    def apply(self, commands: Sequence[Command], end: float | None = None) -> Calls[list[Reply]]:
        """Apply commands: those of one id one after the other, all others together. No claim is
        made after `end`, a time of our monotonic clock."""
        replies: list[Any] = [None] * len(commands)
        earlier = EarlierReplies()
        groups = split_by_id(commands)
        for group in groups:
            left = group
            if group is not groups[0]:
                left = {i: c for i, c in group.items() if not earlier.reply_to(i, c, replies)}
            if left:
                yield from self._apply_distinct(CommandBatch(left, replies, end), earlier)
            if len(groups) > 1:
                earlier.note(left, replies)
        raise_if_all_failed(replies)
        return replies

    def _apply_distinct(self, batch: CommandBatch, earlier: EarlierReplies) -> Calls[None]:
        left = yield from self._send(batch)
        for _ in range(TRIES_MAX):
            if not left:
                return
            for i, found in left.items():
                if found.stored is not None:
                    earlier.owners[batch.commands[i].id] = found.stored.record.owner
            left = yield from self._decide(batch, left)
        for i in left:
            batch.replies[i] = (
                Busy(CONTENTION_HINT_US)
                if isinstance(batch.commands[i], CLAIMS)
                else StoreUnavailable("the key was changed by others with every try")
            )

    # --- phase 1: what the scripts decide by themselves ---------------------------------------

    def _send(self, batch: CommandBatch) -> Calls[dict[int, Found]]:
        """Send commands. Returns those that are still to be decided, with their records."""
        parts = self._usual_parts(batch)
        calls = [part.call for part in parts]
        puts = any(isinstance(command, PUTTING) for command in batch.commands.values())
        reads_settings = puts and self.settings.watch.is_due()
        if reads_settings:
            calls += self.settings.calls()
        since = self.server_clock.send_time()
        answers = yield calls
        if reads_settings:
            yield from self.settings.read(answers[len(parts) :])
        left: dict[int, Found] = {}
        refused: Positioned = {}
        for part, answer in zip(parts, answers, strict=False):
            if isinstance(answer, ClaimTooLate):
                # The server's clock was set ahead, or else there is no time for another try.
                self.server_clock.forget()
                left.update((i, Found(None, 0)) for i in part.positions)
            elif isinstance(answer, StoreUnavailable):
                for i in part.positions:
                    batch.replies[i] = answer
                if isinstance(answer, MemoryFull):
                    refused |= {i: batch.commands[i] for i in part.positions}
            else:
                if part.call.script == "claim":
                    self.server_clock.observe(int(answer[0]), since)
                batch.read(part, answer, left)
        if refused:
            left |= yield from self._look_at_refused(refused, batch.replies)
        return left

    def _usual_parts(self, batch: CommandBatch) -> list[Part]:
        by_script: dict[str, dict[int, tuple[Any, ...]]] = {script: {} for script in _USUAL}
        for i, command in batch.commands.items():
            script, args = usual_call(command)
            by_script[script][i] = args
        parts: list[Part] = []
        for script, own in by_script.items():
            shared = (self._latest_time(batch.end),) if script == "claim" else ()
            if own:
                parts += batch.parts(self.calls, script, own, *shared)
        return parts

    def _latest_time(self, end: float | None) -> int | bytes:
        """When nobody waits for a claim any more, by the server's clock; empty if not known."""
        if end is None or self.calls.clock is not None:
            return b""
        at = self.server_clock.at(end)
        return b"" if at is None else at

    def _look_at_refused(self, claims: Positioned, replies: list[Any]) -> Calls[dict[int, Found]]:
        """Look at the keys of claims that a full server has refused: those that have a record need
        no more memory, so that duplicates still get their replay. Keeps the error of the others."""
        batch = CommandBatch(claims, [*replies], None)
        parts = batch.parts(self.calls, "look", dict.fromkeys(claims, ()))
        answers = yield [part.call for part in parts]
        found: dict[int, Found] = {}
        for part, answer in zip(parts, answers, strict=True):
            if not isinstance(answer, StoreUnavailable):
                batch.read(part, answer, found)
        return {
            i: one
            for i, one in found.items()
            if one.stored is not None and not is_expired(one.stored.record, one.now)
        }

    # --- phase 2: decide, compare-and-set -----------------------------------------------------

    def _decide(self, batch: CommandBatch, left: dict[int, Found]) -> Calls[dict[int, Found]]:
        """Decide and write once. Returns the commands whose records have changed meanwhile."""
        changes: list[Change] = []
        additions: list[Change] = []  # what needs more memory
        decided: dict[int, Reply] = {}
        gone: Positioned = {}
        past: dict[int, Record] = {}  # that another store has archived
        for i, (stored, now, floor) in left.items():
            command = batch.commands[i]
            if stored is None and type(command) is Claim:
                gone[i] = command  # it has expired since, so the claim is sent again
                continue
            record = stored.record if stored is not None else None
            reply, write, archive = decide(record, command, now, floor)
            if write is None:
                batch.replies[i] = reply
                if archive is not None:
                    past[i] = archive
            else:
                decided[i] = reply
                is_there = record is not None and not is_expired(record, now)
                # The mark of a move is always taken: keys must be able to leave a full server.
                is_there = is_there or command.id == MARK_ID
                is_new = isinstance(command, PUTTING) and not is_there
                (additions if is_new else changes).append((i, stored, write, archive))
        again: dict[int, Found] = {}
        if past:
            yield from self._archive(batch, past)
        if changes or additions:
            again = yield from self._replace(batch, changes, additions, decided)
        if gone:
            again.update((yield from self._send(batch._replace(commands=gone))))
        return again

    def _archive(self, batch: CommandBatch, past: dict[int, Record]) -> Calls[None]:
        args = {i: archive_arguments(record) for i, record in past.items()}
        parts = batch.parts(self.calls, "archive", args)
        answers = yield [part.call for part in parts]
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer, StoreUnavailable):
                for i in part.positions:
                    batch.replies[i] = answer

    def _replace(
        self,
        batch: CommandBatch,
        changes: list[Change],
        additions: list[Change],
        decided: dict[int, Reply],
    ) -> Calls[dict[int, Found]]:
        parts: list[Part] = []
        for script, those in (("replace", changes), ("add", additions)):
            args = {change[0]: replace_arguments(*change[1:]) for change in those}
            parts += batch.parts(self.calls, script, args)
        answers = yield [part.call for part in parts]
        again: dict[int, Found] = {}
        for part, answer in zip(parts, answers, strict=True):
            for i in part.positions:
                batch.replies[i] = answer if isinstance(answer, StoreUnavailable) else decided[i]
            if not isinstance(answer, StoreUnavailable):
                for i, value in exceptions(part.positions, answer):
                    batch.note_found(i, value, int(answer[0]), again)
        return again

    # --- everything else ----------------------------------------------------------------------

    def history(self, id: bytes) -> Calls[list[Record]]:
        """Past generations of a key that were not swept yet, oldest first."""
        call = self.calls.one("history", id[0], self.calls.keys.archive(id))
        (answer,) = given((yield [call]))
        records = readable([id] * (len(answer) - 1), answer[1:])
        return sorted(records, key=lambda record: record.fence)

    def bind(self, check: bytes) -> Calls[Seen]:
        """Remember the secret's check value, or refuse another one (S8)."""
        call = self.calls.one("bind", 0, self.calls.keys.check, check)
        (mark,) = self.calls.for_records("look", [MARK_ID], [()])
        bound, (now, value) = given((yield [call, mark.call]))
        check_same_secret(bound[1], check)
        is_there = isinstance(value, bytes)
        return Seen(unpack_record(MARK_ID, value).record if is_there else None, int(now))
