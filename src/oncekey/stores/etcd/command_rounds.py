"""How commands are applied: in rounds, each one request for the whole batch.

In a round, each command that is left reads its record, or writes what was decided if the record is
still what it was decided on: compare-and-set on etcd's revision (command_plans.py). If it is not,
the reply has the record as it is, and the next round decides again.

A pending record is judged by its session, whatever any host's clock says: as long as its session
lives, it is held. Only its own process goes by the deadline of the claim instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from oncekey.core.commands import CLAIMS, PUTTING, Command, Reply
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.move_marks import MARK_ID
from oncekey.core.origin import operation_of
from oncekey.core.record import State
from oncekey.stores.etcd import errors
from oncekey.stores.etcd.command_plans import CommandPlans, NoBucket, Planned, lease_of
from oncekey.stores.etcd.garbage import Bucket, Buckets, FenceFloor
from oncekey.stores.etcd.held_claims import HeldClaims, Known, Reading, StoreClock
from oncekey.stores.etcd.keyspace import Keys, StoredValue
from oncekey.stores.etcd.members import Members
from oncekey.stores.etcd.options import Options
from oncekey.stores.etcd.sessions import Sessions
from oncekey.stores.etcd.transactions import exists, found_value, get, is_at, put, transaction
from oncekey.stores.store_rules import EarlierReplies, Positioned, split_by_id

ROUNDS_MAX: Final = 30


class CommandBatch:
    """Commands of distinct ids, by their positions.

    left      those that have no reply yet
    known     what is known of their records
    replies   to all commands of the call, by position
    end       when the call must have ended
    """

    def __init__(self, left: Positioned, replies: list[Any], end: float) -> None:
        self.left = left
        self.known: dict[int, Known] = {}
        self.replies = replies
        self.end = end


class CommandRounds:
    """Applies batches of commands."""

    def __init__(self, members: Members, keys: Keys, options: Options, clock: StoreClock) -> None:
        self._members = members
        self._keys = keys
        self._clock = clock
        self._lease_min = options.lease_min
        self.sessions = Sessions(members, keys)
        self.buckets = Buckets(members, keys, options.us("bucket"))
        self.floor = FenceFloor(members, keys)
        self.held = HeldClaims()
        self._plans = CommandPlans(
            keys, options, self.sessions, self.buckets, self.floor, self.held
        )

    async def apply(self, commands: Sequence[Command], end: float) -> list[Reply]:
        """Apply commands: those of one id one after the other, all others together."""
        self._check_leases(commands)
        replies: list[Any] = [None] * len(commands)
        earlier = EarlierReplies()
        groups = split_by_id(commands)
        for number, group in enumerate(groups):
            left = {i: c for i, c in group.items() if not earlier.reply_to(i, c, replies)}
            if left:
                await self._apply_distinct(
                    CommandBatch(left, replies, end), earlier, applied=number > 0
                )
                if len(groups) > 1:
                    earlier.note(left, replies)
        return replies

    def _check_leases(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, CLAIMS) and command.lease < self._lease_min:
                name = operation_of(command.label)
                raise ConfigurationError(
                    f"operation {name!r}: its lease is {command.lease / 1_000_000:g}s, and etcd "
                    f"ends no lease before {self._lease_min / 1_000_000:g}s; give it a longer one"
                )

    async def _apply_distinct(
        self, batch: CommandBatch, earlier: EarlierReplies, *, applied: bool
    ) -> None:
        """Apply commands of distinct ids. `applied`: others of the call may have taken effect."""
        for _ in range(ROUNDS_MAX):
            with _ambiguous_if(applied, writes=False):  # sessions and buckets are no commands
                planned = await self._plan(batch)
            for part in self._plans.parts(planned):
                writes = any(one.decision is not None for one in part)
                with _ambiguous_if(applied, writes=writes):
                    await self._send_within_quota(part, batch)
                applied = applied or writes
            for i, one in batch.known.items():
                if one.value is not None:
                    earlier.owners[batch.left[i].id] = one.value.record.owner
            batch.left = {i: c for i, c in batch.left.items() if batch.replies[i] is None}
            batch.known = {i: one for i, one in batch.known.items() if i in batch.left}
            if not batch.left:
                return
        raise StoreUnavailable("the keys change too fast", ambiguous=True)

    # --- what a round does --------------------------------------------------------------------

    async def _plan(self, batch: CommandBatch) -> list[Planned]:
        """Decide each command, or plan to read its record."""
        refused = await self._cover(batch.left, batch.end)
        reading = self._clock.read()
        planned = []
        for i, command in batch.left.items():
            known = batch.known.get(i)
            one: Planned | NoBucket | Reply | StoreUnavailable | None
            if i in refused and known is None:  # its outcome may be there
                one = Planned(i, command, (get(self._keys.record(command.id)),))
            else:
                one = self._plans.plan(i, command, known, reading)
                if isinstance(one, NoBucket):
                    one = await self._plan_with_bucket(i, command, known, reading, batch.end)
            if isinstance(one, Planned):
                planned.append(one)
            elif one is not None or i in refused:
                batch.replies[i] = one if one is not None else refused[i]
        return planned

    async def _cover(self, left: Positioned, end: float) -> dict[int, errors.NoSpace]:
        """Make sure that there are sessions. Returns the commands that can have none, because the
        servers' quota is used up."""
        refused: dict[int, errors.NoSpace] = {}
        for i, command in left.items():
            lease = lease_of(command)
            if lease is not None and self.sessions.covering(lease) is None:
                try:
                    await self.sessions.cover(lease, end)
                except errors.NoSpace as error:
                    error.ambiguous = False
                    refused[i] = error
        return refused

    async def _plan_with_bucket(
        self, i: int, command: Command, known: Known | None, reading: Reading, end: float
    ) -> Planned | Reply | StoreUnavailable | None:
        """What a command does, once its bucket is there."""
        one = self._plans.plan(i, command, known, reading)
        while isinstance(one, NoBucket):
            try:
                await self.buckets.open(one.audit_until, reading.now, end)
            except errors.NoSpace as error:
                error.ambiguous = False
                return error  # this command's alone: others have their buckets (S2)
            one = self._plans.plan(i, command, known, reading)
        return one

    # --- sending, and what the reply says -----------------------------------------------------

    async def _send_within_quota(self, part: list[Planned], batch: CommandBatch) -> None:
        """Send one request. If the servers' quota is used up, claims that would write are refused,
        and so is what comes from another store; outcomes are still replayed, and what ends or keeps
        other claims is sent without them."""
        try:
            await self._send(part, batch)
        except errors.NoSpace as error:
            refused = [one for one in part if _needs_room(one)]
            if not refused:
                raise
            decided = [one for one in refused if one.position in batch.known]  # on what was read
            rest = [one for one in part if not _needs_room(one)]
            for one in refused:
                if not error.ambiguous and isinstance(one.command, CLAIMS):
                    self.held.answered(one.command.id, one.command.owner)
                read = get(self._keys.record(one.command.id))
                rest.append(Planned(one.position, one.command, (read,)))
            await self._send(rest, batch)
            for one in refused:
                if one in decided or batch.known[one.position].value is None:
                    batch.replies[one.position] = error

    async def _send(self, part: list[Planned], batch: CommandBatch) -> None:
        """Send one request. What it rests on is compared once for all its commands."""
        writes = [one.write for one in part if one.write is not None]
        # A claim rests on its session, also on one that this process has just learned has ended. A
        # step does not: it is saved as long as nobody else has changed the record.
        resting = [one.write for one in part if lease_of(one.command) is not None]
        sessions = sorted({write.session for write in resting if write and write.session})
        buckets = sorted({one.bucket for one in part if one.bucket is not None})
        is_fresh = any(write.before is None for write in writes)
        compare = [self.floor.comparison()] if is_fresh else []
        otherwise = [self.floor.reading()] if is_fresh else []
        for session in sessions:
            compare.append(exists(self._keys.session(session)))
            otherwise.append(get(self._keys.session(session)))
        for bucket in buckets:
            compare.append(is_at(self._keys.bucket(bucket.end), bucket.mod_revision))
            otherwise.append(get(self._keys.bucket(bucket.end)))
        if any(_needs_room(one) for one in part):
            # etcd's quota counts what a transaction may write, but not within nested ones. This is
            # counted and hardly ever written. A finish is let through: it frees more than it takes.
            otherwise.append(put(self._keys.quota, b""))
        operations = [operation for one in part for operation in one.operations]
        for one in part:
            if one.write is not None and one.write.session and lease_of(one.command) is not None:
                owner = one.write.record.owner
                self.held.sent(one.command.id, owner, one.write.session, one.ends)
        request = transaction(compare, operations, otherwise)
        reply = await self._members.call("Txn", request, batch.end)
        responses = iter(reply.responses)
        if not reply.succeeded:
            self._refresh(is_fresh, sessions, buckets, responses)
            return
        for one in part:
            if one.decision is None:
                batch.known[one.position] = self._read(one, responses)
            elif one.write is None:
                next(responses)  # a past generation was stored
                batch.replies[one.position] = one.decision.reply
            else:
                self._written(one, next(responses).response_txn, reply.header, batch)

    def _refresh(
        self, is_fresh: bool, sessions: list[int], buckets: list[Bucket], responses: Iterator[Any]
    ) -> None:
        """Nothing was written, because what it rested on has changed: take that up."""
        if is_fresh:
            self.floor.read(next(responses).response_range)
        for session in sessions:
            if not next(responses).response_range.kvs:
                self.sessions.lose(session)
        for bucket in buckets:
            found = next(responses).response_range.kvs
            if not found or found[0].mod_revision != bucket.mod_revision:
                self.buckets.forget(bucket)

    def _read(self, planned: Planned, responses: Iterator[Any]) -> Known:
        value = found_value(planned.command.id, next(responses).response_range)
        if not planned.session:
            return Known(value, None)
        is_alive = bool(next(responses).response_range.kvs)
        return Known(value, is_alive if value and value.session == planned.session else None)

    def _written(self, planned: Planned, response: Any, header: Any, batch: CommandBatch) -> None:
        """The reply to a write, or the record that was found instead."""
        command, write = planned.command, planned.write
        assert write is not None
        assert planned.decision is not None
        if not response.succeeded:
            found = found_value(command.id, response.responses[0].response_range)
            batch.known[planned.position] = Known(found, None)
            return
        batch.replies[planned.position] = planned.decision.reply
        value = StoredValue(write.record, write.session, write.lease, header.revision)
        if write.record.state is not State.PENDING or not write.session:
            self.held.drop(command.id)
        elif lease_of(command) is not None:
            self.held.put(value, planned.ends)
        else:
            self.held.rewritten(value)
        self.held.answered(command.id, write.record.owner)


@contextlib.contextmanager
def _ambiguous_if(applied: bool, *, writes: bool) -> Iterator[None]:
    """Say in a StoreUnavailable whether commands may have taken effect (S5): those of an earlier
    request, or those that this one writes."""
    try:
        yield
    except StoreUnavailable as error:
        error.ambiguous = applied or (writes and error.ambiguous)
        raise


def _needs_room(planned: Planned) -> bool:
    """True if something new is to be written: a claim of a fresh key or of one that another owner
    had, or what comes from another store and is not the end of a claim that is here. The mark of a
    move is always taken: keys must be able to leave servers that are full."""
    command, decision, write = planned.command, planned.decision, planned.write
    if not isinstance(command, PUTTING) or decision is None or command.id == MARK_ID:
        return False
    if write is None or isinstance(command, CLAIMS):
        return True
    return write.before is None or write.before.record.owner != write.record.owner
