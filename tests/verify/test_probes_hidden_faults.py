"""Faults behind right answers, which probes name, and habits of correct APIs, which they do not."""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from tests.verify import guarded_api, keyed_server, probe_checks
from tests.verify.guarded_api import (
    Asked,
    Effects,
    GuardedAPI,
    Refused,
    Reply,
    assert_faults,
    assert_holds,
    assert_not_observable,
    template,
    verdict_on,
)
from tests.verify.keyed_server import IN_FLIGHT, KeyedServer, Ledger, Received
from tests.verify.probe_checks import assert_fault

from oncekey.verify.effect_counters import ResponseIdCounter
from oncekey.verify.probe import Limits, Probe, ProbeRun
from oncekey.verify.probes import concurrent_duplicates
from oncekey.verify.probes.concurrent_duplicates import ConcurrentDuplicates, ran_one_by_one
from oncekey.verify.probes.key_scope import OtherCaller
from oncekey.verify.probes.key_syntax import KeySyntax, MissingKey
from oncekey.verify.probes.lost_responses import Disconnect, LostResponse
from oncekey.verify.probes.other_body import OtherBodyAfter, OtherBodyDuring
from oncekey.verify.probes.replay_fidelity import ReplayFidelity
from oncekey.verify.probes.slow_handlers import SlowHandler
from oncekey.verify.profile import IETF, ONCEKEY
from oncekey.verify.recorded_exchange import Exchange
from oncekey.verify.target import Operation, Target, Variant
from oncekey.verify.verdict import Fault, Status, Verdict
from oncekey.verify.verification import verify

SLOW = {Variant.SLOW: keyed_server.template(arrivals=2)}


# --- refused, and run ---------------------------------------------------------------------------


class RunsMismatches(GuardedAPI):
    """Compares bodies after the handler has run."""

    async def guard(self, account: str, key: bytes, asked: Asked) -> Reply:
        record = self.records.get((account, key))
        if record is not None and record.fingerprint != self.fingerprint(account, asked):
            self.effects[asked.fields["order"]] += 1
        return await super().guard(account, key, asked)


class RunsBadKeys(GuardedAPI):
    """Checks keys after the handler has run."""

    async def respond(self, asked: Asked) -> Reply:
        try:
            return await super().respond(asked)
        except Refused:
            self.effects[asked.fields["order"]] += 1
            raise


class AllEffects(Effects):
    """Counts the effects of all orders together."""

    async def count(self, operation: Operation, exchanges: Sequence[Exchange]) -> int:
        return self.server.effects.total()


@pytest.mark.parametrize("probe", [OtherBodyAfter(), OtherBodyDuring()])
@pytest.mark.parametrize("body", ["new values", "the same values"])
def test_another_body_that_is_refused_but_run_is_named(probe: Probe, body: str) -> None:
    variants = dict(guarded_api.VARIANTS)
    if body == "the same values":
        variants[Variant.OTHER_BODY] = template(cents=9)
    verdict = verdict_on(RunsMismatches, probe, variants=variants)
    assert_faults(verdict, Fault.REFUSED_BUT_RUN)


@pytest.mark.parametrize("probe", [KeySyntax(), MissingKey()])
def test_a_bad_key_that_is_refused_but_run_is_named(probe: Probe) -> None:
    assert_faults(verdict_on(RunsBadKeys, probe), Fault.REFUSED_BUT_RUN)


def total_verdict(server_type: type[GuardedAPI], probe: Probe) -> Verdict:
    """The verdict where the counter counts all effects."""

    async def check() -> Verdict:
        async with server_type() as server:
            target = Target(
                server.origin,
                guarded_api.VARIANTS,
                caller=guarded_api.ALICE,
                effects=AllEffects(server, is_total=True),
            )
            return (await verify(target, IETF, [probe], limits=guarded_api.LIMITS)).verdicts[0]

    return asyncio.run(check())


def test_a_total_does_not_charge_a_bad_key_with_the_effects_of_others() -> None:
    assert_holds(total_verdict(RunsMismatches, KeySyntax()))


# --- keys ---------------------------------------------------------------------------------------


class CutsAt64(GuardedAPI):
    """Refuses what is longer than 255, and compares 64."""

    def place(self, account: str, key: bytes, asked: Asked) -> object:
        return account, key[:64]


class IgnoresCase(GuardedAPI):
    def place(self, account: str, key: bytes, asked: Asked) -> object:
        return account, key.lower()


