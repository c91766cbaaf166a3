"""The memory store's list of unfinished records stays consistent with its records."""

from __future__ import annotations

from oncekey.core.commands import Claim
from oncekey.stores.memory import MemoryStore
from oncekey.testing.fake_clock import FakeClock

LEASE, KEEP = 30_000_000, 60_000_000


def test_i11_swept_records_leave_the_list_of_unfinished_ones() -> None:
    """This shows when the clock is set back to a time at which the record had not expired."""
    clock = FakeClock()
    store = MemoryStore(clock=clock.wall)
    claim = Claim(b"i" * 16, b"o" * 16, b"\x01f", LEASE, KEEP, 0, retry_safe=False)
    store.apply([claim._replace(keep_unknown=KEEP)])
    assert len(store.unfinished(0, 10).records) == 1
    clock.advance(LEASE + KEEP)
    assert store.sweep() == 1
    clock.advance(-KEEP)
    assert store.unfinished(0, 10).records == ()
