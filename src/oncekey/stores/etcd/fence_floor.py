"""The floor: the highest fence of all records that were removed (I6).

A fresh claim takes a fence above it, and compares that it is still the floor that we know of.
Whoever removes a record raises the floor first.
"""

from __future__ import annotations

from typing import Any, Final

from oncekey.core.errors import StoreUnavailable
from oncekey.stores.etcd.members import Members
from oncekey.stores.etcd.stored_value import Keys, pack_number, unpack_number
from oncekey.stores.etcd.transactions import get, is_at, put, transaction

TRIES_MAX: Final = 20


class FenceFloor:
    """The floor as it was last read."""

    def __init__(self, members: Members, keys: Keys) -> None:
        self._members = members
        self._key = keys.floor
        self.value = 0
        self.mod_revision = 0  # 0: there is none yet

    def comparison(self) -> Any:
        """The comparison that the floor is still the one that we know of."""
        return is_at(self._key, self.mod_revision)

    def reading(self) -> Any:
        return get(self._key)

    def read(self, response: Any) -> None:
        """The reply to `reading` came."""
        found = response.kvs
        self.value = unpack_number(found[0].value) if found else 0
        self.mod_revision = found[0].mod_revision if found else 0

    async def raise_to(self, fence: int, end: float) -> None:
        """Make sure that the floor is at least this fence."""
        for _ in range(TRIES_MAX):
            change = [] if fence <= self.value else [put(self._key, pack_number(fence))]
            request = transaction([self.comparison()], change, [self.reading()])
            reply = await self._members.call("Txn", request, end)
            if not reply.succeeded:
                self.read(reply.responses[0].response_range)
                continue
            if change:
                self.value, self.mod_revision = fence, reply.header.revision
            return
        raise StoreUnavailable("the floor changes too fast", ambiguous=True)
