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

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from oncekey.core.commands import (
    CLAIMS,
    PUTTING,
    Busy,
    Claim,
    Claimed,
    Command,
    Finish,
    Renew,
    Reply,
    Seen,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.move_marks import MARK_ID
from oncekey.core.record import Record, State
from oncekey.core.state_machine import decide, is_expired
from oncekey.stores.record_format import Stored, unpack_record
from oncekey.stores.redis.calls import Calls
from oncekey.stores.redis.errors import ClaimTooLate, MemoryFull
from oncekey.stores.redis.garbage import GarbageProgram
from oncekey.stores.redis.keyspace import Keyspace
from oncekey.stores.redis.packed_commands import (
    archive_arguments,
    claim_record,
    finish_head,
    renew_head,
    replace_arguments,
)
from oncekey.stores.redis.record_calls import Part, RecordCalls, TestClock, given, placed, readable
from oncekey.stores.redis.script_replies import Found, note_found, read_exceptions, read_others
from oncekey.stores.redis.server_settings import settings_calls
from oncekey.stores.repeated_ids import EarlierReplies, Positioned, raise_if_all_failed, split_by_id
from oncekey.stores.server_clock import ServerClock
from oncekey.stores.settings_watch import SettingsWatch
from oncekey.stores.store_rules import check_same_secret

TRIES_MAX: Final = 20
# How long a caller should wait for a key that changed with every try.
CONTENTION_HINT_US: Final = 100_000

_ENDS: Final = (State.SUCCEEDED, State.FAILED)

# The position of a command, the version that was read, the record to write and the one to archive.
Change = tuple[int, Stored | None, Record, Record | None]


class Program:
    """The store's methods. The clock is the server's; `clock` replaces it in tests only."""

    def __init__(
        self,
        keys: Keyspace,
        *,
        is_cluster: bool = False,
        clock: TestClock | None = None,
        settings_interval: float = 0.0,
    ) -> None:
        self.calls = RecordCalls(keys, is_cluster=is_cluster, clock=clock)
        self.server_clock = ServerClock()
        self.watch = SettingsWatch(settings_interval)
        self.garbage = GarbageProgram(self.calls)
        # What the store has to find out, or to write down, after the settings were read.
        self.follow_up: Callable[[], Calls[None]] = _nothing

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
                yield from self._apply_distinct(left, replies, end, earlier)
            if len(groups) > 1:
                earlier.note(left, replies)
        raise_if_all_failed(replies)
        return replies

    def _apply_distinct(
        self,
        commands: Positioned,
        replies: list[Any],
        end: float | None,
        earlier: EarlierReplies,
    ) -> Calls[None]:
        """Apply commands of distinct ids."""
        left = yield from self._send(commands, replies, end)
        for _ in range(TRIES_MAX):
            if not left:
                return
            for i, found in left.items():
                if found.stored is not None:
                    earlier.owners[commands[i].id] = found.stored.record.owner
            left = yield from self._decide(commands, left, replies, end)
        for i in left:
            replies[i] = (
                Busy(CONTENTION_HINT_US)
                if isinstance(commands[i], CLAIMS)
                else StoreUnavailable("the key was changed by others with every try")
            )

    # --- phase 1: what the scripts decide by themselves ---------------------------------------

    def _send(
        self, commands: Positioned, replies: list[Any], end: float | None
    ) -> Calls[dict[int, Found]]:
        """Send commands. Returns those that are still to be decided, with their records."""
        claims = [i for i, c in commands.items() if type(c) is Claim]
        finishes = [i for i, c in commands.items() if type(c) is Finish and c.state in _ENDS]
        renewals = [i for i, c in commands.items() if type(c) is Renew]
        sent = {*claims, *finishes, *renewals}
        others = [i for i in commands if i not in sent] if len(sent) < len(commands) else []
        parts = [
            *self._claim_parts(claims, commands, end),
            *self._finish_parts(finishes, commands),
            *self._renew_parts(renewals, commands),
            *self._look_parts(others, commands),
        ]
        calls = [part.call for part in parts]
        puts = bool(claims) or any(isinstance(commands[i], PUTTING) for i in others)
        reads_settings = puts and self.watch.is_due()
        if reads_settings:
            calls += settings_calls(self.calls)
        since = self.server_clock.send_time()
        answers = yield calls
        if reads_settings:
            self.watch.notify(answers[len(parts) :])
            yield from self.follow_up()
        left: dict[int, Found] = {}
        refused: Positioned = {}
        for part, answer in zip(parts, answers, strict=False):
            if isinstance(answer, ClaimTooLate):
                # The server's clock was set ahead, or else there is no time for another try.
                self.server_clock.forget()
                left.update((i, Found(None, 0)) for i in part.positions)
            elif isinstance(answer, StoreUnavailable):
                for i in part.positions:
                    replies[i] = answer
                if isinstance(answer, MemoryFull):
                    refused |= {i: commands[i] for i in part.positions}
            elif part.call.script == "claim":
                self.server_clock.observe(int(answer[0]), since)
                self._read_claims(part.positions, answer, commands, replies, left)
            else:
                read_others(part, answer, commands, replies, left)
        if refused:
            left |= yield from self._look_at_refused(refused, replies)
        return left

    def _look_at_refused(self, claims: Positioned, replies: list[Any]) -> Calls[dict[int, Found]]:
        """Look at the keys of claims that a full server has refused: those that have a record need
        no more memory, so that duplicates still get their replay. Keeps the error of the others."""
        parts = list(self._look_parts([*claims], claims))
        answers = yield [part.call for part in parts]
        looked: list[Any] = [*replies]
        found: dict[int, Found] = {}
        for part, answer in zip(parts, answers, strict=True):
            if not isinstance(answer, StoreUnavailable):
                read_others(part, answer, claims, looked, found)
        return {
            i: one
            for i, one in found.items()
            if one.stored is not None and not is_expired(one.stored.record, one.now)
        }

    def _claim_parts(
        self, claims: list[int], commands: Positioned, end: float | None
    ) -> Iterator[Part]:
        if not claims:
            return iter(())
        not_after = None
        if end is not None and self.calls.clock is None:
            not_after = self.server_clock.at(end)
        sent: list[Any] = [commands[i] for i in claims]
        args = [(claim_record(claim),) for claim in sent]
        limit = b"" if not_after is None else not_after
        return placed(claims, self.calls.for_records("claim", _ids(sent), args, limit))

    def _finish_parts(self, finishes: list[int], commands: Positioned) -> Iterator[Part]:
        sent: list[Any] = [commands[i] for i in finishes]
        args = [(finish_head(finish), finish.body) for finish in sent]
        return placed(finishes, self.calls.for_records("finish", _ids(sent), args))

    def _renew_parts(self, renewals: list[int], commands: Positioned) -> Iterator[Part]:
        sent: list[Any] = [commands[i] for i in renewals]
        args = [(renew_head(renew),) for renew in sent]
        return placed(renewals, self.calls.for_records("renew", _ids(sent), args))

    def _look_parts(self, others: list[int], commands: Positioned) -> Iterator[Part]:
        sent: list[Any] = [commands[i] for i in others]
        return placed(others, self.calls.for_records("look", _ids(sent), [()] * len(sent)))

    def _read_claims(
        self,
        positions: Sequence[int],
        answer: list[Any],
        commands: Positioned,
        replies: list[Any],
        left: dict[int, Found],
    ) -> None:
        now = int(answer[0])
        fresh = Claimed(now, 1, ())
        for i in positions:
            replies[i] = fresh
        for at in range(1, len(answer), 2):
            i, found = positions[answer[at] - 1], answer[at + 1]
            if isinstance(found, int):
                replies[i] = Claimed(found, 1, ())
            else:
                note_found(i, found, now, commands, replies, left)

    # --- phase 2: decide, compare-and-set -----------------------------------------------------

    def _decide(
        self,
        commands: Positioned,
        left: dict[int, Found],
        replies: list[Any],
        end: float | None,
    ) -> Calls[dict[int, Found]]:
        """Decide and write once. Returns the commands whose records have changed meanwhile."""
        changes: list[Change] = []
        additions: list[Change] = []  # what needs more memory
        decided: dict[int, Reply] = {}
        gone: Positioned = {}
        past: dict[int, Record] = {}  # that another store has archived
        for i, (stored, now, floor) in left.items():
            command = commands[i]
            if stored is None and type(command) is Claim:
                gone[i] = command  # it has expired since, so the claim is sent again
                continue
            record = stored.record if stored is not None else None
            reply, write, archive = decide(record, command, now, floor)
            if write is None:
                replies[i] = reply
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
            yield from self._archive(past, replies)
        if changes or additions:
            again = yield from self._replace(commands, changes, additions, decided, replies)
        if gone:
            again.update((yield from self._send(gone, replies, end)))
        return again

    def _archive(self, past: dict[int, Record], replies: list[Any]) -> Calls[None]:
        args = [archive_arguments(record) for record in past.values()]
        ids = [record.id for record in past.values()]
        parts = list(placed(list(past), self.calls.for_records("archive", ids, args)))
        answers = yield [part.call for part in parts]
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer, StoreUnavailable):
                for i in part.positions:
                    replies[i] = answer

    def _replace(
        self,
        commands: Positioned,
        changes: list[Change],
        additions: list[Change],
        decided: dict[int, Reply],
        replies: list[Any],
    ) -> Calls[dict[int, Found]]:
        parts: list[Part] = []
        for script, those in (("replace", changes), ("add", additions)):
            args = [replace_arguments(*change[1:]) for change in those]
            positions = [change[0] for change in those]
            sent = _ids([commands[i] for i in positions])
            parts += placed(positions, self.calls.for_records(script, sent, args))
        answers = yield [part.call for part in parts]
        again: dict[int, Found] = {}
        for part, answer in zip(parts, answers, strict=True):
            for i in part.positions:
                replies[i] = answer if isinstance(answer, StoreUnavailable) else decided[i]
            if not isinstance(answer, StoreUnavailable):
                read_exceptions(part.positions, answer, commands, replies, again)
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

    def elect(self, token: bytes, lease: int) -> Calls[bool]:
        """True if this token is elected to do the background work for `lease` more microseconds."""
        call = self.calls.one("elect", 0, self.calls.keys.elected, token, lease)
        (answer,) = given((yield [call]))
        return bool(answer[1])


def _nothing() -> Calls[None]:
    yield from ()


def _ids(commands: Sequence[Any]) -> list[bytes]:
    return [command.id for command in commands]
