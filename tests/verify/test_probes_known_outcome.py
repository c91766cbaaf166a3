"""What probes that send one request after the other stand on: counters, limits, two trials."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from unittest.mock import patch

import pytest
from tests.verify.guarded_api import (
    ALICE,
    BOB,
    VARIANTS,
    Asked,
    GuardedAPI,
    Reply,
    assert_faults,
    assert_holds,
    assert_not_observable,
    verdict_on,
)

from oncekey.verify.probe import Limits, Probe
from oncekey.verify.probes import (
    error_responses,
    key_scope,
    key_syntax,
    known_outcome,
    other_body,
    replay_fidelity,
)
from oncekey.verify.probes.other_body import OtherBodyAfter, OtherBodyDuring
from oncekey.verify.profile import IETF
from oncekey.verify.recorded_exchange import Exchange
from oncekey.verify.target import CountFailed, Operation, Target
from oncekey.verify.verdict import Fault, Status, Verdict
from oncekey.verify.verification import verify

PROBES: tuple[Probe, ...] = (
    *other_body.PROBES,
    *key_scope.PROBES,
    *key_syntax.PROBES,
    *replay_fidelity.PROBES,
    *error_responses.PROBES,
)


@dataclass(frozen=True)
class Total:
    """Counts all effects of a server, and may see others' too."""

    server: GuardedAPI
    others_per_count: int = 0
    is_total: bool = True
    sees_lost_responses: bool = True

    def describe(self) -> str:
        return "all effects"

    async def count(self, operation: Operation, exchanges: Sequence[Exchange]) -> int:
        self.server.effects["others"] += self.others_per_count
        return self.server.effects.total()


class Fails:
    """A counter that does not work."""

    is_total = False
    sees_lost_responses = True

    def describe(self) -> str:
        return "nothing"

    async def count(self, operation: Operation, exchanges: Sequence[Exchange]) -> int:
        raise CountFailed("no id in the response")


class KeyIgnored(GuardedAPI):
    async def guard(self, account: str, key: bytes, asked: Asked) -> Reply:
        return await self.operate(asked)


def verdict_by_total(
    server_type: type[GuardedAPI], probe: Probe, others_per_count: int = 0
) -> Verdict:
    async def check() -> Verdict:
        async with server_type() as server:
            target = Target(
                server.origin,
                VARIANTS,
                caller=ALICE,
                other_caller=BOB,
                effects=Total(server, others_per_count),
                slow_seconds=0.4,
            )
            with patch.object(known_outcome, "QUIET_SECONDS", 0):
                done = await verify(target, IETF, [probe], limits=Limits())
        return done.verdicts[0]

    return asyncio.run(check())


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.guarantee.slug)
def test_a_total_of_effects_raises_no_false_alarm(probe: Probe) -> None:
    assert_holds(verdict_by_total(GuardedAPI, probe))


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.guarantee.slug)
def test_a_total_that_others_change_raises_no_false_alarm(probe: Probe) -> None:
    verdict = verdict_by_total(GuardedAPI, probe, others_per_count=1)
    assert verdict.status is not Status.VIOLATED, verdict.summary


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.guarantee.slug)
def test_a_key_that_is_ignored_is_named_by_every_probe_as_that(probe: Probe) -> None:
    assert_faults(verdict_on(KeyIgnored, probe), Fault.KEY_IGNORED)


def test_a_counter_that_fails_leaves_what_responses_tell() -> None:
    assert_holds(verdict_on(GuardedAPI, OtherBodyAfter(), effects=Fails()))
    assert_faults(verdict_on(KeyIgnored, OtherBodyAfter(), effects=Fails()), Fault.KEY_IGNORED)


@pytest.mark.parametrize("requests", range(1, 6))
def test_a_spent_budget_ends_a_probe_anywhere(requests: int) -> None:
    async def check() -> Verdict:
        async with GuardedAPI() as server:
            target = Target(server.origin, VARIANTS, caller=ALICE, slow_seconds=0.4)
            limits = Limits(requests=requests, timeout=60.0)
            done = await verify(target, IETF, [OtherBodyDuring()], limits=limits)
        return done.verdicts[0]

    assert_not_observable(asyncio.run(check()), "--max-requests")
