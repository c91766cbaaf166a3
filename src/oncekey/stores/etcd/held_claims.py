"""Which claims are held: by this process, by another one whose session lives, or by nobody.

A claim is kept by its session in etcd, and by its deadline in the process that holds it: a claim
that its owner does not renew in time lapses, and then the store takes it out of its session. So
etcd's leases say whether a pending record is held, and no host's clock does:

1. A claim of this process is held until its own deadline. Its finish needs no read, and its renewal
   no request.
2. A claim of another process is held as long as its session lives. When that is to end, nobody
   knows: its remaining lease is an estimate, for callers that want to know when to come again.
3. A claim whose session has ended is not held, though the lease in its record may not be over by
   this host's clock.
4. A claim that has lapsed has no session: it is not held either.
5. A claim that was adopted from another store has no session, and is held until its lease is over.

This module knows no requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from oncekey.core.commands import Renew
from oncekey.core.record import Record, State
from oncekey.stores.etcd.keyspace import LAPSED, StoredValue
from oncekey.stores.store_rules import wall_clock

# How far the lease in a stored record may fall behind that of its claim, as a part of how long the
# record is kept: renewals write nothing, so a dead owner's key would otherwise expire too early.
BEHIND_DIVISOR: Final = 4

_ELAPSED: Final = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


# --- the clocks -----------------------------------------------------------------------------------


def elapsed_us() -> int:
    """The time that passes, in microseconds; only differences mean anything."""
    if _ELAPSED is None:
        return time.monotonic_ns() // 1_000
    return time.clock_gettime_ns(_ELAPSED) // 1_000


class Reading(NamedTuple):
    """Both clocks at one moment, in microseconds."""

    now: int
    elapsed: int


class StoreClock:
    """Reads the two clocks of a store together.

    `now` is the host's wall clock: it dates records and says how long they are kept. `elapsed` only
    counts the time that passes: by it a claim's own deadline is measured, so that a wall clock that
    is set moves no lease. It goes on while the host sleeps, where the system has such a clock,
    because etcd's leases do. A test replaces both by one clock.
    """

    def __init__(self, replacement: Callable[[], int] | None = None) -> None:
        self._replacement = replacement

    def read(self) -> Reading:
        if self._replacement is not None:
            moment = self._replacement()
            return Reading(moment, moment)
        return Reading(wall_clock(), elapsed_us())


# --- the claims of this process -------------------------------------------------------------------


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


# --- the claims of all ----------------------------------------------------------------------------


class Known(NamedTuple):
    """What is known of a record: its value, and whether its session lives; None if that was not
    read."""

    value: StoredValue | None
    is_alive: bool | None


class Judged(NamedTuple):
    """A record as `decide` is to see it, and the time at which it is to decide."""

    record: Record | None
    now: int


def effective(known: Known, held: HeldClaims, reading: Reading) -> Judged | None:
    """The record with the lease that it really has; None if its session must be read first."""
    now, elapsed = reading
    if known.value is None:
        return Judged(None, now)
    record, session, lease, _ = known.value
    if record.state is not State.PENDING:
        return Judged(record, now)
    if not session:
        return Judged(record, max(now, record.lease_until) if lease == LAPSED else now)
    ends = held.ends(record)
    if ends is not None:
        return Judged(record._replace(lease_until=now + ends - elapsed), now)
    if known.is_alive is None:
        return None
    if not known.is_alive:
        return Judged(record, max(now, record.lease_until))
    left = record.lease_until - now
    return Judged(record._replace(lease_until=now + (left if 0 < left <= lease else lease)), now)
