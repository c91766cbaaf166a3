"""What `assert_idempotent` was given: cases that are chosen, left out, required or impossible."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI
from flask import Flask
from tests.testing.guarded_apps import CHARGE

from oncekey import ConfigurationError, Once
from oncekey.stores.memory import MemoryStore
from oncekey.testing import (
    CaseStatus,
    Effects,
    Failpoints,
    NotIdempotent,
    assert_idempotent,
    assert_idempotent_async,
)
from oncekey.testing.app_check import check_report
from oncekey.testing.app_check.check_cases import CASES


class Charges:
    """A guarded function, and the counter of its effects."""

    def __init__(self, *, failpoints: Failpoints | None = None) -> None:
        store = MemoryStore() if failpoints is None else failpoints.wrap(MemoryStore())
        self.once = Once(store)
        self.effects = Effects()

    def __call__(self, key: str, cents: int) -> Any:
        body = self.body
        return self.once.run("charge", key, lambda attempt: body(cents), request=cents).value

    def body(self, cents: int) -> int:
        self.effects.record(cents)
        return cents


@pytest.fixture
def charges() -> Charges:
    return Charges()


def test_every_case_has_a_guarantee_in_words() -> None:
    assert tuple(CASES) == check_report.CASES


def test_what_was_not_given_is_in_the_report_with_what_would_make_it_checkable(
    charges: Charges,
) -> None:
    report = assert_idempotent(charges, 5, effects=charges.effects)
    assert list(report.holds) == ["completed", "concurrent", "lost_response"]
    assert {case: why.rpartition("; ")[2] for case, why in report.not_checked.items()} == {
        "other_body": "add other_request=",
        "other_caller": "add other_caller=",
        "rejected_caller": "add rejected_caller=",
        "crash": "build the app on `oncekey_once` or `oncekey_async_once`, and add "
        "failpoints=oncekey_failpoints",
    }
    assert "not checked  crash: no failpoints were given" in str(report)
    assert [result.case for result in report.results] == list(CASES)


def test_a_required_case_that_could_not_be_checked_is_an_error(charges: Charges) -> None:
    with pytest.raises(NotIdempotent, match="required, but not checked") as raised:
        assert_idempotent(charges, 5, effects=charges.effects, require=["completed", "crash"])
    assert "  crash: no failpoints were given" in str(raised.value)
    assert "other_caller" in raised.value.report.not_checked
    with pytest.raises(NotIdempotent, match="rejected_caller: no caller that the app rejects"):
        assert_idempotent(charges, 5, effects=charges.effects, require="all")


def test_an_app_in_place_of_its_client_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"a FastAPI is an app.*; give TestClient\(app\)"):
        assert_idempotent(FastAPI(), CHARGE, effects=[])
    with pytest.raises(ConfigurationError, match=r"give app\.test_client\(\)"):
        assert_idempotent(Flask("shop"), CHARGE, effects=[])


def test_what_an_app_raises_is_the_cause_of_the_failed_check() -> None:
    def raises(key: str, cents: int) -> None:
        raise LookupError("no such account")

    with pytest.raises(AssertionError, match="above is where this was raised") as raised:
        assert_idempotent(raises, 5, effects=[])
    assert isinstance(raised.value.__cause__, LookupError)


def test_only_and_skip_choose_the_cases_and_leave_the_others_in_the_report(
    charges: Charges,
) -> None:
    report = assert_idempotent(charges, 5, effects=charges.effects, only="completed")
    assert list(report.holds) == ["completed"]
    assert report.not_checked["concurrent"] == "left out by only="
    report = assert_idempotent(charges, 5, effects=charges.effects, skip=["concurrent"])
    assert report.not_checked["concurrent"] == "left out by skip="
    assert report.results[0].status is CaseStatus.HOLDS


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"only": ["crashes"]}, "only= names no case 'crashes'; known are completed, concurrent"),
        ({"concurrency": 1}, "concurrency=1 must be 2 to 100"),
        ({"effects": 7}, "effects= is a int; give Effects"),
        ({"other_caller": object()}, "a object is no client that is known here"),
    ],
)
def test_bad_arguments_are_refused_with_what_to_do(
    charges: Charges, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        assert_idempotent(charges, 5, **{"effects": charges.effects, **options})


def test_a_client_that_is_async_is_refused_by_the_sync_form() -> None:
    async def charge(key: str, cents: int) -> int:
        return cents

    with pytest.raises(ConfigurationError, match="await assert_idempotent_async"):
        assert_idempotent(charge, 5, effects=[])


def test_a_request_that_does_not_work_by_itself_is_said_to_be_the_cause() -> None:
    def charge(key: str, cents: int) -> int:
        raise LookupError("no such card")

    with pytest.raises(
        AssertionError, match=r"(?s)itself is not carried out.*no such card"
    ) as raised:
        assert_idempotent(charge, 5, effects=[], header="X-Key")
    assert "The key is in the header X-Key; header= names another one" in str(raised.value)


def test_effects_that_see_nothing_are_said_to_be_the_cause(charges: Charges) -> None:
    with pytest.raises(AssertionError, match=r"(?s)does not see the effect.*0 before it, 0 after"):
        assert_idempotent(charges, 5, effects=list)


def test_a_second_request_without_an_effect_is_said_to_be_the_cause() -> None:
    """The app knows the order by its name, or the counter counts distinct orders only."""
    orders: set[str] = set()

    def place(key: str, order: str) -> str:
        orders.add(order)
        return order

    with pytest.raises(AssertionError, match=r"(?s)a second request.*request=lambda key"):
        assert_idempotent(place, "order-17", effects=orders)


def test_effects_that_differ_from_request_to_request_are_said_to_be_the_cause() -> None:
    counts = iter(range(0, 10_000, 3))
    total = 0

    def count_more_each_time() -> int:
        nonlocal total
        total += next(counts)
        return total

    with pytest.raises(AssertionError, match=r"(?s)different numbers of effects.*nothing else"):
        assert_idempotent(lambda key, cents: cents, 5, effects=count_more_each_time)


def test_the_very_first_request_may_have_more_effects(charges: Charges) -> None:
    """Such as a customer that is created with its first order."""
    customers: list[int] = []

    def charge(key: str, cents: int) -> Any:
        if not customers:
            customers.append(cents)
        return charges(key, cents)

    assert_idempotent(charge, 5, effects=lambda: len(customers) + len(charges.effects))


@pytest.mark.parametrize(("returned", "words"), [(None, "a NoneType"), (1.5, "a float")])
def test_effects_that_return_no_count_are_refused(
    charges: Charges, returned: Any, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"effects= returned {words}; it must return how"):
        assert_idempotent(charges, 5, effects=lambda: returned)


def test_async_effects_are_refused_by_the_sync_form(charges: Charges) -> None:
    async def count() -> int:
        return len(charges.effects)

    with pytest.raises(
        ConfigurationError, match="effects= is async; await assert_idempotent_async"
    ):
        assert_idempotent(charges, 5, effects=count)


def test_a_request_may_have_several_effects_and_a_request_may_be_made_for_each_key() -> None:
    rows: list[str] = []
    keys: set[str] = set()
    once = Once(MemoryStore())

    def place(key: str, order: str) -> str:
        assert order == f"order of {key}"
        keys.add(key)
        once.run("place", key, lambda attempt: rows.extend([order, order]), request=order)
        return order

    def request(key: str) -> str:
        return f"order of {key}"

    assert_idempotent(place, request, effects=lambda: rows, only=["completed", "concurrent"])
    assert len(rows) == 2 * len(keys) == 8


def test_another_request_that_is_refused_anyway_proves_nothing(charges: Charges) -> None:
    def charge(key: str, cents: int) -> Any:
        if cents < 0:
            raise ValueError("no cents")
        return charges(key, cents)

    report = assert_idempotent(charge, 5, effects=charges.effects, other_request=-5)
    assert "not carried out under a key of its own" in report.not_checked["other_body"]


def test_failpoints_that_are_not_in_the_apps_store_are_noticed(charges: Charges) -> None:
    from oncekey.testing import FakeClock

    unused = Failpoints(FakeClock())
    unused.wrap(MemoryStore())
    report = assert_idempotent(charges, 5, effects=charges.effects, failpoints=unused)
    assert "made no call to a store with these failpoints" in report.not_checked["crash"]


def test_without_a_clock_that_can_be_moved_crashes_are_not_checked() -> None:
    failpoints = Failpoints()
    charges = Charges(failpoints=failpoints)
    report = assert_idempotent(charges, 5, effects=charges.effects, failpoints=failpoints)
    assert "clock of the store cannot be moved" in report.not_checked["crash"]


def test_the_async_form_counts_effects_with_an_async_function(charges: Charges) -> None:
    async def count() -> int:
        return len(charges.effects)

    async def charge(key: str, cents: int) -> Any:
        return charges(key, cents)

    report = asyncio.run(assert_idempotent_async(charge, 5, effects=count))
    assert "completed" in report.holds


def test_a_sample_request_sends_json_or_content_with_its_type() -> None:
    assert CHARGE.sent_headers({"authorization": "Bearer b"}) == {
        "authorization": "Bearer b",
        "Content-Type": "application/json",
    }
    text = type(CHARGE)("POST", "/notes", content="hé")
    assert text.body == "hé".encode()
    assert text.sent_headers({}) == {"Content-Type": "application/octet-stream"}
    assert type(CHARGE)("DELETE", "/notes/1").sent_headers({}) == {}
