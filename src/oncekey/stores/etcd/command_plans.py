"""What a command does in a round: it is decided, or its record is read.

A command is decided by `state_machine.decide` on what is known of its record. What is known in the
first round:

1. Of a claim: that the key is fresh, the usual case.
2. Of the other commands of an owner: the record as this process wrote it.
3. Of everything else: nothing, so it is read.

This module decides nothing about keys itself, and sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from oncekey.core.codec import pack_tombstone
from oncekey.core.commands import (
    CLAIMS,
    Claim,
    ClaimAlso,
    Command,
    Finish,
    Release,
    Renew,
    Reply,
    SaveStep,
)
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import Record, State
from oncekey.core.state_machine import DONE, Decision, decide
from oncekey.core.store import RecordTooLarge
from oncekey.stores.etcd.garbage import Bucket, Buckets, FenceFloor
from oncekey.stores.etcd.held_claims import HeldClaims, Known, Reading, effective
from oncekey.stores.etcd.keyspace import (
    Keys,
    StoredValue,
    is_removed_by_bucket,
    pack_value,
)
from oncekey.stores.etcd.options import Options
from oncekey.stores.etcd.sessions import Sessions
from oncekey.stores.etcd.transactions import (
    Write,
    archive_operations,
    get,
    nested,
    write_operation,
)
from oncekey.stores.record_format import fitting

OPERATION_BYTES: Final = 2_048  # of a nested transaction, besides the record: keys and protocol

_ABSENT: Final = Known(None, None)


class Planned(NamedTuple):
    """What one command does in this round: read (`write` is None) or write.

    position     its place in the batch
    operations   what is sent for it
    session      the session that is read with the record, 0 for none
    ends         when a claim that is written ends, by the clock that counts the time that passes
    """

    position: int
    command: Command
    operations: tuple[Any, ...]
    session: int = 0
    decision: Decision | None = None
    write: Write | None = None
    ends: int = 0
    bucket: Bucket | None = None

    @property
    def archive(self) -> Record | None:
        """The past generation that is sent with it, or alone."""
        if self.write is not None:
            return self.write.archive
        return self.decision.archive if self.decision is not None else None


class NoBucket(NamedTuple):
    """A command cannot be planned before there is a bucket for this time."""

    audit_until: int


class CommandPlans:
    """Plans commands, with what this process knows."""

    def __init__(
        self,
        keys: Keys,
        options: Options,
        sessions: Sessions,
        buckets: Buckets,
        floor: FenceFloor,
        held: HeldClaims,
    ) -> None:
        self._keys = keys
        self._operations_max = options.operations_max
        self._bytes_max = options.value_max
        self._sessions = sessions
        self._buckets = buckets
        self._floor = floor
        self._held = held

    def plan(
        self, i: int, command: Command, known: Known | None, reading: Reading
    ) -> Planned | NoBucket | Reply | StoreUnavailable | None:
        """The reply to a command, or what it does in this round; None: it waits for a session."""
        elapsed = reading.elapsed
        is_guess = known is None
        if known is None:
            if isinstance(command, Renew) and self._renewed(command, reading):
                return DONE
            known = self._guess(command)
            if known is None:
                return Planned(i, command, (get(self._keys.record(command.id)),))
        judged = effective(known, self._held, reading)
        if judged is None:
            assert known.value is not None
            session = known.value.session
            where = (get(self._keys.record(command.id)), get(self._keys.session(session)))
            return Planned(i, command, where, session)
        if isinstance(command, Finish):
            command = fitting(command, judged.record, self._bytes_max)
        decision = decide(judged.record, command, judged.now, self._floor.value)
        if decision.write is None:
            if is_guess:
                return Planned(i, command, (get(self._keys.record(command.id)),))
            self.settle(command, known.value)
            if decision.archive is None:
                return decision.reply
            size = len(pack_value(decision.archive))
            if size > self._bytes_max:
                return _too_large(size, self._bytes_max)
            operations = (nested((), archive_operations(self._keys, decision.archive)),)
            return Planned(i, command, operations, 0, decision)
        before, session, lease = known.value, 0, 0
        if decision.write.state is State.PENDING:
            wanted = lease_of(command)
            if wanted is not None:
                covering = self._sessions.covering(wanted)
                if covering is None:
                    return None
                session, lease = covering.number, wanted
            elif before is not None and before.record.owner == decision.write.owner:
                session, lease = before.session, before.lease
        packed = pack_value(decision.write, session, lease)
        if len(packed) > self._bytes_max:
            return _too_large(len(packed), self._bytes_max)
        bucket, attached = None, 0
        if is_removed_by_bucket(decision.write):
            bucket = self._buckets.find(decision.write.audit_until, reading.now)
            if bucket is None:
                return NoBucket(decision.write.audit_until)
            attached = bucket.lease
        archive = decision.archive
        if archive is not None:
            archive = self._fitting_archive(archive, packed)
        write = Write(before, decision.write, packed, session, lease, attached, archive)
        operations = (write_operation(self._keys, write),)
        return Planned(i, command, operations, 0, decision, write, elapsed + lease, bucket)

    def _fitting_archive(self, archive: Record, packed: bytes) -> Record:
        """A past generation that fits into one request with the record that replaces it."""
        if len(packed) + len(pack_value(archive)) > self._bytes_max:
            archive = archive._replace(steps=())
        if len(packed) + len(pack_value(archive)) > self._bytes_max:
            reason = "it did not fit into one request with the record that followed it"
            archive = archive._replace(body=pack_tombstone(reason, too_large=True))
        return archive

    def _renewed(self, command: Renew, reading: Reading) -> bool:
        """Renew a claim of ours without a request, if its session lasts long enough."""
        value = self._held.get(command.id, command.owner, command.fence)
        if value is None or not self._sessions.is_covered(value.session, command.lease):
            return False
        return self._held.renew(command, *reading)

    def _guess(self, command: Command) -> Known | None:
        """What is known of a record before it was read."""
        if isinstance(command, Claim):
            return _ABSENT
        if not isinstance(command, (Finish, Renew, Release, SaveStep)):
            return None
        value = self._held.get(command.id, command.owner, command.fence)
        return None if value is None else Known(value, True)

    def parts(self, planned: list[Planned]) -> Iterator[list[Planned]]:
        """The commands in parts that the servers take as one request."""
        part: list[Planned] = []
        operations = size = 0
        for one in planned:
            count = len(one.operations)
            length = OPERATION_BYTES + (len(one.write.packed) if one.write is not None else 0)
            if one.archive is not None:
                length += len(pack_value(one.archive))
            if part and (
                operations + count > self._operations_max or size + length > self._bytes_max
            ):
                yield part
                part, operations, size = [], 0, 0
            part.append(one)
            operations, size = operations + count, size + length
        if part:
            yield part

    def settle(self, command: Command, value: StoredValue | None) -> None:
        """A command changed nothing: what was read shows whether a claim of ours is still held."""
        if isinstance(command, CLAIMS):
            self._held.answered(command.id, command.owner)
        self._held.confirm(command.id, value)


def lease_of(command: Command) -> int | None:
    """The lease that a command asks for; None for one that leaves the lease as it is."""
    return command.lease if isinstance(command, (Claim, ClaimAlso, Renew)) else None


def _too_large(size: int, most: int) -> RecordTooLarge:
    """The reply to a command that can never be stored; it is this command's alone (S2)."""
    return RecordTooLarge(
        f"the record would have {size} bytes, and etcd takes {most}: steps and outcome of an "
        "operation are one value; keep large content elsewhere and store where it is",
        size=size,
        most=most,
    )
