"""The probes of clients that leave, during the response and during the handler."""

from __future__ import annotations

from typing import Any

import pytest
from tests.verify.keyed_server import (
    IN_FLIGHT,
    SOON,
    KeyedServer,
    Ledger,
    Received,
    Record,
    Reply,
    let_others_run,
    template,
)
from tests.verify.probe_checks import assert_fault, verdict_on

from oncekey.verify.probe import Probe
from oncekey.verify.probes import lost_responses, outcome_evidence
from oncekey.verify.probes.lost_responses import Disconnect, LostResponse
from oncekey.verify.target import Variant
from oncekey.verify.verdict import Fault, Status

LOST, LEFT = LostResponse(), Disconnect()

# Its handler has its effect, and ends when its client has left.
SLOW: dict[str, Any] = {
    "variants": {Variant.SLOW: template(until="left")},
    "slow_seconds": 0.1,
}


class Keyless(KeyedServer):
    async def respond(self, received: Received) -> Reply:
        return await self.operate(received)


class StoresAfterwards(KeyedServer):
    """Forgets an outcome whose response was not taken."""

    async def after_reply(self, received: Received, *, was_reset: bool) -> None:
        if was_reset:
            self.records.pop(received.key, None)


class BlockedAfterwards(KeyedServer):
    """Leaves a key pending whose response was not taken."""

    patience = SOON

    async def after_reply(self, received: Received, *, was_reset: bool) -> None:
        if was_reset:
            self.records[received.key] = Record()


class ForgetsTheGone(KeyedServer):
    """Throws the outcome away if nobody is there to take it."""

    async def run_claimed(self, received: Received) -> Reply:
        reply = await super().run_claimed(received)
        if received.has_left.is_set():
            del self.records[received.key]
        return reply


class StuckOnTheGone(KeyedServer):
    """Does not finish a key whose client has left."""

    patience = SOON

    async def run_claimed(self, received: Received) -> Reply:
        reply = await super().run_claimed(received)
        if received.has_left.is_set():
            self.records[received.key] = Record()
        return reply


class StopsWithTheClient(KeyedServer):
    """Stops a handler whose client has left, before its effect, and frees its key."""

    frees_key = True

    async def run_claimed(self, received: Received) -> Reply:
        self.records[received.key] = Record()
        await let_others_run()
        await self.until_left(received)
        if not received.has_left.is_set():
            return await super().run_claimed(received)
        if self.frees_key:
            del self.records[received.key]
        return IN_FLIGHT


class StopsAndKeeps(StopsWithTheClient):
    """Stops it before its effect too, and never frees its key."""

    patience = SOON

    frees_key = False


class StoresTheBrokenConnection(KeyedServer):
    """Fails to read the first slow request, whose client leaves, and stores that as its outcome."""

    slow_key = ""

    async def run_claimed(self, received: Received) -> Reply:
        if received.body.get("until") != "left" or self.slow_key:
            return await super().run_claimed(received)
        self.slow_key = received.key
        record = self.records[received.key] = Record()
        await received.has_left.wait()
        record.reply = Reply(400, b"the body could not be read")
        return record.reply

    async def until_left(self, received: Received) -> None:
        """Later clients of this test stay."""


def of_responses(server: KeyedServer) -> Ledger:
    return Ledger(server, sees_lost_responses=False)


def test_lost_responses_hold_on_a_server_that_stores_first() -> None:
    verdict = verdict_on(KeyedServer, LOST)
    assert verdict.status is Status.HOLDS, verdict.summary
    assert verdict.n == 12
    assert verdict.window.startswith("dropped before the headers, after the headers, in the middle")
    assert verdict.unseen == ()


def test_an_outcome_that_is_stored_after_the_response_is_named() -> None:
    verdict = verdict_on(StoresAfterwards, LOST)
    assert_fault(verdict, Fault.RERUN_AFTER_LOST_RESPONSE)
    assert verdict.summary.startswith("a response was dropped before the headers")


def test_a_key_that_stays_blocked_after_a_lost_response_is_named() -> None:
    verdict = verdict_on(BlockedAfterwards, LOST)
    assert_fault(verdict, Fault.LOST_ON_DISCONNECT)
    assert "every retry gets 409" in verdict.summary


