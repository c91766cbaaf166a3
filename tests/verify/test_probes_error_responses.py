"""The probes of operations that are refused, and of operations that fail."""

from __future__ import annotations

from dataclasses import replace
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

from oncekey.verify.probes.error_responses import ClientErrors, ServerErrors
from oncekey.verify.profile import STRIPE
from oncekey.verify.target import Variant
from oncekey.verify.verdict import Fault


class RefusalFreesKey(GuardedAPI):
    def store(self, place: object, record: Record, reply: Reply) -> None:
        super().store(place, record, reply)
        if 400 <= reply.status < 500:
            del self.records[place]


class RefusalBlocksKey(GuardedAPI):
    """The record of a refused request stays pending."""

    patience = SOON

    def store(self, place: object, record: Record, reply: Reply) -> None:
        if reply.status < 400:
            super().store(place, record, reply)


class RefusalBlocksOthers(GuardedAPI):
    """A retry of the refused request is answered, but another one stays in flight."""

    patience = SOON

    def mismatch(self, place: object) -> Reply:
        return Reply(409, b"in flight")


class StatusLost(GuardedAPI):
    def replay(self, reply: Reply) -> Reply:
        return replace(super().replay(reply), status=200)


class BodyNotCompared(GuardedAPI):
    def fingerprint(self, account: str, asked: Asked) -> object:
        return asked.path


class ChargesBeforeRefusal(RefusalFreesKey):
    """The effect happens, and then the request is refused and its key is free."""

    async def operate(self, asked: Asked) -> Reply:
        if asked.fields.get("kind") == "rejected":
            self.effects[asked.fields["order"]] += 1
        return await super().operate(asked)


class FailsOnRefusal(GuardedAPI):
    def replay(self, reply: Reply) -> Reply:
        return Reply(500, b"KeyError") if reply.status >= 400 else super().replay(reply)


class FailsOnCorrection(GuardedAPI):
    def mismatch(self, place: object) -> Reply:
        return Reply(500, b"KeyError")


class AcceptsTheSecondTime(RefusalFreesKey):
    """What is refused depends on more than the request."""

    refused = 0

    async def operate(self, asked: Asked) -> Reply:
        if asked.fields.get("kind") == "rejected":
            self.refused += 1
            if self.refused % 2 == 0:
                return self.success(asked, self.refused)
        return await super().operate(asked)


@pytest.mark.parametrize("server", [GuardedAPI, RefusalFreesKey])
def test_a_refused_request_that_binds_or_frees_its_key_holds(server: type[GuardedAPI]) -> None:
    assert_holds(verdict_on(server, ClientErrors()))
    assert_holds(verdict_on(server, ClientErrors(), effects=None))


@pytest.mark.parametrize(
    ("server", "fault"),
    [
        (RefusalBlocksKey, Fault.NEVER_ANSWERED),
        (RefusalBlocksOthers, Fault.NEVER_ANSWERED),
        (StatusLost, Fault.STATUS_LOST),
        (BodyNotCompared, Fault.BODY_NOT_COMPARED),
        (ChargesBeforeRefusal, Fault.RERUN_AFTER_FAILURE),
        (FailsOnRefusal, Fault.SERVER_FAILED),
        (FailsOnCorrection, Fault.SERVER_FAILED),
    ],
)
def test_a_refused_request_that_blocks_or_misleads_is_named(
    server: type[GuardedAPI], fault: Fault
) -> None:
    assert_faults(verdict_on(server, ClientErrors()), fault)


@pytest.mark.parametrize(
    ("variants", "why"),
    [
        ({Variant.MAIN: template()}, "no request is known"),
        ({**VARIANTS, Variant.REJECTED: template(cents=6)}, "answered with 201"),
    ],
)
def test_without_a_request_that_is_refused_nothing_is_seen(
    variants: dict[Variant, Any], why: str
) -> None:
    assert_not_observable(verdict_on(GuardedAPI, ClientErrors(), variants=variants), why)


