"""The probe that compares a replay with the first response."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.verify.guarded_api import (
    SOON,
    VARIANTS,
    Asked,
    GuardedAPI,
    Reply,
    assert_faults,
    assert_holds,
    assert_not_observable,
    template,
    verdict_on,
)

from oncekey.verify.probes.replay_fidelity import ReplayFidelity
from oncekey.verify.profile import IETF, ONCEKEY, STRIPE, Profile
from oncekey.verify.target import Variant
from oncekey.verify.verdict import Fault


def without(reply: Reply, *names: str) -> Reply:
    return replace(reply, headers=tuple(line for line in reply.headers if line[0] not in names))


class StatusLost(GuardedAPI):
    def replay(self, reply: Reply) -> Reply:
        return replace(super().replay(reply), status=200)


class BodyWrittenAgain(GuardedAPI):
    def replay(self, reply: Reply) -> Reply:
        return replace(super().replay(reply), body=reply.body.replace(b", ", b","))


class LocationLost(GuardedAPI):
    def replay(self, reply: Reply) -> Reply:
        return without(super().replay(reply), "Location")


class TypeChanged(GuardedAPI):
    def replay(self, reply: Reply) -> Reply:
        kept = without(super().replay(reply), "Content-Type")
        return replace(kept, headers=(*kept.headers, ("Content-Type", "text/plain")))


class TypeSpelledOtherwise(GuardedAPI):
    def replay(self, reply: Reply) -> Reply:
        kept = without(super().replay(reply), "Content-Type")
        return replace(kept, headers=(*kept.headers, ("Content-Type", "Application/JSON")))


class CookiesReplayed(GuardedAPI):
    def replay(self, reply: Reply) -> Reply:
        return replace(reply, headers=(*reply.headers, ("X-Idempotency-Replayed", "true")))


class SameCookieEverywhere(CookiesReplayed):
    """Its cookie is no secret of anybody: every response sets it."""

    def success(self, asked: Asked, number: int) -> Reply:
        reply = without(super().success(asked, number), "Set-Cookie")
        return replace(reply, headers=(*reply.headers, ("Set-Cookie", "lang=en; Path=/")))


class NewCookieEachTime(GuardedAPI):
    """A layer outside of the guard opens a session for each request."""

    sessions = 1000

    def replay(self, reply: Reply) -> Reply:
        self.sessions += 1
        kept = super().replay(reply)
        return replace(kept, headers=(*kept.headers, ("Set-Cookie", f"session={self.sessions}")))


class Unmarked(GuardedAPI):
    def replay(self, reply: Reply) -> Reply:
        return without(super().replay(reply), "X-Idempotency-Replayed")


class MarkedAlways(GuardedAPI):
    def success(self, asked: Asked, number: int) -> Reply:
        reply = super().success(asked, number)
        return replace(reply, headers=(*reply.headers, ("X-Idempotency-Replayed", "true")))

    def replay(self, reply: Reply) -> Reply:
        return without(reply, "Set-Cookie")


class KeyIgnored(GuardedAPI):
    async def guard(self, account: str, key: bytes, asked: Asked) -> Reply:
        return await self.operate(asked)


class RunsTheSecondRetry(GuardedAPI):
    """Forgets an outcome once it was replayed."""

    async def guard(self, account: str, key: bytes, asked: Asked) -> Reply:
        place = self.place(account, key, asked)
        record = self.records.get(place)
        if record is not None and record.reply is not None:
            del self.records[place]
            return self.replay(record.reply)
        return await super().guard(account, key, asked)


class OnlySaysUsed(GuardedAPI):
    def replay(self, reply: Reply) -> Reply:
        return Reply(400, b"this key was used")


class SaysInFlightForEver(GuardedAPI):
    patience = SOON

    def replay(self, reply: Reply) -> Reply:
        return Reply(409, b"in flight")


class FailsToReplay(GuardedAPI):
    def replay(self, reply: Reply) -> Reply:
        return Reply(500, b"TypeError")


class BodyIsCompressed(BodyWrittenAgain):
    """The bytes of a compressed body may differ although its content does not."""

    def success(self, asked: Asked, number: int) -> Reply:
        reply = super().success(asked, number)
        return replace(reply, headers=(*reply.headers, ("Content-Encoding", "x-test")))


@pytest.mark.parametrize(
    ("server", "profile"),
    [
        (GuardedAPI, IETF),
        (GuardedAPI, ONCEKEY),
        (Unmarked, IETF),
        (TypeSpelledOtherwise, IETF),
        (SameCookieEverywhere, IETF),
        (NewCookieEachTime, IETF),
        (BodyIsCompressed, IETF),
    ],
)
@pytest.mark.parametrize("is_counted", [True, False])
def test_replays_that_are_the_first_response_hold(
    server: type[GuardedAPI], profile: Profile, is_counted: bool
) -> None:
    counted: dict[str, Any] = {} if is_counted else {"effects": None}
    assert_holds(verdict_on(server, ReplayFidelity(), profile, **counted))


@pytest.mark.parametrize(
    ("server", "profile", "fault"),
    [
        (StatusLost, IETF, Fault.STATUS_LOST),
        (BodyWrittenAgain, IETF, Fault.BODY_CHANGED),
        (LocationLost, IETF, Fault.HEADERS_LOST),
        (TypeChanged, IETF, Fault.HEADERS_LOST),
        (CookiesReplayed, IETF, Fault.COOKIES_REPLAYED),
        (Unmarked, ONCEKEY, Fault.REPLAY_UNMARKED),
        (MarkedAlways, ONCEKEY, Fault.REPLAY_UNMARKED),
        (KeyIgnored, IETF, Fault.KEY_IGNORED),
        (RunsTheSecondRetry, IETF, Fault.KEY_IGNORED),
        (OnlySaysUsed, IETF, Fault.NEVER_ANSWERED),
        (FailsToReplay, IETF, Fault.SERVER_FAILED),
    ],
)
@pytest.mark.parametrize("is_counted", [True, False])
def test_replays_that_differ_are_named(
    server: type[GuardedAPI], profile: Profile, fault: Fault, is_counted: bool
) -> None:
    counted: dict[str, Any] = {} if is_counted else {"effects": None}
    assert_faults(verdict_on(server, ReplayFidelity(), profile, **counted), fault)


def test_lost_headers_are_no_fault_where_only_status_and_body_are_kept() -> None:
    class Stripe(LocationLost):
        def replay(self, reply: Reply) -> Reply:
            kept = without(super().replay(reply), "X-Idempotency-Replayed")
            return replace(kept, headers=(*kept.headers, ("Idempotent-Replayed", "true")))

    assert_holds(verdict_on(Stripe, ReplayFidelity(), STRIPE))


def test_what_the_first_response_does_not_have_is_unseen() -> None:
    class Plain(GuardedAPI):
        def success(self, asked: Asked, number: int) -> Reply:
            return without(super().success(asked, number), "Set-Cookie", "Location")

    verdict = verdict_on(Plain, ReplayFidelity())
    assert_holds(verdict)
    assert len(verdict.unseen) == 2


def test_a_retry_that_stays_in_flight_is_left_to_the_probe_that_waits() -> None:
    assert_not_observable(verdict_on(SaysInFlightForEver, ReplayFidelity()), "409")


def test_a_main_request_that_does_not_succeed_is_not_observable() -> None:
    variants = {**VARIANTS, Variant.MAIN: template(kind="rejected")}
    verdict = verdict_on(GuardedAPI, ReplayFidelity(), variants=variants)
    assert_not_observable(verdict, "402")