class TakesUUIDs(GuardedAPI):
    """Its keys are UUIDs, whose case means nothing."""

    def valid_key(self, line: bytes) -> bytes:
        try:
            return uuid.UUID(super().valid_key(line).decode("ascii")).bytes
        except ValueError:
            raise Refused(400, "send a UUID") from None


def test_keys_that_are_cut_below_the_limit_are_named() -> None:
    assert_faults(verdict_on(CutsAt64, KeySyntax()), Fault.KEY_TRUNCATED)


def test_keys_that_lose_their_case_are_named() -> None:
    assert_faults(verdict_on(IgnoresCase, KeySyntax()), Fault.KEY_CASE_IGNORED)


def test_an_api_that_takes_only_uuids_may_ignore_their_case() -> None:
    assert_holds(verdict_on(TakesUUIDs, KeySyntax()))


# --- replays ------------------------------------------------------------------------------------


class NumbersItsRequests(GuardedAPI):
    """Every response has the id of its own request, and does not say whether it is a replay."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)

    def replay(self, reply: Reply) -> Reply:
        body = {**json.loads(reply.body), "request_id": next(self.numbers)}
        kept = tuple(line for line in reply.headers if line[0] != "Set-Cookie")
        return Reply(reply.status, json.dumps(body).encode(), kept)


class SaysReplayedInItsBody(GuardedAPI):
    def replay(self, reply: Reply) -> Reply:
        body = {**json.loads(reply.body), "replayed": True}
        return super().replay(replace(reply, body=json.dumps(body).encode()))


class UnscopedAndNumbered(NumbersItsRequests):
    def place(self, account: str, key: bytes, asked: Asked) -> object:
        return key


class OneReplayOfTen(GuardedAPI):
    """One replay of ten is another response."""

    def __init__(self) -> None:
        super().__init__()
        self.replays: Counter[bytes] = Counter()

    def replay(self, reply: Reply) -> Reply:
        self.replays[reply.body] += 1
        if self.replays[reply.body] % 10 == 0:
            reply = replace(reply, body=b'{"id": "payment-0"}')
        return super().replay(reply)


class RunsTheFifthRetry(GuardedAPI):
    """Forgets a key with its fifth retry."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[object] = Counter()

    async def guard(self, account: str, key: bytes, asked: Asked) -> Reply:
        self.asked[key] += 1
        if self.asked[key] == 6:
            del self.records[account, key]
        return await super().guard(account, key, asked)


@pytest.mark.parametrize("server", [NumbersItsRequests, SaysReplayedInItsBody])
def test_a_member_about_the_message_is_no_other_body(server: type[GuardedAPI]) -> None:
    verdict = verdict_on(server, ReplayFidelity())
    assert_holds(verdict)
    assert any("and in nothing else" in part for part in verdict.unseen)


def test_a_profile_that_promises_bytes_takes_no_other_member() -> None:
    verdict = verdict_on(SaysReplayedInItsBody, ReplayFidelity(), ONCEKEY)
    assert_faults(verdict, Fault.BODY_CHANGED)


@pytest.mark.parametrize("is_counted", [True, False])
def test_another_callers_response_with_a_new_request_id_is_still_another_callers(
    is_counted: bool,
) -> None:
    fields: dict[str, Any] = {} if is_counted else {"effects": None}
    assert_faults(verdict_on(UnscopedAndNumbered, OtherCaller(), **fields), Fault.UNSCOPED)


def test_one_wrong_replay_of_ten_is_named() -> None:
    assert_faults(verdict_on(OneReplayOfTen, ReplayFidelity()), Fault.BODY_CHANGED)


def test_a_run_after_five_good_replies_is_named() -> None:
    assert_faults(verdict_on(RunsTheFifthRetry, ReplayFidelity()), Fault.KEY_IGNORED)


class AlwaysOk(GuardedAPI):
    """Runs every request, and answers all of them alike."""

    async def guard(self, account: str, key: bytes, asked: Asked) -> Reply:
        return Reply(200, b'{"ok": true}')


def test_a_replay_that_looks_like_a_second_run_shows_nothing() -> None:
    verdict = verdict_on(AlwaysOk, ReplayFidelity(), effects=None)
    assert_not_observable(verdict, "a replay looks like a second run")


# --- duplicates together ------------------------------------------------------------------------


