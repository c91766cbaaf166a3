"""The claims that this process holds, so that its finish needs no read and its renewal no request.

A claim is kept by its session in etcd, and by its deadline here: a claim that its owner does not
renew in time lapses, and then the store takes it out of its session. This module sends nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from oncekey.core.commands import Renew
from oncekey.core.record import Record, State
from oncekey.stores.etcd.stored_value import StoredValue

# How far the lease in a stored record may fall behind that of its claim, as a part of how long the
# record is kept: renewals write nothing, so a dead owner's key would otherwise expire too early.
BEHIND_DIVISOR = 4


class HeldClaim(NamedTuple):
    """A claim of ours.

    value    the record as it is stored, but with the lease as it is now
    stored   the end of the lease in the stored record
    ends     when the lease ends, by the clock that counts the time that passes
    """

    value: StoredValue
    stored: int
    ends: int


class UnsureClaim(NamedTuple):
    """A claim of ours whose reply did not come: perhaps it is held, perhaps it will be."""

    id: bytes
    owner: bytes
    session: int
    ends: int


class HeldClaims:
    """The claims of one store object, by id."""

    def __init__(self) -> None:
        self._held: dict[bytes, HeldClaim] = {}
        # Also by owner: the next caller of a key must not make us forget a claim of the last one.
        self._unsure: dict[tuple[bytes, bytes], UnsureClaim] = {}

    def __len__(self) -> int:
        return len(self._held) + len(self._unsure)

    def get(self, id: bytes, owner: bytes, fence: int | None) -> StoredValue | None:
        """What is stored for a claim, if it is ours; None if that is not known."""
        held = self._held.get(id)
        if held is None or held.value.record.owner != owner:
            return None
        return held.value if fence is None or fence == held.value.record.fence else None

    def ends(self, record: Record) -> int | None:
        """When the claim of a pending record ends, if it is ours."""
        held = self._held.get(record.id)
        if held is not None and held.value.record.owner == record.owner:
            return held.ends if held.value.record.fence == record.fence else None
        unsure = self._unsure.get((record.id, record.owner))
        return unsure.ends if unsure is not None else None

    def put(self, value: StoredValue, ends: int) -> None:
        """This claim is ours."""
        self._held[value.record.id] = HeldClaim(value, value.record.lease_until, ends)
        self.answered(value.record.id, value.record.owner)

    def rewritten(self, value: StoredValue) -> None:
        """A claim of ours was written again, with the lease it had and perhaps a higher fence: it
        may have been renewed since the write was sent."""
        held = self._held.get(value.record.id)
        if held is None or held.value.record.owner != value.record.owner:
            return
        until = held.value.record.lease_until
        self._held[value.record.id] = HeldClaim(
            value._replace(record=value.record._replace(lease_until=until), lease=held.value.lease),
            value.record.lease_until,
            held.ends,
        )

    def confirm(self, id: bytes, value: StoredValue | None) -> None:
        """This is stored: forget a claim of ours that somebody else has decided since."""
        held = self._held.get(id)
        if held is None or value is None or value.mod_revision <= held.value.mod_revision:
            return
        record = value.record
        if record.state is not State.PENDING or record.fence != held.value.record.fence:
            del self._held[id]

    def renew(self, command: Renew, now: int, elapsed: int) -> bool:
        """Renew a claim here alone. False if its record must be read or written."""
        held = self._held.get(command.id)
        if held is None or self.get(command.id, command.owner, command.fence) is None:
            return False
        record, until = held.value.record, now + command.lease
        kept = min(record.keep, record.keep_unknown) if record.is_undecided else record.keep
        if elapsed >= held.ends or until - held.stored > kept // BEHIND_DIVISOR:
            return False
        value = held.value._replace(record=record._replace(lease_until=until), lease=command.lease)
        self._held[command.id] = HeldClaim(value, held.stored, elapsed + command.lease)
        return True

    def sent(self, id: bytes, owner: bytes, session: int, ends: int) -> None:
        """A claim is about to be sent."""
        self._unsure[id, owner] = UnsureClaim(id, owner, session, ends)

    def answered(self, id: bytes, owner: bytes) -> None:
        """The reply to a claim came: it is not unsure any more."""
        self._unsure.pop((id, owner), None)

    def drop(self, id: bytes) -> None:
        """The key is not ours any more."""
        self._held.pop(id, None)

    def take_out(self, held: HeldClaim, found: StoredValue | None) -> None:
        """A claim has lapsed and was to be taken out of its session; `found` is what was there
        instead, None if it was done. Forget the claim, unless it was renewed or claimed again
        meanwhile, or is in its session still: a write of its own, whose reply was lost, came
        between."""
        record = held.value.record
        if self._held.get(record.id) is not held:
            return
        if found is not None and is_claim_of(found, record.owner):
            self._held[record.id] = HeldClaim(found, found.record.lease_until, held.ends)
        else:
            del self._held[record.id]

    def lapsed(self, elapsed: int) -> list[HeldClaim]:
        """The claims that were not renewed in time."""
        return [held for held in self._held.values() if elapsed >= held.ends]

    def lapsed_unsure(self, elapsed: int) -> list[UnsureClaim]:
        """The claims without a reply whose lease would be over."""
        return [one for one in self._unsure.values() if elapsed >= one.ends]

    def of_session(self, session: int) -> bool:
        """True if a session has claims."""
        return any(one.session == session for one in self._unsure.values()) or any(
            held.value.session == session for held in self._held.values()
        )

    def clear(self) -> None:
        self._held.clear()
        self._unsure.clear()


def is_claim_of(value: StoredValue, owner: bytes) -> bool:
    """True if a record is a claim of this owner that is in a session."""
    record = value.record
    return record.state is State.PENDING and record.owner == owner and value.session != 0
