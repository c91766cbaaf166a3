"""The memory store's figure of bytes is what it keeps: outcomes, steps and past generations."""

from __future__ import annotations

from oncekey.core.commands import Claim, Claimed, Done, Finish, SaveStep
from oncekey.core.record import State
from oncekey.stores.memory import MemoryStore
from oncekey.testing.fake_clock import FakeClock

LEASE, KEEP, AUDIT = 30_000_000, 60_000_000, 3_600_000_000
OUTCOME, RESULT = b"o" * 1_000, b"r" * 300


def run_once(store: MemoryStore, owner: bytes) -> None:
    """Claim a key, store a step of it, and finish it."""
    claim = Claim(b"i" * 16, owner, b"\x01f", LEASE, KEEP, AUDIT, retry_safe=False)
    (claimed,) = store.apply([claim])
    assert isinstance(claimed, Claimed)
    step = SaveStep(claim.id, owner, claimed.fence, "pay", True, RESULT)
    finish = Finish(claim.id, owner, claimed.fence, State.SUCCEEDED, OUTCOME)
    assert store.apply([step, finish]) == [Done(), Done()]


def test_the_measures_count_outcomes_steps_and_past_generations() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock.wall)
    assert store.measure().bytes == 0
    run_once(store, b"a" * 16)
    assert store.measure().bytes == len(OUTCOME) + len(RESULT)
    clock.advance(KEEP + 1)
    run_once(store, b"b" * 16)
    assert len(store.history(b"i" * 16)) == 1
    assert store.measure().bytes == 2 * (len(OUTCOME) + len(RESULT))
    clock.advance(KEEP + AUDIT + 1)
    assert store.sweep() == 2
    assert store.measure().bytes == 0