class RefusesWith(KeyedServer):
    """Answers a duplicate of a running operation with a status of its own."""

    status = 500

    async def respond(self, received: Received) -> keyed_server.Reply:
        reply = await super().respond(received)
        return keyed_server.Reply(self.status, b"in flight") if reply is IN_FLIGHT else reply


class Says422(RefusesWith):
    status = 422


class Says423(RefusesWith):
    status = 423


class Says425(RefusesWith):
    status = 425


class Says429(RefusesWith):
    status = 429


class LateRuns(KeyedServer):
    """A job runs what has a duplicate a second time, some time after all were answered."""

    def __init__(self) -> None:
        super().__init__()
        self.late: set[str] = set()

    async def respond(self, received: Received) -> keyed_server.Reply:
        if received.key in self.records:
            self.late.add(received.order)
        return await super().respond(received)


class CountsLateRuns(Ledger):
    """Sees the second effect when it is asked for the third time about an operation."""

    def __init__(self, server: KeyedServer) -> None:
        super().__init__(server)
        self.asked: Counter[str] = Counter()

    async def count(self, operation: Operation, exchanges: Sequence[Exchange]) -> int:
        assert isinstance(self.server, LateRuns)
        order = operation.values["unique"]
        self.asked[order] += 1
        is_late = self.asked[order] > 2 and order in self.server.late
        return await super().count(operation, exchanges) + is_late


@pytest.mark.parametrize(
    ("server", "fault"), [(RefusesWith, Fault.SERVER_FAILED), (Says422, Fault.WRONG_STATUS)]
)
def test_a_duplicate_that_is_told_of_a_failure_is_named(
    server: type[KeyedServer], fault: Fault
) -> None:
    assert_fault(probe_checks.verdict_on(server, ConcurrentDuplicates()), fault)


@pytest.mark.parametrize("server", [Says423, Says425, Says429])
def test_a_duplicate_may_be_told_in_other_words_that_it_is_too_early(
    server: type[KeyedServer],
) -> None:
    verdict = probe_checks.verdict_on(server, ConcurrentDuplicates())
    assert verdict.status is Status.HOLDS, verdict.summary


@pytest.mark.parametrize(
    ("probe", "fault"),
    [
        (ConcurrentDuplicates(), Fault.RACE),
        (LostResponse(), Fault.RERUN_AFTER_LOST_RESPONSE),
        (Disconnect(), Fault.LOST_ON_DISCONNECT),
        (SlowHandler(), Fault.STALE_RESET),
    ],
)
def test_an_effect_that_comes_late_is_named(probe: Probe, fault: Fault) -> None:
    limits = Limits(concurrency=2, timeout=60.0)
    verdict = probe_checks.verdict_on(
        LateRuns, probe, limits, effects=CountsLateRuns, variants=SLOW, slow_seconds=0.2
    )
    assert_fault(verdict, fault)


def test_ids_do_not_tell_what_refused_duplicates_did() -> None:
    verdict = probe_checks.verdict_on(
        KeyedServer, ConcurrentDuplicates(), effects=ResponseIdCounter(("$.id",))
    )
    assert verdict.status is Status.HOLDS
    assert "effects of requests that were refused or failed" in verdict.unseen[0]


@pytest.mark.parametrize(
    ("seconds", "is_so"),
    [
        ([0.05, 0.10, 0.15, 0.20], True),
        ([0.05, 0.06, 0.05, 0.07], False),
        ([0.001, 0.002, 0.003, 0.004], False),
    ],
)
def test_requests_that_wait_for_each_other_are_told_by_their_times(
    seconds: list[float], is_so: bool
) -> None:
    assert ran_one_by_one(seconds) is is_so


def test_a_server_that_runs_one_by_one_shows_no_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrent_duplicates, "ran_one_by_one", lambda seconds: True)
    verdict = probe_checks.verdict_on(KeyedServer, ConcurrentDuplicates())
    assert verdict.status is Status.HOLDS
    assert verdict.unseen == (concurrent_duplicates.UNSEEN_RACE,)


# --- cancellation -------------------------------------------------------------------------------


def test_a_verification_that_is_cancelled_is_cancelled() -> None:
    class Endless:
        guarantee: ClassVar = ConcurrentDuplicates.guarantee
        sends: ClassVar = "nothing"

        async def run(self, run: ProbeRun) -> Verdict:
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")

    async def check() -> None:
        async with KeyedServer() as server:
            running = asyncio.create_task(verify(keyed_server.target(server), IETF, [Endless()]))
            await asyncio.sleep(0)
            running.cancel()
            await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(check())
