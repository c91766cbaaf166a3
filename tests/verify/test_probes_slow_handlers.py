"""The probe of slow operations: the duplicates that come meanwhile, and what they may not do."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.verify.keyed_server import (
    IN_FLIGHT,
    SOON,
    KeyedServer,
    Received,
    Record,
    Reply,
    template,
)
from tests.verify.probe_checks import LIMITS, assert_fault, verdict_on

from oncekey.verify.probes.slow_handlers import SlowHandler
from oncekey.verify.target import Variant
from oncekey.verify.verdict import Fault, Status

PROBE = SlowHandler()
FAILED = Reply(500, b"it failed")


def slow(arrivals: int = 4, seconds: float = 0.2) -> dict[str, Any]:
    """A target with a handler that ends when so many requests with its key have come. An eighth
    of the seconds passes before each duplicate."""
    return {"variants": {Variant.SLOW: template(arrivals=arrivals)}, "slow_seconds": seconds}


SLOW_FAILING: dict[str, Any] = {
    "variants": {
        Variant.SLOW: template(arrivals=4),
        Variant.SLOW_FAILING: template(arrivals=4, ends="failing"),
    },
    "slow_seconds": 0.2,
}


class StaleReset(KeyedServer):
    """Gives a key to the third request, whatever its owner does."""

    async def respond(self, received: Received) -> Reply:
        if self.arrivals[received.key].number == 3 and "arrivals" in received.body:
            return await self.run_claimed(received)
        return await super().respond(received)


class SilentStaleReset(KeyedServer):
    """Duplicates wait; but one that comes when the first has been at work for a while runs."""

    def __init__(self) -> None:
        super().__init__()
        self.running: dict[str, asyncio.Task[Reply]] = {}
        self.old: set[str] = set()

    async def respond(self, received: Received) -> Reply:
        if received.key not in self.running or received.key in self.old:
            self.old.discard(received.key)
            self.running[received.key] = asyncio.create_task(self.operate(received))
        return await self.running[received.key]

    async def until_left(self, received: Received) -> None:
        if "arrivals" in received.body and self.arrivals[received.key].number == 1:
            self.old.add(received.key)


class Racing(KeyedServer):
    """Claims nothing before the operation."""

    async def respond(self, received: Received) -> Reply:
        known = self.records.get(received.key)
        if known is not None and known.reply is not None:
            return known.reply
        reply = await self.operate(received)
        self.records[received.key] = Record(reply)
        return reply


class Clobbering(KeyedServer):
    """A duplicate that is turned away marks the key as failed."""

    async def respond(self, received: Received) -> Reply:
        reply = await super().respond(received)
        if reply is IN_FLIGHT:
            self.records[received.key] = Record(FAILED)
        return reply


class TakesOver(KeyedServer):
    """Its third request takes over a slow one that is to fail, and succeeds at once.

    The first one's failure is not written then: it is not its key any more.
    """

    asks_for_owner = True

    async def respond(self, received: Received) -> Reply:
        if received.body.get("ends") != "failing":
            return await super().respond(received)
        number = self.arrivals[received.key].number
        if number == 1:
            own = self.records[received.key] = Record()
            await self.until_arrived(received.key, 4)
            if not self.asks_for_owner or self.records[received.key] is own:
                self.records[received.key] = Record(FAILED)
            return FAILED
        if number == 3:
            self.effects[received.order] += 1
            self.records[received.key] = Record(Reply(201, b"{}"))
        return self.records[received.key].reply or IN_FLIGHT


class ClobbersSuccess(TakesOver):
    asks_for_owner = False


class ForgetsSlow(KeyedServer):
    """Answers a slow request, and never stores that it has ended."""

    patience = SOON

    async def run_claimed(self, received: Received) -> Reply:
        reply = await super().run_claimed(received)
        if "arrivals" in received.body:
            self.records[received.key] = Record()
        return reply


class FailsSlowly(KeyedServer):
    async def operate(self, received: Received) -> Reply:
        reply = await super().operate(received)
        return FAILED if "arrivals" in received.body else reply


def test_it_holds_on_a_server_that_leaves_slow_requests_alone() -> None:
    verdict = verdict_on(KeyedServer, PROBE, **slow())
    assert verdict.status is Status.HOLDS, verdict.summary
    assert verdict.n == 4
    assert verdict.window.startswith("3 duplicates were sent")
    assert any("longer than" in part for part in verdict.unseen)


def test_a_key_that_is_taken_over_by_age_alone_is_named() -> None:
    verdict = verdict_on(StaleReset, PROBE, **slow())
    assert_fault(verdict, Fault.STALE_RESET)
    assert "had 2 effects" in verdict.summary


def test_a_takeover_is_told_from_a_race_where_nobody_is_refused() -> None:
    # So long that a busy machine does not make one race of a request and its later duplicate.
    seconds = 8.0
    assert_fault(verdict_on(SilentStaleReset, PROBE, **slow(2, seconds)), Fault.STALE_RESET)
    assert_fault(verdict_on(Racing, PROBE, **slow(2, seconds)), Fault.RACE)


def test_a_success_that_a_refused_duplicate_destroys_is_named() -> None:
    verdict = verdict_on(Clobbering, PROBE, **slow())
    assert_fault(verdict, Fault.FAILURE_CLOBBERS_SUCCESS)
    assert "later retries get 500" in verdict.summary


def test_a_late_failure_that_overwrites_a_success_is_named() -> None:
    verdict = verdict_on(ClobbersSuccess, PROBE, **SLOW_FAILING)
    assert_fault(verdict, Fault.FAILURE_CLOBBERS_SUCCESS)


def test_a_late_failure_that_is_refused_is_fine() -> None:
    verdict = verdict_on(TakesOver, PROBE, **SLOW_FAILING)
    assert verdict.status is Status.HOLDS, verdict.summary
    assert not any("fails after another" in part for part in verdict.unseen)


def test_a_slow_request_that_stays_in_flight_for_ever_is_named() -> None:
    assert_fault(verdict_on(ForgetsSlow, PROBE, **slow()), Fault.NEVER_ANSWERED)


def test_a_slow_request_that_always_fails_shows_nothing() -> None:
    verdict = verdict_on(FailsSlowly, PROBE, **slow())
    assert verdict.status is Status.NOT_OBSERVABLE
    assert verdict.summary == "there is no slow request that succeeds"


def test_without_a_slow_request_nothing_is_sent() -> None:
    verdict = verdict_on(KeyedServer, PROBE)
    assert verdict.status is Status.NOT_OBSERVABLE
    assert "--variant slow=BODY" in verdict.advice


def test_a_request_that_is_slower_than_the_timeout_is_not_sent() -> None:
    fields = {**slow(), "slow_seconds": LIMITS.timeout}
    verdict = verdict_on(KeyedServer, PROBE, **fields)
    assert verdict.status is Status.NOT_OBSERVABLE
    assert "--timeout" in verdict.advice
