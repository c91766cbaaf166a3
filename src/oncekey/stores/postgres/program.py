"""What the PostgreSQL store does, as generators: they yield statements and are sent rows.

Every statement is a transaction of its own. A batch's claims and finishes go out first, all in one
statement, which does what usually comes; for the rest it hands back the records as it met them, and
`machine.decide` says what that means. Whatever else has to be written is decided here and written
as compare-and-set on the version that was read; where that version is gone, all is read again.

Keeps no state between two runs but which store it is of, and does no I/O itself. Must not know
drivers, pools, threads or asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.core.commands import Busy, Claim, Claimed, Command, Done, Finish, Lost, Reply
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.record import Record
from oncekey.core.state_machine import decide, reply_to_duplicate
from oncekey.stores.postgres.durability import Server, server_of
from oncekey.stores.postgres.queries import Layout
from oncekey.stores.postgres.rows import (
    Met,
    Row,
    claim_columns,
    finish_columns,
    met_of,
    record_columns,
    replace_columns,
)
from oncekey.stores.postgres.server_clock import ServerClock, SettingsWatch
from oncekey.stores.store_rules import refuse_another_secret

TURNS_MAX: Final = 20
# How long a caller should wait where somebody's open transaction holds the key: nobody can tell.
TRANSACTION_HINT_US: Final = 1_000_000
MOVES_MAX: Final = 1_000
KEPT_SLOT: Final = -1  # of a ring: where undecided records go when their slot is emptied
CLAIM_HOW: Final = {"insert": 0, "row_lock": 1, "advisory_lock": 2}

_CHECK: Final = "secret-check"
_ELECTED: Final = "sweeper"
_DONE: Final = Done()
_LOST: Final = Lost()

T = TypeVar("T")


class Statement(NamedTuple):
    """One query by name, with its parameters."""

    name: str
    params: Sequence[Any] = ()


_WRITES: Final = frozenset(
    ("apply", "claim", "finish", "insert_fresh", "finish_held", "insert_whole", "replace")
)


def is_write(statement: object) -> bool:
    """Whether it may have changed records, and committed that."""
    return isinstance(statement, Statement) and statement.name in _WRITES


Steps = Generator[Statement, Sequence[Row], T]
TestClock = Callable[[], int]
Todo = dict[int, Command]


class Program:
    """The store's verbs. The clock is the server's; `clock` replaces it in tests only."""

    def __init__(
        self,
        layout: Layout,
        *,
        claim: str = "insert",
        guard: bool = True,
        clock: TestClock | None = None,
        patience: float = 0.0,
        interval: float = 0.0,
        lock_us: int = 0,
    ) -> None:
        self._layout = layout
        self._portable = claim == "portable"
        self._how = CLAIM_HOW.get(claim, 0)
        self._guard = guard
        self._clock = clock
        self.server_clock = ServerClock(patience)
        self.watch = SettingsWatch(interval)
        self._lock_timeout = f"{lock_us // 1_000}ms"  # 0: none
        # Learnt when the store is first used: which one it is, and where, in words.
        self.identity = b""
        self.address = ""

    @property
    def layout(self) -> Layout:
        return self._layout

    def now(self) -> int | None:
        """What to send for the clock: nothing, unless a test turns it."""
        return self._clock() if self._clock is not None else None

    def apply(self, commands: Sequence[Command], end: float | None = None) -> Steps[list[Reply]]:
        """The verb: commands of one id one after the other, all others together. Claims are not
        made after `end`, a moment of our monotonic clock."""
        replies: list[Reply | None] = [None] * len(commands)
        told = _Told()
        for todo in _rounds(commands):
            left = {i: c for i, c in todo.items() if not told.answers(i, c, replies)}
            if left:
                yield from self._round(left, replies, end, told)
                told.note(left, replies)
        return replies  # type: ignore[return-value]

    def _round(
        self, todo: Todo, replies: list[Reply | None], end: float | None, told: _Told
    ) -> Steps[None]:
        """Commands of distinct ids."""
        claims = sorted((c.id, i) for i, c in todo.items() if type(c) is Claim)
        finishes = sorted((c.id, i) for i, c in todo.items() if type(c) is Finish)
        if claims or finishes:
            first = self._first_portable if self._portable else self._first
            left = yield from first(
                todo, [i for _, i in claims], [i for _, i in finishes], replies, end, told
            )
        else:
            left = todo
        for turn in range(TURNS_MAX):
            if not left:
                return
            if turn:  # rows were passed over: perhaps they are just being committed
                yield Statement("wait_for_writers", (_ids(left), self._guard, self._lock_timeout))
            left = yield from self._turn(left, replies)
        for i, command in left.items():
            # Somebody writes this row and holds the key: a caller's transaction, and those write
            # only what is free or whose lease is over.
            held = isinstance(command, Claim)
            replies[i] = Busy(TRANSACTION_HINT_US) if held else _LOST

    # --- the usual way ------------------------------------------------------------------------

    def _first(
        self,
        todo: Todo,
        claims: list[int],
        finishes: list[int],
        replies: list[Reply | None],
        end: float | None,
        told: _Told,
    ) -> Steps[Todo]:
        """Claims and finishes in one statement; what they leave to be decided here."""
        layout = self._layout
        asked: list[Any] = [todo[i] for i in claims]
        if layout.is_ring:
            self.check_terms(asked)
        ends = finish_columns([todo[i] for i in finishes])  # type: ignore[misc]
        shape = (layout.slots, layout.period)
        if not claims:
            rows = yield Statement("finish", (self.now(), self._guard, *ends, self._lock_timeout))
        else:
            begins = (self.now(), self._how, self._guard, *shape, *claim_columns(asked))
            along = (self._not_after(end), self.watch.is_due(), self._lock_timeout)
            sent = self.server_clock.sending()
            # What there is nothing of is not even asked for: a lone claim is quicker that way.
            if finishes:
                rows = yield Statement("apply", (*begins, *ends, *along))
            else:
                rows = yield Statement("claim", (*begins, *along))
            first = rows[0] if rows[0][1] == 0 else next(row for row in rows if row[1] == 0)
            self.server_clock.heard(first[0], sent)
            if first[20] is not None:
                self.watch.tell(first[20])
            fresh = Claimed(first[0], 1, ())
            for i in claims:
                replies[i] = fresh
        for i in finishes:
            replies[i] = _DONE
        left = {i: c for i, c in todo.items() if replies[i] is None}
        for row in rows:
            number = row[1]
            if number == 0:
                continue
            i = claims[number - 1] if number > 0 else finishes[-number - 1]
            replies[i] = self._met(todo[i], row)
            told.owners[todo[i].id] = row[6]
            if replies[i] is None:
                left[i] = todo[i]
        return left

    def _not_after(self, end: float | None) -> int | None:
        if end is None or self._clock is not None:
            return None
        return self.server_clock.not_after(end)

    def _met(self, command: Command, row: Row) -> Reply | None:
        """The reply to a command that did not go the usual way; None where it must be tried
        again."""
        at, _, wrote = row[:3]
        if wrote is None:
            return Busy(TRANSACTION_HINT_US) if isinstance(command, Claim) else _LOST
        met = met_of(row)
        decision = decide(met.record if met else None, command, at)
        if isinstance(command, Claim) and wrote != (decision.write is not None):
            raise AssertionError(f"the database and the state machine disagree on {met}")
        return decision.reply if wrote or decision.write is None else None

    def _first_portable(
        self,
        todo: Todo,
        claims: list[int],
        finishes: list[int],
        replies: list[Reply | None],
        end: float | None,
        told: _Told,
    ) -> Steps[Todo]:
        """The same in plain statements, without functions or advisory locks."""
        by_id = {todo[i].id: i for i in (*claims, *finishes)}
        if claims:
            asked: list[Any] = [todo[i] for i in claims]
            rows = yield Statement("insert_fresh", (self.now(), *claim_columns(asked)))
            for row in rows:
                replies[by_id[row[0]]] = Claimed(row[1], 1, ())
        if finishes:
            ended: list[Any] = [todo[i] for i in finishes]
            rows = yield Statement("finish_held", (self.now(), *finish_columns(ended)))
            for row in rows:
                replies[by_id[row[0]]] = _DONE
        return {i: command for i, command in todo.items() if replies[i] is None}

    def check_terms(self, claims: Sequence[Claim]) -> None:
        """Refuse what the ring would not hold to its end."""
        longest = self._layout.terms_max
        for claim in claims:
            if claim.lease + claim.keep + claim.audit > longest:
                raise ConfigurationError(
                    f"operation {claim.operation!r}: lease, keep and audit together are longer "
                    f"than the ring holds ({longest / 3_600_000_000:.1f} hours); give the store "
                    "more ring_slots or a longer ring_period, or shorten them"
                )

    # --- the general way: read, decide, compare-and-set ---------------------------------------

    def _turn(self, left: Todo, replies: list[Reply | None]) -> Steps[Todo]:
        """What is still to be decided after one more turn."""
        found, now, floor = yield from self.look(_ids(left))
        new: dict[bytes, tuple[int, Record]] = {}
        changed: dict[bytes, tuple[int, Record, Met, bool]] = {}
        told: dict[int, Reply] = {}
        for i, command in left.items():
            met = found.get(command.id)
            reply, write, archive = decide(met.record if met else None, command, now, floor)
            told[i] = reply
            if write is None:
                replies[i] = reply
            elif met is None:
                new[command.id] = (i, write)
            else:
                changed[command.id] = (i, write, met, archive is not None)
        if new:
            rows = yield self.insertion([new[id][1] for id in sorted(new)], now)
            for row in rows:
                i = new[row[0]][0]
                replies[i] = told[i]
        if changed:
            rows = yield self.replacement([changed[id][1:] for id in sorted(changed)])
            for row in rows:
                i = changed[row[0]][0]
                replies[i] = told[i]
        return {i: command for i, command in left.items() if replies[i] is None}

    def look(self, ids: Sequence[bytes]) -> Steps[tuple[dict[bytes, Met], int, int]]:
        """Records by id, the one clock reading that belongs to them, and the highest fence among
        what was deleted."""
        rows = yield Statement("look", (self.now(), list(ids)))
        found = [met for row in rows if (met := met_of(row)) is not None]
        return {met.record.id: met for met in found}, rows[0][0], rows[0][23] or 0

    def insertion(self, records: Sequence[Record], now: int) -> Statement:
        layout = self._layout
        slot = now // layout.period % layout.slots if layout.is_ring else 0
        return Statement("insert_whole", (self.now(), *record_columns(records), slot))

    def replacement(self, changes: Sequence[tuple[Record, Met, bool]]) -> Statement:
        return Statement("replace", (self.now(), *replace_columns(changes)))

    # --- besides ------------------------------------------------------------------------------

    def history(self, id: bytes) -> Steps[list[Record]]:
        """Past generations of a key that were not yet swept, oldest first."""
        rows = yield Statement("history", ([id],))
        return [met.record for row in rows if (met := met_of(row)) is not None]

    def bind(self, check: bytes) -> Steps[None]:
        """Remember the secret's check value, or refuse another one (S8)."""
        rows = yield Statement("select_meta", (_CHECK,))
        if not rows:
            yield Statement("insert_meta", (_CHECK, check))
            rows = yield Statement("select_meta", (_CHECK,))
        if not rows:
            raise StoreUnavailable("the store's own settings vanished while it was opened")
        refuse_another_secret(bytes(rows[0][0]), check)

    def locked(self, ids: Sequence[bytes]) -> Steps[list[bytes]]:
        """Which of these records somebody else holds locked."""
        return [bytes(row[0]) for row in (yield Statement("locked", (list(ids),)))]

    def server(self) -> Steps[Server]:
        """What the server says of itself now."""
        return server_of((yield Statement("server"))[0])

    def elect(self, token: bytes, lease: int) -> Steps[bool]:
        """Whether this token may do the background work for `lease` more microseconds."""
        rows = yield Statement("elect", (self.now(), _ELECTED, token, lease))
        return bool(rows)

    def sweep(self, limit: int, tier: str = "all") -> Steps[int]:
        """Remove at most `limit` records that are garbage (S7), or a whole slot of them."""
        removed = 0
        if limit > 0 and tier != "keys":
            rows = yield Statement("sweep_history", (self.now(), limit))
            removed += rows[0][0]
        if removed < limit and tier != "audit":
            removed += yield from self._sweep_records(limit - removed)
        return removed

    def _sweep_records(self, limit: int) -> Steps[int]:
        """On a ring a slot, and some of the undecided that outlived theirs. What is put off hides
        nothing: 0 means that there is no more."""
        removed, more = 0, True
        layout = self._layout
        while layout.is_ring and removed == 0 and more:
            shape = (layout.slots, layout.period, MOVES_MAX)
            rows = yield Statement("rotate", (self.now(), *shape))
            removed, more = rows[0]
        more = removed < limit
        slot = KEPT_SLOT if layout.is_ring else 0
        while removed == 0 and more:
            rows = yield Statement("sweep_records", (self.now(), limit, slot))
            removed, more = rows[0]
        return removed