def test_disconnects_hold_on_a_server_that_carries_on() -> None:
    verdict = verdict_on(KeyedServer, LEFT, **SLOW)
    assert verdict.status is Status.HOLDS, verdict.summary
    assert "2 of them in the middle of the slow handler" in verdict.window
    assert verdict.unseen == ()


def test_disconnects_hold_without_a_slow_request_for_what_was_seen() -> None:
    verdict = verdict_on(KeyedServer, LEFT)
    assert verdict.status is Status.HOLDS, verdict.summary
    assert verdict.unseen == ("a client that leaves long before the handler ends",)


def test_a_handler_that_is_stopped_before_its_effect_and_runs_on_the_retry_is_fine() -> None:
    verdict = verdict_on(StopsWithTheClient, LEFT, **SLOW)
    assert verdict.status is Status.HOLDS, verdict.summary
    assert "2 of them in the middle of the slow handler" in verdict.window


@pytest.mark.parametrize("server_type", [ForgetsTheGone, StuckOnTheGone])
def test_an_outcome_that_is_lost_with_its_client_is_named(server_type: type[KeyedServer]) -> None:
    assert_fault(verdict_on(server_type, LEFT, **SLOW), Fault.LOST_ON_DISCONNECT)


def test_a_key_that_stays_blocked_without_an_effect_is_not_held_against_the_api() -> None:
    verdict = verdict_on(StopsAndKeeps, LEFT, **SLOW)
    assert verdict.status is Status.NOT_OBSERVABLE
    assert "--patience" in verdict.advice


def test_a_stored_failure_of_the_broken_connection_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outcome_evidence, "FAILURE_SECONDS", 0.1)
    verdict = verdict_on(StoresTheBrokenConnection, LEFT, **SLOW)
    assert_fault(verdict, Fault.LOST_ON_DISCONNECT)
    assert "every retry gets 400; under a new key the same request gets 201" in verdict.summary


def test_operations_that_never_begin_without_their_client_show_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lost_responses, "LEAVE_AFTER", (0.0, 0.0))
    verdict = verdict_on(StopsWithTheClient, LEFT)
    assert verdict.status is Status.NOT_OBSERVABLE
    assert "--variant slow=BODY" in verdict.advice


@pytest.mark.parametrize("probe", [LOST, LEFT])
def test_ids_in_responses_do_not_tell_what_lost_responses_did(probe: Probe) -> None:
    verdict = verdict_on(KeyedServer, probe, effects=of_responses)
    assert verdict.status is Status.NOT_OBSERVABLE
    assert "--count-url" in verdict.advice


@pytest.mark.parametrize("probe", [LOST, LEFT])
def test_a_server_without_keys_is_not_told_that_responses_were_lost(probe: Probe) -> None:
    assert_fault(verdict_on(Keyless, probe), Fault.KEY_IGNORED)


class LosesWhatIsCutOff(KeyedServer):
    """Forgets a large response whose client has left in the middle."""

    async def after_reply(self, received: Received, *, was_reset: bool) -> None:
        if was_reset and received.body.get("reply") == "large":
            del self.records[received.key]


class ForgetsLargeResponses(KeyedServer):
    async def run_claimed(self, received: Received) -> Reply:
        reply = await super().run_claimed(received)
        if received.body.get("reply") == "large":
            del self.records[received.key]
        return reply


LARGE = {Variant.LARGE: template(reply="large")}


def test_a_large_response_that_is_lost_in_its_middle_is_named() -> None:
    verdict = verdict_on(LosesWhatIsCutOff, LostResponse(), variants=LARGE)
    assert_fault(verdict, Fault.RERUN_AFTER_LOST_RESPONSE)
    assert "dropped in the middle of the body" in verdict.summary


def test_a_large_response_that_is_never_kept_is_not_called_lost() -> None:
    verdict = verdict_on(ForgetsLargeResponses, LostResponse(), variants=LARGE)
    assert verdict.status is Status.HOLDS, verdict.summary
