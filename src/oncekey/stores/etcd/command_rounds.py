"""How commands are applied: in rounds, each one request for the whole batch.

In a round, each command that is left either reads its record, or is decided by
`state_machine.decide` on what is known of the record, and writes what follows if the record is
still that: compare-and-set on etcd's revision. If it is not, the reply has the record as it is, and
the next round decides again. What is known in the first round:

1. Of a claim: that the key is fresh, the usual case.
2. Of the other commands of an owner: the record as this process wrote it.
3. Of everything else: nothing, so it is read.

A pending record is judged by its session, whatever any host's clock says: as long as its session
lives, it is held. Only its own process goes by the deadline of the claim instead.

The module decides nothing about keys itself, and knows neither threads nor connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from oncekey.core.codec import pack_tombstone
from oncekey.core.commands import Claim, Command, Finish, Look, Renew, Reply, Resolve
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.origin import operation_of
from oncekey.core.record import Record, State
from oncekey.core.state_machine import DONE, Decision, decide
from oncekey.stores.etcd.buckets import Bucket, Buckets
from oncekey.stores.etcd.etcd_url import Options
from oncekey.stores.etcd.fence_floor import FenceFloor
from oncekey.stores.etcd.held_claims import HeldClaims
from oncekey.stores.etcd.liveness import Known, effective
from oncekey.stores.etcd.members import Members
from oncekey.stores.etcd.sessions import Sessions
from oncekey.stores.etcd.store_clock import Reading, StoreClock
from oncekey.stores.etcd.stored_value import (
    Keys,
    StoredValue,
    is_removed_by_bucket,
    pack_value,
)
from oncekey.stores.etcd.transactions import (
    NESTED_OPS_MAX,
    Write,
    exists,
    found_value,
    get,
    is_at,
    transaction,
    write_operation,
)
from oncekey.stores.repeated_ids import EarlierReplies, Positioned, split_by_id

ROUNDS_MAX: Final = 30
OPERATION_BYTES: Final = 2_048  # of a nested transaction, besides the record: keys and protocol
# What a record has besides steps and outcome: names, key, fingerprint, notes.
DESCRIPTION_MAX_BYTES: Final = 65_536
COMPARES_MAX: Final = 4  # of the outer transaction, besides one for each command

_ABSENT: Final = Known(None, None)


class _Planned(NamedTuple):
    """What one command does in this round: read (`write` is None) or write.

    reading   where to read: the record, and perhaps a session
    ends      when a claim that is written ends, by the clock that counts the time that passes
    """

    position: int
    command: Command
    operations: tuple[Any, ...]
    session: int = 0
    decision: Decision | None = None
    write: Write | None = None
    ends: int = 0
    bucket: Bucket | None = None


class _NoBucket(NamedTuple):
    """A command cannot be planned before there is a bucket for this time."""

    audit_until: int


class CommandRounds:
    """Applies batches of commands."""

    def __init__(self, members: Members, keys: Keys, options: Options, clock: StoreClock) -> None:
        self._members = members
        self._keys = keys
        self._clock = clock
        self._operations_max = options.txn_ops - NESTED_OPS_MAX - COMPARES_MAX
        self._bytes_max = options.value_max
        self._lease_min = options.lease_min
        self.sessions = Sessions(members, keys)
        self.buckets = Buckets(members, keys, options.us("bucket"))
        self.floor = FenceFloor(members, keys)
        self.held = HeldClaims()

    async def apply(self, commands: Sequence[Command], end: float) -> list[Reply]:
        """Apply commands: those of one id one after the other, all others together."""
        self._check_leases(commands)
        replies: list[Reply | None] = [None] * len(commands)
        earlier = EarlierReplies()
        groups = split_by_id(commands)
        for group in groups:
            left = {i: c for i, c in group.items() if not earlier.reply_to(i, c, replies)}
            if left:
                await self._apply_distinct(left, replies, earlier, end)
                if len(groups) > 1:
                    earlier.note(left, replies)
        return replies  # type: ignore[return-value]

    def _check_leases(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if type(command) is Claim and command.lease < self._lease_min:
                name = operation_of(command.label)
                raise ConfigurationError(
                    f"operation {name!r}: its lease is {command.lease / 1_000_000:g}s, and etcd "
                    f"ends no lease before {self._lease_min / 1_000_000:g}s; give it a longer one"
                )

    async def _apply_distinct(
        self,
        left: Positioned,
        replies: list[Reply | None],
        earlier: EarlierReplies,
        end: float,
    ) -> None:
        """Apply commands of distinct ids."""
        known: dict[int, Known] = {}
        applied = False
        for _ in range(ROUNDS_MAX):
            try:
                planned = await self._plan(left, known, replies, end)
                for part in self._parts(planned):
                    await self._send(part, known, replies, end)
                    applied = True
            except StoreUnavailable as error:
                if applied:
                    error.ambiguous = True  # an earlier request was applied (S5)
                raise
            for i, one in known.items():
                if one.value is not None:
                    earlier.owners[left[i].id] = one.value.record.owner
            left = {i: command for i, command in left.items() if replies[i] is None}
            known = {i: one for i, one in known.items() if i in left}
            if not left:
                return
        raise StoreUnavailable("the keys change too fast", ambiguous=True)

    # --- what a round does --------------------------------------------------------------------

    async def _plan(
        self,
        left: Positioned,
        known: dict[int, Known],
        replies: list[Reply | None],
        end: float,
    ) -> list[_Planned]:
        """Decide each command, or plan to read its record."""
        for command in left.values():
            if isinstance(command, (Claim, Renew)) and not self._is_covered(command):
                await self.sessions.cover(command.lease, end)
        reading = self._clock.read()
        planned = []
        for i, command in left.items():
            one = self._plan_one(i, command, known.get(i), reading)
            while isinstance(one, _NoBucket):
                await self.buckets.open(one.audit_until, reading.now, end)
                one = self._plan_one(i, command, known.get(i), reading)
            if isinstance(one, _Planned):
                planned.append(one)
            elif one is not None:
                replies[i] = one  # type: ignore[assignment]
        return planned

    def _is_covered(self, command: Claim | Renew) -> bool:
        return self.sessions.covering(command.lease) is not None

    def _plan_one(
        self, i: int, command: Command, known: Known | None, reading: Reading
    ) -> _Planned | _NoBucket | Reply | StoreUnavailable | None:
        """The reply to a command, or what it does in this round; None: it waits for a session."""
        elapsed = reading.elapsed
        is_guess = known is None
        if known is None:
            if isinstance(command, Renew) and self._renewed(command, reading):
                return DONE
            known = self._guess(command)
            if known is None:
                return _Planned(i, command, (get(self._keys.record(command.id)),))
        judged = effective(known, self.held, reading)
        if judged is None:
            assert known.value is not None
            session = known.value.session
            where = (get(self._keys.record(command.id)), get(self._keys.session(session)))
            return _Planned(i, command, where, session)
        command = self._fitting(command, judged.record)
        decision = decide(judged.record, command, judged.now, self.floor.value)
        if decision.write is None:
            if is_guess:
                return _Planned(i, command, (get(self._keys.record(command.id)),))
            self._settle(command, known.value)
            return decision.reply
        before, session, lease = known.value, 0, 0
        if decision.write.state is State.PENDING:
            if isinstance(command, (Claim, Renew)):
                covering = self.sessions.covering(command.lease)
                if covering is None:
                    return None
                session, lease = covering.number, command.lease
            elif before is not None:
                session, lease = before.session, before.lease
        packed = pack_value(decision.write, session, lease)
        if len(packed) > self._bytes_max:
            return _too_large(len(packed), self._bytes_max)
        bucket, attached = None, 0
        if is_removed_by_bucket(decision.write):
            bucket = self.buckets.find(decision.write.audit_until, reading.now)
            if bucket is None:
                return _NoBucket(decision.write.audit_until)
            attached = bucket.lease
        archive = decision.archive
        if archive is not None and len(packed) + len(pack_value(archive)) > self._bytes_max:
            archive = archive._replace(steps=())  # both must fit into one request
        write = Write(before, decision.write, packed, session, lease, attached, archive)
        operations = (write_operation(self._keys, write),)
        return _Planned(i, command, operations, 0, decision, write, elapsed + lease, bucket)

    def _fitting(self, command: Command, record: Record | None) -> Command:
        """The command; a finish whose outcome is too large, with a tombstone in its place: the
        operation did run. Engines know the limit of an outcome, but not what the steps of the
        operation take up of it. A repeated finish becomes the same tombstone (I9)."""
        if not isinstance(command, Finish) or record is None:
            return command
        body, most = command.body, self._bytes_max
        if not record.steps and len(body) + DESCRIPTION_MAX_BYTES <= most:
            return command
        if len(pack_value(record._replace(body=body))) <= most:
            return command
        reason = f"with its steps it has {len(body)} bytes or more, the store takes {most}"
        return command._replace(body=pack_tombstone(reason, too_large=True))

    def _renewed(self, command: Renew, reading: Reading) -> bool:
        """Renew a claim of ours without a request, if its session lasts long enough."""
        value = self.held.get(command.id, command.owner, command.fence)
        if value is None or not self.sessions.is_covered(value.session, command.lease):
            return False
        return self.held.renew(command, *reading)

    def _guess(self, command: Command) -> Known | None:
        """What is known of a record before it was read."""
        if isinstance(command, Claim):
            return _ABSENT
        if isinstance(command, (Look, Resolve)):
            return None
        value = self.held.get(command.id, command.owner, command.fence)
        return None if value is None else Known(value, True)

    def _parts(self, planned: list[_Planned]) -> Iterator[list[_Planned]]:
        """The commands in parts that the servers take as one request."""
        part: list[_Planned] = []
        operations = size = 0
        for one in planned:
            count = len(one.operations)
            length = OPERATION_BYTES + (len(one.write.packed) if one.write is not None else 0)
            if one.write is not None and one.write.archive is not None:
                length += len(pack_value(one.write.archive))
            if part and (
                operations + count > self._operations_max or size + length > self._bytes_max
            ):
                yield part
                part, operations, size = [], 0, 0
            part.append(one)
            operations, size = operations + count, size + length
        if part:
            yield part

    # --- sending, and what the reply says -----------------------------------------------------

    async def _send(
        self,
        part: list[_Planned],
        known: dict[int, Known],
        replies: list[Reply | None],
        end: float,
    ) -> None:
        """Send one request. What it rests on is compared once for all its commands."""
        writes = [one.write for one in part if one.write is not None]
        sessions = sorted({write.session for write in writes if write.session})
        sessions = [one for one in sessions if self.sessions.is_covered(one, 0)]
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
        operations = [operation for one in part for operation in one.operations]
        for one in part:
            if isinstance(one.command, Claim) and one.write is not None and one.write.session:
                self.held.sent(one.command.id, one.command.owner, one.ends)
        reply = await self._members.call("Txn", transaction(compare, operations, otherwise), end)
        responses = iter(reply.responses)
        if not reply.succeeded:
            self._refresh(is_fresh, sessions, buckets, responses)
            return
        for one in part:
            if one.write is None:
                known[one.position] = self._read(one, responses)
            else:
                self._written(one, next(responses).response_txn, reply.header, known, replies)

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

    def _read(self, planned: _Planned, responses: Iterator[Any]) -> Known:
        value = found_value(planned.command.id, next(responses).response_range)
        if not planned.session:
            return Known(value, None)
        is_alive = bool(next(responses).response_range.kvs)
        return Known(value, is_alive if value and value.session == planned.session else None)

    def _written(
        self,
        planned: _Planned,
        response: Any,
        header: Any,
        known: dict[int, Known],
        replies: list[Reply | None],
    ) -> None:
        """The reply to a write, or the record that was found instead."""
        command, write = planned.command, planned.write
        assert write is not None
        assert planned.decision is not None
        if not response.succeeded:
            found = found_value(command.id, response.responses[0].response_range)
            known[planned.position] = Known(found, None)
            return
        replies[planned.position] = planned.decision.reply
        value = StoredValue(write.record, write.session, write.lease, header.revision)
        if write.record.state is not State.PENDING or not write.session:
            self.held.drop(command.id)
        elif isinstance(command, (Claim, Renew)):
            self.held.put(value, planned.ends)
        else:
            self.held.rewritten(value)
        if isinstance(command, Claim):
            self.held.answered(command.id, command.owner)

    def _settle(self, command: Command, value: StoredValue | None) -> None:
        """A command changed nothing: what was read tells whether a claim of ours is still held."""
        if isinstance(command, Claim):
            self.held.answered(command.id, command.owner)
        self.held.confirm(command.id, value)


def _too_large(size: int, most: int) -> StoreUnavailable:
    """The reply to a command that can never be stored; it is this command's alone (S2)."""
    return StoreUnavailable(
        f"the record would have {size} bytes, and etcd takes {most}: steps and outcome of an "
        "operation are one value; keep large content elsewhere and store where it is",
        ambiguous=False,
        final=True,
    )
