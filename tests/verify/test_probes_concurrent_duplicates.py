"""The probe of concurrent duplicates: what it names, what it passes, what it cannot see."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.verify.keyed_server import IN_FLIGHT, SOON, KeyedServer, Ledger, Received, Record, Reply
from tests.verify.probe_checks import LIMITS, assert_fault, verdict_on

from oncekey.verify.probe import Limits, Together
from oncekey.verify.probes.concurrent_duplicates import ConcurrentDuplicates
from oncekey.verify.recorded_exchange import Exchange
from oncekey.verify.target import Operation
from oncekey.verify.verdict import Fault, Status

PROBE = ConcurrentDuplicates()


class Racing(KeyedServer):
    """Looks a key up before the operation, and stores it afterwards."""

    async def respond(self, received: Received) -> Reply:
        known = self.records.get(received.key)
        if known is not None and known.reply is not None:
            return known.reply
        reply = await self.operate(received)
        await asyncio.sleep(0)
        self.records[received.key] = Record(reply)
        return reply


class Keyless(KeyedServer):
    async def respond(self, received: Received) -> Reply:
        return await self.operate(received)


class Restarting(KeyedServer):
    """Forgets everything before its second request, as a restart does."""

    async def respond(self, received: Received) -> Reply:
        if sum(arrivals.number for arrivals in self.arrivals.values()) == 2:
            self.records.clear()
        return await super().respond(received)


class RefusesRetries(KeyedServer):
    patience = SOON

    async def respond(self, received: Received) -> Reply:
        return IN_FLIGHT if received.key in self.records else await super().respond(received)


class Waiting(KeyedServer):
    """Lets duplicates wait for the outcome of the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.running: dict[str, asyncio.Task[Reply]] = {}

    async def respond(self, received: Received) -> Reply:
        if received.key not in self.running:
            self.running[received.key] = asyncio.create_task(self.operate(received))
        return await self.running[received.key]


class StormOf409(KeyedServer):
    """Refuses everybody, once two requests of one key have met."""

    patience = SOON

    async def respond(self, received: Received) -> Reply:
        record = self.records.get(received.key)
        if record is not None and record.reply is None:
            record.reply = IN_FLIGHT
        reply = await super().respond(received)
        return self.records[received.key].reply or reply

    async def run_claimed(self, received: Received) -> Reply:
        record = self.records[received.key] = Record()
        reply = await self.operate(received)
        await asyncio.sleep(0)
        record.reply = record.reply or reply
        return record.reply


class Clobbering(KeyedServer):
    """A duplicate that is turned away marks the key as failed."""

    async def respond(self, received: Received) -> Reply:
        reply = await super().respond(received)
        if reply is IN_FLIGHT:
            self.records[received.key] = Record(Reply(500, b"it failed"))
        return reply


class Forgetting(KeyedServer):
    """A duplicate that is turned away has the key removed as soon as the first one is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.to_forget: set[str] = set()

    async def respond(self, received: Received) -> Reply:
        reply = await super().respond(received)
        if reply is IN_FLIGHT:
            self.to_forget.add(received.key)
        elif received.key in self.to_forget:
            self.records.pop(received.key, None)
        return reply


class FailsAfterItsEffect(KeyedServer):
    """A first request that meets a duplicate fails after its effect, and frees its key."""

    async def run_claimed(self, received: Received) -> Reply:
        is_first = self.arrivals[received.key].number == 1
        reply = await super().run_claimed(received)
        if is_first and self.arrivals[received.key].number > 1:
            del self.records[received.key]
            return Reply(500)
        return reply


class Overloaded(KeyedServer):
    """Has no time for more than one request at once."""

    def __init__(self) -> None:
        super().__init__()
        self.running = 0

    async def respond(self, received: Received) -> Reply:
        if self.running:
            return Reply(503, b"", (("Retry-After", "0"),))
        self.running += 1
        try:
            return await super().respond(received)
        finally:
            self.running -= 1


class BreaksDown(KeyedServer):
    """Serves a request and its retry, and nobody afterwards."""

    patience = SOON

    async def respond(self, received: Received) -> Reply:
        return await super().respond(received) if len(self.arrivals) == 1 else Reply(503)


class Lagging(Ledger):
    """Sees an effect only when it is asked a second time."""

    def __init__(self, server: KeyedServer) -> None:
        super().__init__(server)
        self.seen = 0

    async def count(self, operation: Operation, exchanges: Sequence[Exchange]) -> int:
        known, self.seen = self.seen, await super().count(operation, exchanges)
        return min(known, self.seen)


class OfOthersToo(Ledger):
    """Counts everybody's effects, and others are at work."""

    async def count(self, operation: Operation, exchanges: Sequence[Exchange]) -> int:
        self.server.effects["of others"] += 1
        return await super().count(operation, exchanges)


class OfLines(Ledger):
    """Counts two lines for each effect."""

    async def count(self, operation: Operation, exchanges: Sequence[Exchange]) -> int:
        return 2 * await super().count(operation, exchanges)


class OfNothing(Ledger):
    async def count(self, operation: Operation, exchanges: Sequence[Exchange]) -> int:
        return 0


