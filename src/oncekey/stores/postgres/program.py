"""What the PostgreSQL store does, as generators: they yield statements and are sent rows.

Every statement is a transaction of its own. `apply` works in two phases:

1. A batch's claims and finishes are sent first, all in one statement that handles the usual cases.
   For the other ones it returns the records it found, and `state_machine.decide` turns those into
   replies.
2. Whatever is left is read, decided here and written by compare-and-set on the version that was
   read; if that version is gone, the record is read again.

A program keeps no state between two runs except which store it belongs to, and does no I/O itself.
This module must not know drivers, pools, threads or asyncio.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from oncekey.core.commands import (
    CLAIMS,
    Adopt,
    Busy,
    Claim,
    ClaimAlso,
    Claimed,
    Command,
    Done,
    Finish,
    Lost,
    Reply,
    Seen,
)
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.move_marks import MARK_ID
from oncekey.core.origin import is_own, operation_of
from oncekey.core.record import Record
from oncekey.core.state_machine import decide
from oncekey.stores.postgres.lone_command import send_alone
from oncekey.stores.postgres.queries import Layout
from oncekey.stores.postgres.rows import (
    Row,
    StoredRow,
    claim_columns,
    finish_columns,
    record_columns,
    replace_columns,
    stored_row_of,
)
from oncekey.stores.postgres.statements import Statement, Statements
from oncekey.stores.server_watch import ServerClock, SettingsWatch, reply_deadline
from oncekey.stores.store_rules import EarlierReplies, Positioned, check_same_secret, split_by_id

TRIES_MAX: Final = 20
# How long a caller should wait if an open transaction holds the key. Its end cannot be foreseen.
TRANSACTION_HINT_US: Final = 1_000_000
MOVES_MAX: Final = 1_000
KEPT_SLOT: Final = -1  # of a ring: holds undecided records whose own slot was emptied
CLAIM_METHOD: Final = {"insert": 0, "row_lock": 1, "advisory_lock": 2}

_CHECK: Final = "secret-check"
_ELECTED: Final = "sweeper"
_DONE: Final = Done()
_LOST: Final = Lost()

TestClock = Callable[[], int]


class Program:
    """The store's methods. The clock is the server's; `clock` replaces it in tests only."""

    def __init__(
        self,
        layout: Layout,
        *,
        claim: str = "insert",
        guard: bool = True,
        clock: TestClock | None = None,
        reply_timeout: float = 0.0,
        settings_interval: float = 0.0,
        lock_us: int = 0,
    ) -> None:
        self.layout = layout
        self.is_ring = layout.is_ring
        self._portable = claim == "portable"
        self._claim_method = CLAIM_METHOD.get(claim, 0)
        self.guard = guard  # True to respect callers' transactions
        # A lone command has a function of its own, where a claim inserts first.
        self._has_lone = claim == "insert" and not layout.is_ring
        self._clock = clock
        self.server_clock = ServerClock()
        self._reply_timeout = reply_timeout
        self.watch = SettingsWatch(settings_interval)
        self.lock_timeout = f"{lock_us // 1_000}ms"  # 0: none
        # Read when the store is first used: which store it is, and where, for messages.
        self.identity = b""
        self.address = ""

    def now(self) -> int | None:
        """The clock reading to send: None, unless a test replaces the clock."""
        return self._clock() if self._clock is not None else None

    def apply(
        self, commands: Sequence[Command], end: float | None = None
    ) -> Statements[list[Reply]]:
        """Apply commands: those of one id one after the other, all others together. No claim is
        made after `end`, a time of our monotonic clock."""
        if len(commands) == 1 and self._has_lone and isinstance(commands[0], (Claim, Finish)):
            found = yield from send_alone(self, commands[0], self._not_after(end))
            if isinstance(found, (Claimed, Done)):
                return [found]
            reply = self._reply_from(commands[0], found)
            if reply is not None:
                return [reply]
        replies: list[Reply | None] = [None] * len(commands)
        earlier = EarlierReplies()
        groups = split_by_id(commands)
        if len(groups) == 1:
            yield from self._apply_distinct(groups[0], replies, end, earlier)
            return replies  # type: ignore[return-value]
        for group in groups:
            left = {i: c for i, c in group.items() if not earlier.reply_to(i, c, replies)}
            if left:
                yield from self._apply_distinct(left, replies, end, earlier)
                earlier.note(left, replies)
        return replies  # type: ignore[return-value]

    def _apply_distinct(
        self,
        commands: Positioned,
        replies: list[Reply | None],
        end: float | None,
        earlier: EarlierReplies,
    ) -> Statements[None]:
        """Apply commands of distinct ids."""
        claims = sorted([(c.id, i) for i, c in commands.items() if type(c) is Claim])
        finishes = sorted([(c.id, i) for i, c in commands.items() if type(c) is Finish])
        left = commands
        if claims or finishes:
            send = self._send_portable if self._portable else self._send
            left = yield from send(
                commands, [i for _, i in claims], [i for _, i in finishes], replies, end, earlier
            )
        if left:
            yield from self._check_moved(left)
        for number in range(TRIES_MAX):
            if not left:
                return
            if number:  # locked rows were skipped: perhaps they are just being committed
                yield Statement("wait_for_writers", (_ids(left), self.guard, self.lock_timeout))
            left = yield from self._compare_and_set(left, replies, earlier)
        for i, command in left.items():
            # A caller's transaction is writing this row and holds the key. Such a transaction
            # writes only keys that are free or whose lease has ended.
            is_claim = isinstance(command, CLAIMS)
            replies[i] = Busy(TRANSACTION_HINT_US) if is_claim else _LOST

    # --- phase 1: claims and finishes in one statement ----------------------------------------

    def _send(
        self,
        commands: Positioned,
        claims: list[int],
        finishes: list[int],
        replies: list[Reply | None],
        end: float | None,
        earlier: EarlierReplies,
    ) -> Statements[Positioned]:
        """Send claims and finishes in one statement. Returns the commands still to be decided."""
        layout = self.layout
        sent_claims: list[Any] = [commands[i] for i in claims]
        if layout.is_ring:
            self.check_terms(sent_claims)
        ends = finish_columns([commands[i] for i in finishes])  # type: ignore[misc]
        shape = (layout.slots, layout.period)
        if not claims:
            rows = yield Statement("finish", (self.now(), self.guard, *ends, self.lock_timeout))
        else:
            method = (self.now(), self._claim_method, self.guard, *shape)
            begins = (*method, *claim_columns(sent_claims))
            limits = (self._not_after(end), self.watch.is_due(), self.lock_timeout)
            sent = self.server_clock.send_time()
            # A batch without finishes has a query of its own: a lone claim is faster that way.
            if finishes:
                rows = yield Statement("apply", (*begins, *ends, *limits))
            else:
                rows = yield Statement("claim", (*begins, *limits))
            first = rows[0] if rows[0][1] == 0 else next(row for row in rows if row[1] == 0)
            self.server_clock.observe(first[0], sent)
            if first[20] is not None:
                self.watch.notify(first[20])
            fresh = Claimed(first[0], 1, ())
            for i in claims:
                replies[i] = fresh
        for i in finishes:
            replies[i] = _DONE
        left: Positioned = {}
        if len(claims) + len(finishes) < len(commands):
            left = {i: c for i, c in commands.items() if replies[i] is None}
        for row in rows:
            number = row[1]
            if number == 0:
                continue
            i = claims[number - 1] if number > 0 else finishes[-number - 1]
            replies[i] = self._reply_from(commands[i], row)
            earlier.owners[commands[i].id] = row[6]
            if replies[i] is None:
                left[i] = commands[i]
        return left

    def _not_after(self, end: float | None) -> int | None:
        if end is None or self._clock is not None:
            return None
        return self.server_clock.at(reply_deadline(time.monotonic(), self._reply_timeout, end))

    def _reply_from(self, command: Command, row: Row) -> Reply | None:
        """The reply to a command that found the record in this row; None if the command has to be
        tried again."""
        at, _, wrote = row[:3]
        if wrote is None:
            return Busy(TRANSACTION_HINT_US) if isinstance(command, Claim) else _LOST
        stored = stored_row_of(row)
        decision = decide(stored.record if stored else None, command, at)
        if isinstance(command, Claim) and wrote != (decision.write is not None):
            raise AssertionError(f"the database and the state machine disagree on {stored}")
        return decision.reply if wrote or decision.write is None else None

    def _send_portable(
        self,
        commands: Positioned,
        claims: list[int],
        finishes: list[int],
        replies: list[Reply | None],
        end: float | None,
        earlier: EarlierReplies,
    ) -> Statements[Positioned]:
        """What `_send` does, in plain statements without functions or advisory locks."""
        by_id = {commands[i].id: i for i in (*claims, *finishes)}
        if claims:
            yield from self._read_settings()
            sent: list[Any] = [commands[i] for i in claims]
            rows = yield Statement("insert_fresh", (self.now(), *claim_columns(sent)))
            for row in rows:
                replies[by_id[row[0]]] = Claimed(row[1], 1, ())
        if finishes:
            ended: list[Any] = [commands[i] for i in finishes]
            rows = yield Statement("finish_held", (self.now(), *finish_columns(ended)))
            for row in rows:
                replies[by_id[row[0]]] = _DONE
        return {i: command for i, command in commands.items() if replies[i] is None}

    def check_terms(self, claims: Sequence[Claim]) -> None:
        """Raise ConfigurationError if the ring would empty a slot that is still needed. A few keys
        of oncekey's own stay longer: they move on from slot to slot (0003_ring.sql)."""
        longest = self.layout.terms_max
        for claim in claims:
            if claim.lease + claim.keep + claim.audit > longest and not is_own(claim.label):
                name = operation_of(claim.label)
                raise ConfigurationError(
                    f"operation {name!r}: lease, keep and audit together are longer than "
                    f"the ring holds ({longest / 3_600_000_000:.1f} hours); give the store "
                    "more ring_slots or a longer ring_period, or shorten them"
                )

    # --- phase 2: read, decide, compare-and-set -----------------------------------------------

    def _check_moved(self, left: Positioned) -> Statements[None]:
        """What phase 1 has done for claims, for what comes from another store."""
        moved = [c for c in left.values() if isinstance(c, (Adopt, ClaimAlso))]
        if moved:
            if self.is_ring:
                self.check_terms([c.claim for c in moved if isinstance(c, ClaimAlso)])
            yield from self._read_settings()

    def _read_settings(self) -> Statements[None]:
        """Read the server's settings, if that is due."""
        if self.watch.is_due():
            self.watch.notify((yield Statement("settings"))[0][0])

    def _compare_and_set(
        self, left: Positioned, replies: list[Reply | None], earlier: EarlierReplies
    ) -> Statements[Positioned]:
        """Decide and write once. Returns the commands whose records have changed meanwhile."""
        found, now, floor = yield from self.look(_ids(left))
        earlier.owners.update((id, stored.record.owner) for id, stored in found.items())
        new: dict[bytes, tuple[int, Record]] = {}
        changed: dict[bytes, tuple[int, Record, StoredRow, bool]] = {}
        past: list[Record] = []  # that another store has archived
        decided: dict[int, Reply] = {}
        for i, command in left.items():
            stored = found.get(command.id)
            record = stored.record if stored else None
            reply, write, archive = decide(record, command, now, floor)
            decided[i] = reply
            if write is None:
                replies[i] = reply
                if archive is not None:
                    past.append(archive)
            elif stored is None:
                new[command.id] = (i, write)
            else:
                changed[command.id] = (i, write, stored, archive is not None)
        if past:
            yield Statement("insert_past", tuple(record_columns(past)))
        if new:
            rows = yield self.insertion([new[id][1] for id in sorted(new)], now)
            for row in rows:
                i = new[row[0]][0]
                replies[i] = decided[i]
        if changed:
            rows = yield self.replacement([changed[id][1:] for id in sorted(changed)])
            for row in rows:
                i = changed[row[0]][0]
                replies[i] = decided[i]
        return {i: command for i, command in left.items() if replies[i] is None}

    def look(self, ids: Sequence[bytes]) -> Statements[tuple[dict[bytes, StoredRow], int, int]]:
        """The records by id, the clock reading that belongs to them, and the highest fence of a
        deleted record."""
        rows = yield Statement("look", (self.now(), list(ids)))
        found = [stored for row in rows if (stored := stored_row_of(row)) is not None]
        return {stored.record.id: stored for stored in found}, rows[0][0], rows[0][23] or 0

    def insertion(self, records: Sequence[Record], now: int) -> Statement:
        layout = self.layout
        slot = now // layout.period % layout.slots if layout.is_ring else 0
        name = "insert_absent" if layout.is_ring else "insert_whole"
        return Statement(name, (self.now(), *record_columns(records), slot))

    def replacement(self, changes: Sequence[tuple[Record, StoredRow, bool]]) -> Statement:
        return Statement("replace", (self.now(), *replace_columns(changes)))

    # --- everything else ----------------------------------------------------------------------

    def history(self, id: bytes) -> Statements[list[Record]]:
        """Past generations of a key that were not swept yet, oldest first."""
        rows = yield Statement("history", ([id],))
        return [stored.record for row in rows if (stored := stored_row_of(row)) is not None]

    def bind(self, check: bytes) -> Statements[Seen]:
        """Remember the secret's check value, or refuse another one (S8)."""
        yield from self._bind_secret(check)
        found, now, _ = yield from self.look([MARK_ID])
        mark = found.get(MARK_ID)
        return Seen(mark.record if mark else None, now)

    def _bind_secret(self, check: bytes) -> Statements[None]:
        rows = yield Statement("select_meta", (_CHECK,))
        if not rows:
            yield Statement("insert_meta", (_CHECK, check))
            rows = yield Statement("select_meta", (_CHECK,))
        if not rows:
            raise StoreUnavailable("the store's own settings vanished while it was opened")
        check_same_secret(bytes(rows[0][0]), check)

    def locked(self, ids: Sequence[bytes]) -> Statements[list[bytes]]:
        """The ids of those records that another session holds locked."""
        return [bytes(row[0]) for row in (yield Statement("locked", (list(ids),)))]

    def elect(self, token: bytes, lease: int) -> Statements[bool]:
        """True if this token is elected to do the background work for `lease` more microseconds."""
        rows = yield Statement("elect", (self.now(), _ELECTED, token, lease))
        return bool(rows)

    def sweep(self, limit: int, tier: str = "all") -> Statements[int]:
        """Remove at most `limit` records that are garbage (S7), or a whole slot of a ring."""
        removed = 0
        if limit > 0 and tier != "keys":
            rows = yield Statement("sweep_history", (self.now(), limit))
            removed += rows[0][0]
        if removed < limit and tier != "audit":
            removed += yield from self._sweep_records(limit - removed)
        return removed

    def _sweep_records(self, limit: int) -> Statements[int]:
        """Sweep the table; on a ring, one slot and some of the undecided records whose own slot was
        emptied. Postponed records hide nothing: 0 means that there is no more garbage."""
        removed, more = 0, True
        layout = self.layout
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


def _ids(commands: Positioned) -> list[bytes]:
    return [command.id for command in commands.values()]
