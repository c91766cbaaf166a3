"""Whether a pending record is held, which etcd's leases say and no clock.

1. A claim of this process is held until its own deadline.
2. A claim of another process is held as long as its session lives. When that is to end, nobody
   knows: its remaining lease is an estimate, for callers that want to know when to come again.
3. A claim whose session has ended is not held, though the lease in its record may not be over by
   this host's clock.
4. A claim that has lapsed has no session: it is not held either.
5. A claim that was adopted from another store has no session, and is held until its lease is over.

This module knows no requests.
"""

from __future__ import annotations

from typing import NamedTuple

from oncekey.core.record import Record, State
from oncekey.stores.etcd.held_claims import HeldClaims
from oncekey.stores.etcd.store_clock import Reading
from oncekey.stores.etcd.stored_value import LAPSED, StoredValue


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
