"""The probes of another body: under a finished key, and under one that is still running."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.verify.guarded_api import (
    SOON,
    VARIANTS,
    Asked,
    GuardedAPI,
    Record,
    Reply,
    assert_faults,
    assert_holds,
    assert_not_observable,
    template,
    verdict_on,
)

from oncekey.verify.probes.other_body import OtherBodyAfter, OtherBodyDuring
from oncekey.verify.profile import STRIPE
from oncekey.verify.target import RequestTemplate, Variant
from oncekey.verify.verdict import Fault


class BodyNotCompared(GuardedAPI):
    def fingerprint(self, account: str, asked: Asked) -> object:
        return asked.path


class BodyIsPartOfKey(GuardedAPI):
    def place(self, account: str, key: bytes, asked: Asked) -> object:
        return account, key, asked.body


class MismatchFails(GuardedAPI):
    """A refused request ends in the code that marks its key as failed."""

    def mismatch(self, place: object) -> Reply:
        self.records[place].reply = Reply(500, b"failed")
        return super().mismatch(place)


class MismatchForgets(GuardedAPI):
    def mismatch(self, place: object) -> Reply:
        del self.records[place]
        return super().mismatch(place)


class MismatchIs409(GuardedAPI):
    patience = SOON

    def mismatch(self, place: object) -> Reply:
        return Reply(409, b"conflict")


class MismatchCrashes(GuardedAPI):
    def mismatch(self, place: object) -> Reply:
        return Reply(500, b"KeyError")


class MismatchIsBusy(GuardedAPI):
    patience = SOON

    def mismatch(self, place: object) -> Reply:
        return Reply(429, b"slow down")


class KeyIgnored(GuardedAPI):
    async def guard(self, account: str, key: bytes, asked: Asked) -> Reply:
        return await self.operate(asked)


class RestartedOnce(GuardedAPI):
    """Its memory is lost once, after a mismatch: no fault of its guard."""

    was_restarted = False

    def mismatch(self, place: object) -> Reply:
        if not self.was_restarted:
            self.was_restarted = True
            self.records.clear()
        return super().mismatch(place)


class OnlyFive(GuardedAPI):
    """Refuses whatever does not cost 5 cents, in the handler."""

    async def operate(self, asked: Asked) -> Reply:
        return await super().operate(asked) if asked.fields["cents"] == 5 else Reply(422, b"no")


def test_another_body_that_is_refused_and_changes_nothing_holds() -> None:
    assert_holds(verdict_on(GuardedAPI, OtherBodyAfter()))


@pytest.mark.parametrize(
    ("server", "fault"),
    [
        (BodyNotCompared, Fault.BODY_NOT_COMPARED),
        (BodyIsPartOfKey, Fault.OTHER_BODY_RUN),
        (MismatchFails, Fault.MISMATCH_DESTROYS_RECORD),
        (MismatchForgets, Fault.MISMATCH_DESTROYS_RECORD),
        (MismatchIs409, Fault.WRONG_STATUS),
        (MismatchCrashes, Fault.SERVER_FAILED),
        (KeyIgnored, Fault.KEY_IGNORED),
    ],
)
@pytest.mark.parametrize("is_counted", [True, False])
def test_another_body_after_names(server: type[GuardedAPI], fault: Fault, is_counted: bool) -> None:
    counted: dict[str, Any] = {} if is_counted else {"effects": None}
    assert_faults(verdict_on(server, OtherBodyAfter(), **counted), fault)


def test_422_is_not_the_status_of_stripe() -> None:
    assert_faults(verdict_on(GuardedAPI, OtherBodyAfter(), STRIPE), Fault.WRONG_STATUS)


def test_another_body_that_cannot_be_made_is_not_observable() -> None:
    fixed = {Variant.MAIN: RequestTemplate("POST", "/payments", (), '{"order": "one"}')}
    verdict = verdict_on(GuardedAPI, OtherBodyAfter(), variants=fixed, effects=None)
    assert_not_observable(verdict, "no other valid body")


def test_another_body_that_is_invalid_by_itself_is_not_observable() -> None:
    variants = {Variant.MAIN: template(), Variant.OTHER_BODY: template(cents=-1)}
    verdict = verdict_on(OnlyFive, OtherBodyAfter(), variants=variants)
    assert_not_observable(verdict, "refused under a key of its own too")


def test_a_server_that_is_busy_is_not_accused() -> None:
    assert_not_observable(verdict_on(MismatchIsBusy, OtherBodyAfter()), "429")


def test_a_server_that_was_restarted_once_is_not_accused() -> None:
    assert_not_observable(verdict_on(RestartedOnce, OtherBodyAfter()), "one of two trials")


def test_a_main_request_that_fails_is_not_observable() -> None:
    variants = {**VARIANTS, Variant.MAIN: template(kind="rejected")}
    verdict = verdict_on(GuardedAPI, OtherBodyAfter(), variants=variants)
    assert_not_observable(verdict, "did not succeed: 402")


class Waits(GuardedAPI):
    """Lets another request under a running key wait until it has ended, and then judges it."""

    def __init__(self) -> None:
        super().__init__()
        self.came, self.ended = asyncio.Event(), asyncio.Event()

    async def guard(self, account: str, key: bytes, asked: Asked) -> Reply:
        record = self.records.get(self.place(account, key, asked))
        if record is not None and record.reply is None:
            self.came.set()
            await self.ended.wait()
        return await super().guard(account, key, asked)

    async def meanwhile(self, asked: Asked) -> None:
        await self.came.wait()

    def store(self, place: object, record: Record, reply: Reply) -> None:
        super().store(place, record, reply)
        if self.came.is_set():
            self.ended.set()


class InFlightFirst(GuardedAPI):
    async def guard(self, account: str, key: bytes, asked: Asked) -> Reply:
        record = self.records.get(self.place(account, key, asked))
        if record is not None and record.reply is None:
            return await self.in_flight(record)
        return await super().guard(account, key, asked)


class Race(GuardedAPI):
    """Stores a record only when its operation has ended."""

    async def run(self, place: object, asked: Asked) -> Reply:
        record = Record(self.fingerprint(self.account(asked), asked))
        record.reply = await self.operate(asked)
        return self.records.setdefault(place, record).reply or record.reply


class RaceWithoutComparison(Race):
    """Compares no bodies either: another one gets what was stored."""

    def fingerprint(self, account: str, asked: Asked) -> object:
        return asked.path


class MismatchEndsTheRunning(GuardedAPI):
    """Another body makes the running operation fail."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = 0

    def mismatch(self, place: object) -> Reply:
        self.records[place].reply = Reply(500, b"failed")
        return super().mismatch(place)

    async def run(self, place: object, asked: Asked) -> Reply:
        await super().run(place, asked)
        reply = self.records[place].reply
        assert reply is not None
        return reply

    async def meanwhile(self, asked: Asked) -> None:
        self.slow += 1
        if self.slow % 2:  # every second one is sent alone, and nobody comes meanwhile
            await super().meanwhile(asked)