class _Told:
    """What a batch's claims were told, for later claims of the same ids: they are answered without
    a statement where their reply follows, as in a herd on one key."""

    def __init__(self) -> None:
        self.owners: dict[bytes, bytes | None] = {}  # of the records that were met
        self._last: dict[bytes, tuple[Claim, Reply] | None] = {}

    def note(self, todo: Todo, replies: list[Reply | None]) -> None:
        for i, command in todo.items():
            reply = replies[i]
            known = type(command) is Claim and reply is not None
            self._last[command.id] = (command, reply) if known else None  # type: ignore[assignment]
            if type(command) is Claim and type(reply) is Claimed:
                self.owners[command.id] = command.owner

    def answers(self, i: int, command: Command, replies: list[Reply | None]) -> bool:
        last = self._last.get(command.id)
        if last is None or type(command) is not Claim or command.id not in self.owners:
            return False
        if command.owner in (last[0].owner, self.owners[command.id]):
            return False  # its own claim again, whose reply was lost
        replies[i] = reply_to_duplicate(*last, command)
        return replies[i] is not None


def _ids(todo: Todo) -> list[bytes]:
    return [command.id for command in todo.values()]


def _rounds(commands: Sequence[Command]) -> list[Todo]:
    """Commands by position, in rounds of distinct ids: one round, unless an id comes twice."""
    rounds: list[Todo] = [{}]
    seen: dict[bytes, int] = {}
    for i, command in enumerate(commands):
        number = seen.get(command.id, 0)
        seen[command.id] = number + 1
        if number == len(rounds):
            rounds.append({})
        rounds[number][i] = command
    return rounds