def test_it_holds_on_a_server_that_claims_first() -> None:
    verdict = verdict_on(KeyedServer, PROBE, Limits())
    assert verdict.status is Status.HOLDS, verdict.summary
    assert verdict.n == 3 * (2 + 20 + 100)
    assert "366 of 366 were sent before any answer" in verdict.window
    assert "2, 20 and 100 duplicates" in verdict.summary


def test_it_holds_on_a_server_whose_duplicates_wait() -> None:
    assert verdict_on(Waiting, PROBE).status is Status.HOLDS


def test_it_holds_where_the_counter_lags_or_counts_everything() -> None:
    assert verdict_on(KeyedServer, PROBE, effects=Lagging).status is Status.HOLDS
    total = verdict_on(KeyedServer, PROBE, effects=lambda server: Ledger(server, is_total=True))
    assert total.status is Status.HOLDS


def test_a_check_before_the_act_is_a_race() -> None:
    verdict = verdict_on(Racing, PROBE)
    assert_fault(verdict, Fault.RACE)
    assert verdict.summary.startswith("2 duplicates together had 2 effects (2 x 201)")


def test_a_race_is_named_by_a_counter_of_all_effects_too() -> None:
    verdict = verdict_on(Racing, PROBE, effects=lambda server: Ledger(server, is_total=True))
    assert_fault(verdict, Fault.RACE)


def test_a_server_without_keys_is_told_so_and_nothing_else() -> None:
    verdict = verdict_on(Keyless, PROBE)
    assert_fault(verdict, Fault.KEY_IGNORED)
    assert [e.note for e in verdict.violations[0].exchanges] == ["first request", "retry"]


def test_a_server_that_forgot_its_keys_once_is_not_accused() -> None:
    verdict = verdict_on(Restarting, PROBE)
    assert verdict.status is Status.HOLDS, verdict.summary


def test_a_server_that_refuses_every_retry_is_told_so() -> None:
    verdict = verdict_on(RefusesRetries, PROBE)
    assert_fault(verdict, Fault.NEVER_ANSWERED)
    assert "its retry never does: 409" in verdict.summary


def test_a_storm_of_409_is_not_a_pass() -> None:
    assert_fault(verdict_on(StormOf409, PROBE), Fault.NEVER_ANSWERED)


def test_a_refused_duplicate_that_marks_the_key_as_failed_is_named() -> None:
    verdict = verdict_on(Clobbering, PROBE)
    assert_fault(verdict, Fault.FAILURE_CLOBBERS_SUCCESS)
    assert "later retries get 500" in verdict.summary


def test_a_retry_that_runs_again_after_a_success_is_named() -> None:
    verdict = verdict_on(Forgetting, PROBE)
    assert_fault(verdict, Fault.FAILURE_CLOBBERS_SUCCESS)
    assert "a retry ran again" in verdict.summary


def test_a_failure_after_the_effect_that_frees_the_key_is_no_race() -> None:
    verdict = verdict_on(FailsAfterItsEffect, PROBE)
    assert_fault(verdict, Fault.RERUN_AFTER_FAILURE)


def test_a_storm_of_503_is_neither_a_pass_nor_a_fault() -> None:
    verdict = verdict_on(Overloaded, PROBE)
    assert verdict.status is Status.NOT_OBSERVABLE
    assert "no two duplicates were served" in verdict.summary


def test_effects_that_nobody_counts_cannot_be_observed() -> None:
    verdict = verdict_on(Racing, PROBE, effects=None)
    assert verdict.status is Status.NOT_OBSERVABLE
    assert "Say how effects are counted" in verdict.advice


def test_effects_of_others_accuse_nobody() -> None:
    def others(server: KeyedServer) -> Ledger:
        return OfOthersToo(server, is_total=True)

    verdict = verdict_on(KeyedServer, PROBE, effects=others)
    assert verdict.status is Status.NOT_OBSERVABLE
    assert "{{unique}}" in verdict.advice


def test_a_request_that_does_not_succeed_shows_nothing() -> None:
    class Strict(KeyedServer):
        async def respond(self, received: Received) -> Reply:
            return Reply(401)

    verdict = verdict_on(Strict, PROBE)
    assert verdict.status is Status.NOT_OBSERVABLE
    assert verdict.summary == "the main request did not succeed: 401"


def test_no_more_are_sent_together_than_the_limit_allows() -> None:
    verdict = verdict_on(KeyedServer, PROBE, LIMITS)
    assert verdict.n == 3 * (2 + LIMITS.concurrency + LIMITS.concurrency)


def test_a_server_that_breaks_down_under_the_first_round_is_not_accused() -> None:
    verdict = verdict_on(BreaksDown, PROBE)
    assert verdict.status is Status.NOT_OBSERVABLE
    assert verdict.summary == "no two duplicates were served: 3 x 503"


def test_duplicates_that_did_not_meet_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Together, "met", 1)
    verdict = verdict_on(KeyedServer, PROBE)
    assert verdict.status is Status.NOT_OBSERVABLE
    assert "before the next one was complete" in verdict.summary


@pytest.mark.parametrize(("counter", "number"), [(OfLines, 2), (OfNothing, 0)])
def test_a_counter_that_does_not_count_operations_accuses_nobody(
    counter: type[Ledger], number: int
) -> None:
    verdict = verdict_on(KeyedServer, PROBE, effects=counter)
    assert verdict.status is Status.NOT_OBSERVABLE
    assert f"the counter says {number} effects, not 1" in verdict.summary