class Quick(GuardedAPI):
    """Nothing is slow here."""

    async def operate(self, asked: Asked) -> Reply:
        return self.success(asked, 1)


def test_another_body_that_is_refused_while_the_first_runs_holds() -> None:
    verdict = verdict_on(GuardedAPI, OtherBodyDuring())
    assert_holds(verdict)
    assert "before its end" in verdict.window


def test_another_body_that_waits_and_is_refused_holds() -> None:
    verdict = verdict_on(Waits, OtherBodyDuring())
    assert_holds(verdict)
    assert "until the first had ended" in verdict.window


@pytest.mark.parametrize(
    ("server", "fault"),
    [
        (InFlightFirst, Fault.IN_FLIGHT_BEFORE_MISMATCH),
        (BodyNotCompared, Fault.BODY_NOT_COMPARED),
        (BodyIsPartOfKey, Fault.OTHER_BODY_RUN),
        (Race, Fault.RACE),
        (RaceWithoutComparison, Fault.RACE),
        (MismatchFails, Fault.MISMATCH_DESTROYS_RECORD),
        (MismatchEndsTheRunning, Fault.MISMATCH_DESTROYS_RECORD),
        (KeyIgnored, Fault.KEY_IGNORED),
    ],
)
def test_another_body_during_names(server: type[GuardedAPI], fault: Fault) -> None:
    assert_faults(verdict_on(server, OtherBodyDuring()), fault)


def test_in_flight_first_is_no_fault_where_the_profile_does_not_say_otherwise() -> None:
    class Stripe(InFlightFirst):
        def mismatch(self, place: object) -> Reply:
            return Reply(400, b"other parameters")

    assert_holds(verdict_on(Stripe, OtherBodyDuring(), STRIPE))


def test_without_a_slow_request_nothing_is_seen() -> None:
    verdict = verdict_on(GuardedAPI, OtherBodyDuring(), variants={Variant.MAIN: template()})
    assert_not_observable(verdict, "runs for long")


def test_a_slow_request_that_ends_at_once_is_not_observable() -> None:
    verdict = verdict_on(Quick, OtherBodyDuring(), effects=None)
    assert_not_observable(verdict, "ended before")
