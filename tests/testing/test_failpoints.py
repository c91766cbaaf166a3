"""Failpoints: each acts once, at the call that was named, and a crashed owner is never heard of."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from oncekey import AsyncOnce, InFlight, Once, OutcomeUnknown, StoreUnavailable
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.testing import Effects, Failpoints, FakeClock, SimulatedCrash

LEASE = 30_000_000


class Shop:
    """An engine on a store with failpoints, and a charge that counts."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.failpoints = Failpoints(self.clock)
        self.once = Once(
            self.failpoints.wrap(MemoryStore(clock=self.clock.wall)), clock=self.clock, cache=0
        )
        self.effects = Effects()

    def charge(self, key: str = "order-17") -> Any:
        return self.once.run("charge", key, lambda attempt: self.effects.record())


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_a_crash_after_the_claim_holds_the_key_until_its_lease_ends(shop: Shop) -> None:
    """I10: then it is unknown, for this operation is not retry-safe."""
    shop.failpoints.crash(after="claim")
    with pytest.raises(SimulatedCrash):
        shop.charge()
    with pytest.raises(InFlight):
        shop.charge()
    shop.clock.advance(LEASE)
    with pytest.raises(OutcomeUnknown):
        shop.charge()
    assert len(shop.effects) == 0


def test_a_crash_before_the_claim_leaves_nothing(shop: Shop) -> None:
    shop.failpoints.crash(before="claim")
    with pytest.raises(SimulatedCrash):
        shop.charge()
    assert not shop.charge().replayed


def test_a_crash_after_the_finish_leaves_the_result(shop: Shop) -> None:
    """I4: what the store has taken is replayed."""
    shop.failpoints.crash(after="finish")
    with pytest.raises(SimulatedCrash):
        shop.charge()
    assert shop.charge().replayed
    assert len(shop.effects) == 1


def test_a_crashed_owner_cannot_release_its_key(shop: Shop) -> None:
    """The engine tries to close the key of a run that was interrupted; a dead process could not."""
    shop.failpoints.crash(before="finish")
    with pytest.raises(SimulatedCrash):
        shop.charge()
    assert shop.failpoints.verbs()[:2] == ["claim", "finish"]
    with pytest.raises(InFlight):
        shop.charge()


def test_a_lost_reply_is_repeated_and_a_refused_claim_is_not(shop: Shop) -> None:
    """The clock that stands still does not stand in the way of the repetition."""
    shop.failpoints.lose_reply("finish")
    assert shop.charge().value is None
    assert shop.failpoints.verbs() == ["claim", "finish", "finish"]
    shop.failpoints.refuse("claim")
    with pytest.raises(StoreUnavailable):
        shop.charge("order-18")
    assert len(shop.effects) == 1


def test_a_held_call_waits_for_its_release(shop: Shop) -> None:
    shop.failpoints.hold(before="finish")
    first = threading.Thread(target=shop.charge)
    first.start()
    shop.failpoints.wait_held()
    assert shop.failpoints.is_held()
    with pytest.raises(InFlight):
        shop.charge()
    shop.failpoints.release()
    first.join()
    assert shop.charge().replayed


def test_a_failpoint_acts_once_at_its_nth_call(shop: Shop) -> None:
    shop.failpoints.crash(before="claim", nth=2)
    shop.charge("order-1")
    with pytest.raises(SimulatedCrash):
        shop.charge("order-2")
    shop.charge("order-3")
    shop.failpoints.crash(after="any", nth=3)
    shop.charge("order-4")
    with pytest.raises(SimulatedCrash):
        shop.charge("order-5")


def test_failpoints_can_be_cleared(shop: Shop) -> None:
    shop.failpoints.crash(before="claim")
    shop.failpoints.clear()
    shop.charge()
    assert shop.failpoints.verbs() == ["claim", "finish"]
    assert shop.failpoints.longest_lease() == LEASE


def test_async_engines_crash_alike() -> None:
    clock = FakeClock()
    failpoints = Failpoints(clock)
    once = AsyncOnce(failpoints.wrap(AsyncMemoryStore(clock=clock.wall)), clock=clock)
    effects = Effects()

    async def body(attempt: Any) -> None:
        effects.record()

    async def crash_and_retry() -> None:
        failpoints.crash(before="finish")
        with pytest.raises(SimulatedCrash):
            await once.run("charge", "order-17", body)
        clock.advance(LEASE)
        with pytest.raises(OutcomeUnknown):
            await once.run("charge", "order-17", body)

    asyncio.run(crash_and_retry())
    assert len(effects) == 1


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ({}, "either before= or after="),
        ({"before": "claim", "after": "claim"}, "either before= or after="),
        ({"before": "commit"}, "'commit' is no verb of a store; known are claim, finish"),
        ({"before": "claim", "nth": 0}, "counted from 1"),
    ],
)
def test_a_place_that_does_not_exist_is_refused(place: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Failpoints().crash(**place)


def test_a_timer_of_a_closed_event_loop_does_not_stop_the_clock() -> None:
    """A test client has an event loop for each request."""
    clock = FakeClock()
    called: list[str] = []

    async def start() -> None:
        clock.later(1_000, lambda: called.append("late"))

    asyncio.run(start())
    clock.advance(2_000)
    assert called == []
