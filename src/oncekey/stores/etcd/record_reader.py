"""Reads many records at once, for lists and for the sweeper: with the leases that they really have.

Sessions are read after the records. So a record that ended between the two reads may seem to be
abandoned: whoever acts upon that claims it, and is told. This module changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from oncekey.core.record import Record, State
from oncekey.stores.etcd.held_claims import HeldClaims
from oncekey.stores.etcd.liveness import Known, effective
from oncekey.stores.etcd.members import Members
from oncekey.stores.etcd.store_clock import Reading
from oncekey.stores.etcd.stored_value import Keys, StoredValue
from oncekey.stores.etcd.transactions import found_value, get, transaction


class ReadRecord(NamedTuple):
    """A record that was read: as it is stored, and with the lease that it really has."""

    value: StoredValue
    record: Record


class RecordReader:
    """Reads records by their ids."""

    def __init__(self, members: Members, keys: Keys, held: HeldClaims, operations_max: int) -> None:
        self._members = members
        self._operations_max = operations_max
        self._keys = keys
        self._held = held

    async def read(
        self, ids: Sequence[bytes], reading: Reading, end: float
    ) -> dict[bytes, ReadRecord]:
        """The records that there are, by id."""
        responses = await self._get([self._keys.record(id) for id in ids], end)
        found = [
            value
            for id, response in zip(ids, responses, strict=True)
            if (value := found_value(id, response)) is not None
        ]
        sessions = sorted({one.session for one in found if self._is_foreign(one)})
        responses = await self._get([self._keys.session(one) for one in sessions], end)
        alive = {one for one, reply in zip(sessions, responses, strict=True) if reply.kvs}
        return {
            value.record.id: ReadRecord(value, self._record(value, value.session in alive, reading))
            for value in found
        }

    def _is_foreign(self, value: StoredValue) -> bool:
        is_claim = value.record.state is State.PENDING and value.session != 0
        return is_claim and self._held.ends(value.record) is None

    def _record(self, value: StoredValue, is_alive: bool, reading: Reading) -> Record:
        judged = effective(Known(value, is_alive), self._held, reading)
        assert judged is not None
        assert judged.record is not None
        # A list has one time for all its records.
        if judged.now > reading.now:
            return judged.record._replace(lease_until=reading.now)
        return judged.record

    async def _get(self, keys: Sequence[bytes], end: float) -> list[Any]:
        replies: list[Any] = []
        for start in range(0, len(keys), self._operations_max):
            part = keys[start : start + self._operations_max]
            request = transaction((), [get(key) for key in part])
            reply = await self._members.call("Txn", request, end)
            replies += [response.response_range for response in reply.responses]
        return replies