def test_a_request_that_is_not_refused_again_is_not_observable() -> None:
    assert_not_observable(verdict_on(AcceptsTheSecondTime, ClientErrors()), "then with 201")


# --- failures -----------------------------------------------------------------------------------


class FailureFreesKey(GuardedAPI):
    def store(self, place: object, record: Record, reply: Reply) -> None:
        super().store(place, record, reply)
        if reply.status >= 500:
            del self.records[place]


class NothingHappened(FailureFreesKey):
    """It fails before its effect, and says so by running again."""

    async def operate(self, asked: Asked) -> Reply:
        if asked.fields.get("kind") == "failing":
            return Reply(502, b"not started")
        return await super().operate(asked)


class SucceedsLater(FailureFreesKey):
    """It fails before its effect, and the next try succeeds."""

    failed: frozenset[bytes] = frozenset()

    async def operate(self, asked: Asked) -> Reply:
        if asked.fields.get("kind") == "failing" and asked.key_lines[0] not in self.failed:
            self.failed |= {asked.key_lines[0]}
            return Reply(502, b"not started")
        self.effects[asked.fields["order"]] += 1
        return self.success(asked, self.effects.total())


class SaysUnknown(GuardedAPI):
    """Retries of a failure are told that nobody knows its outcome."""

    def replay(self, reply: Reply) -> Reply:
        return Reply(409, b"outcome unknown") if reply.status >= 500 else super().replay(reply)


class CommitsAfterStoring(GuardedAPI):
    """It stores the success of a request whose commit then fails, which its client learns."""

    first_status = 500

    async def run(self, place: object, asked: Asked) -> Reply:
        reply = await super().run(place, asked)
        if asked.fields.get("kind") == "failing":
            self.effects[asked.fields["order"]] -= 1  # rolled back
            return replace(reply, status=self.first_status)
        return reply

    async def operate(self, asked: Asked) -> Reply:
        self.effects[asked.fields["order"]] += 1
        return self.success(asked, self.effects.total())


class CommitsAfterSending(CommitsAfterStoring):
    """The client was told the success already."""

    first_status = 201


@pytest.mark.parametrize("server", [CommitsAfterStoring, CommitsAfterSending])
def test_a_success_for_rows_that_were_rolled_back_is_named(server: type[GuardedAPI]) -> None:
    assert_faults(verdict_on(server, ServerErrors()), Fault.SUCCESS_WITHOUT_EFFECT)


@pytest.mark.parametrize("server", [GuardedAPI, SucceedsLater, SaysUnknown])
def test_a_failure_with_one_effect_holds(server: type[GuardedAPI]) -> None:
    assert_holds(verdict_on(server, ServerErrors()))


def test_a_failure_that_is_kept_holds_for_stripe_without_a_counter() -> None:
    assert_holds(verdict_on(GuardedAPI, ServerErrors(), STRIPE, effects=None))


def test_an_effect_that_happens_again_after_a_failure_is_named() -> None:
    assert_faults(verdict_on(FailureFreesKey, ServerErrors()), Fault.RERUN_AFTER_FAILURE)


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_failure_that_is_not_kept_is_named_for_stripe(is_counted: bool) -> None:
    counted: dict[str, Any] = {} if is_counted else {"effects": None}
    verdict = verdict_on(SucceedsLater, ServerErrors(), STRIPE, **counted)
    assert_faults(verdict, Fault.FAILURE_NOT_KEPT)


def test_a_failure_without_an_effect_is_not_observable() -> None:
    assert_not_observable(verdict_on(NothingHappened, ServerErrors()), "no effect")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"variants": {Variant.MAIN: template()}}, "no request is known"),
        ({"variants": {**VARIANTS, Variant.FAILING: template()}}, "answered with 201"),
        ({"effects": None}, "nothing counts"),
    ],
)
def test_without_a_failing_request_or_a_counter_nothing_is_seen(
    fields: dict[str, Any], why: str
) -> None:
    assert_not_observable(verdict_on(GuardedAPI, ServerErrors(), **fields), why)
