"""The probes of responses without a body and with a large one."""

from __future__ import annotations

from typing import Any

import pytest
from tests.verify.keyed_server import (
    IN_FLIGHT,
    LARGE_BYTES,
    KeyedServer,
    Received,
    Record,
    Reply,
    template,
)
from tests.verify.probe_checks import assert_fault, verdict_on

from oncekey.verify.probe import Probe
from oncekey.verify.probes.unusual_responses import LargeResponse, NoContent
from oncekey.verify.target import Variant
from oncekey.verify.verdict import Fault, Status

EMPTY, LARGE = NoContent(), LargeResponse()
VARIANTS: dict[str, Any] = {
    "variants": {
        Variant.NO_CONTENT: template(reply="empty"),
        Variant.LARGE: template(reply="large"),
    }
}


class Storing(KeyedServer):
    """Stores of a reply what `stored` makes of it; None forgets the key."""

    def stored(self, reply: Reply) -> Reply | None:
        return reply

    async def run_claimed(self, received: Received) -> Reply:
        reply = await super().run_claimed(received)
        kept = self.stored(reply)
        if kept is None:
            del self.records[received.key]
        else:
            self.records[received.key] = Record(kept)
        return reply


class ForgetsUnusual(Storing):
    def stored(self, reply: Reply) -> Reply | None:
        return reply if 0 < len(reply.body) < LARGE_BYTES else None


class BlocksUnusual(Storing):
    def stored(self, reply: Reply) -> Reply | None:
        return reply if 0 < len(reply.body) < LARGE_BYTES else IN_FLIGHT


class LosesRecords(KeyedServer):
    """Is restarted without its records before the first retry of an unusual request."""

    async def respond(self, received: Received) -> Reply:
        if "reply" in received.body and self.arrivals[received.key].number == 2:
            self.records.clear()
        return await super().respond(received)


class FailsOnUnusual(Storing):
    def stored(self, reply: Reply) -> Reply | None:
        return reply if 0 < len(reply.body) < LARGE_BYTES else Reply(500)


@pytest.mark.parametrize("probe", [EMPTY, LARGE])
def test_they_hold_on_a_server_that_stores_every_response(probe: Probe) -> None:
    verdict = verdict_on(KeyedServer, probe, **VARIANTS)
    assert verdict.status is Status.HOLDS, verdict.summary
    assert verdict.n == 2


def test_a_request_that_runs_again_because_its_response_was_empty_is_named() -> None:
    assert_fault(verdict_on(ForgetsUnusual, EMPTY, **VARIANTS), Fault.RERUN_ON_NO_CONTENT)


def test_a_request_that_runs_again_because_its_response_was_large_is_named() -> None:
    verdict = verdict_on(ForgetsUnusual, LARGE, **VARIANTS)
    assert_fault(verdict, Fault.RERUN_ON_LARGE)


def test_an_empty_response_that_is_never_replayed_is_named() -> None:
    assert_fault(verdict_on(BlocksUnusual, EMPTY, **VARIANTS), Fault.NEVER_ANSWERED)


def test_a_large_response_may_be_refused_but_not_fail() -> None:
    refused = verdict_on(BlocksUnusual, LARGE, **VARIANTS)
    assert refused.status is Status.HOLDS, refused.summary
    assert "a retry is told so by 409" in refused.summary
    assert_fault(verdict_on(FailsOnUnusual, LARGE, **VARIANTS), Fault.SERVER_FAILED)


@pytest.mark.parametrize(("probe", "name"), [(EMPTY, "no-content"), (LARGE, "large")])
def test_without_such_a_request_they_ask_for_one(probe: Probe, name: str) -> None:
    verdict = verdict_on(KeyedServer, probe)
    assert verdict.status is Status.NOT_OBSERVABLE
    assert f"--variant {name}=BODY" in verdict.advice


@pytest.mark.parametrize("probe", [EMPTY, LARGE])
def test_a_response_that_is_not_what_it_should_be_shows_nothing(probe: Probe) -> None:
    usual: dict[str, Any] = {
        "variants": {Variant.NO_CONTENT: template(), Variant.LARGE: template()}
    }
    verdict = verdict_on(KeyedServer, probe, **usual)
    assert verdict.status is Status.NOT_OBSERVABLE
    assert "bytes" in verdict.summary


@pytest.mark.parametrize("probe", [EMPTY, LARGE])
def test_a_server_that_was_restarted_without_its_records_is_not_accused(probe: Probe) -> None:
    verdict = verdict_on(LosesRecords, probe, **VARIANTS)
    assert verdict.status is Status.NOT_OBSERVABLE
    assert "not restarted meanwhile" in verdict.advice
