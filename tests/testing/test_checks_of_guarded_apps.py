"""`assert_idempotent` passes apps that oncekey guards, in each framework, in every case."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.testing.guarded_apps import (
    CHARGE,
    EVERYTHING,
    django_view,
    fastapi_app,
    fastapi_client,
    flask_client,
    set_up_django,
)

from oncekey import AsyncOnce, Once, Policy
from oncekey.queues import consume
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.testing import (
    AsyncEffects,
    Effects,
    Failpoints,
    FakeClock,
    IdempotencyReport,
    NotIdempotent,
    assert_idempotent,
    assert_idempotent_async,
)
from oncekey.testing.app_check.check_cases import CASES


@pytest.fixture
def failpoints() -> Failpoints:
    return Failpoints(FakeClock())


@pytest.fixture
def once(failpoints: Failpoints) -> Iterator[Once]:
    with blocking_engine(failpoints) as once:
        yield once


def blocking_engine(failpoints: Failpoints, **policy: Any) -> Once:
    assert failpoints.clock is not None
    store = failpoints.wrap(MemoryStore(clock=failpoints.clock.wall))
    return Once(store, clock=failpoints.clock, policy=Policy(**policy))


@pytest.fixture
def async_once(failpoints: Failpoints) -> AsyncOnce:
    assert failpoints.clock is not None
    store = failpoints.wrap(AsyncMemoryStore(clock=failpoints.clock.wall))
    return AsyncOnce(store, clock=failpoints.clock)


def all_hold(report: IdempotencyReport) -> None:
    assert list(report.holds) == list(CASES)
    assert "before and after each of claim, finish" in report.holds["crash"]
    assert "2 x success, 2 x outcome unknown" in report.holds["crash"]
    assert "one was held while the others came" in report.holds["concurrent"]


def test_fastapi_behind_its_test_client(async_once: AsyncOnce, failpoints: Failpoints) -> None:
    effects = AsyncEffects()
    client = fastapi_client(async_once, effects)
    options = {"effects": effects, "failpoints": failpoints, **EVERYTHING}
    all_hold(assert_idempotent(client, CHARGE, **options))
    with client:  # all requests on one event loop
        all_hold(assert_idempotent(client, CHARGE, **options))


def test_an_asgi_app_behind_an_async_client_whose_requests_are_cancelled(
    async_once: AsyncOnce, failpoints: Failpoints
) -> None:
    effects = AsyncEffects()
    transport = httpx.ASGITransport(fastapi_app(async_once, effects))

    async def check() -> IdempotencyReport:
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            return await assert_idempotent_async(
                client, CHARGE, effects=effects, failpoints=failpoints, **EVERYTHING
            )

    report = asyncio.run(check())
    all_hold(report)
    assert "its client left while the handler ran" in report.holds["lost_response"]


def test_flask_behind_its_test_client(once: Once, failpoints: Failpoints) -> None:
    effects = Effects()
    client = flask_client(once, effects)
    all_hold(
        assert_idempotent(client, CHARGE, effects=effects, failpoints=failpoints, **EVERYTHING)
    )


@pytest.mark.parametrize("client", ["django.test.Client", "rest_framework.test.APIClient"])
def test_django_behind_its_test_clients(client: str, once: Once, failpoints: Failpoints) -> None:
    from django.utils.module_loading import import_string

    effects = Effects()
    overridden = set_up_django(django_view(effects), once)
    try:
        made = import_string(client)()
        all_hold(
            assert_idempotent(made, CHARGE, effects=effects, failpoints=failpoints, **EVERYTHING)
        )
    finally:
        overridden.disable()


def test_django_behind_its_async_client(once: Once, failpoints: Failpoints) -> None:
    from django.test import AsyncClient

    effects = Effects()
    overridden = set_up_django(django_view(effects), once)
    try:
        report = asyncio.run(
            assert_idempotent_async(
                AsyncClient(), CHARGE, effects=effects, failpoints=failpoints, **EVERYTHING
            )
        )
    finally:
        overridden.disable()
    all_hold(report)
    assert "its client left while the handler ran" in report.holds["lost_response"]


def test_flask_behind_a_test_client_that_keeps_contexts(once: Once) -> None:
    """`with app.test_client() as client`, as in many fixtures; requests come from other threads."""
    effects = Effects()
    with flask_client(once, effects) as client:
        report = assert_idempotent(client, CHARGE, effects=effects)
    assert "concurrent" in report.holds


def test_an_app_that_sends_those_who_are_not_let_in_to_a_login_page() -> None:
    from flask import Flask, redirect, request
    from tests.testing.handmade_guards import CALLERS, HandmadeGuard

    effects = Effects()
    guard = HandmadeGuard("", effects)
    app = Flask("shop")

    @app.post("/charges")
    def charge() -> Any:
        caller = CALLERS.get(request.headers.get("Authorization", ""))
        if caller is None:
            return redirect("/login")
        reply = guard.charge(caller, request.headers["Idempotency-Key"], request.json)
        return {"body": reply.body}, reply.status

    nobody = {"Authorization": "Bearer x"}
    report = assert_idempotent(
        app.test_client(), CHARGE, effects=effects, rejected_caller=nobody, only="rejected_caller"
    )
    assert list(report.holds) == ["rejected_caller"]


# --- functions and consumers ----------------------------------------------------------------------


def charge_with(once: Once, effects: Effects, caller: str = "alice") -> Any:
    def charge(key: str, cents: int) -> Any:
        def body(attempt: Any) -> int:
            effects.record(cents)
            return cents

        return once.run("charge", key, body, scope=caller, request=cents).value

    return charge


def test_a_function_is_a_client(once: Once, failpoints: Failpoints) -> None:
    effects = Effects()
    report = assert_idempotent(
        charge_with(once, effects),
        500,
        effects=effects,
        other_request=900,
        other_caller=charge_with(once, effects, "bob"),
        failpoints=failpoints,
        skip="rejected_caller",
    )
    assert list(report.not_checked) == ["rejected_caller"]


def test_a_function_may_return_the_whole_result_of_a_run(once: Once) -> None:
    effects = Effects()

    def charge(key: str, cents: int) -> Any:
        return once.run("charge", key, lambda attempt: effects.record(cents), request=cents)

    assert_idempotent(charge, 5, effects=effects, other_request=9)


@pytest.mark.parametrize("framework", ["flask", "fastapi", "django"])
def test_a_function_may_return_the_response_of_a_client(
    framework: str, once: Once, async_once: AsyncOnce
) -> None:
    """A 409 is then no result, and two responses are compared by what is in them."""
    from django.test import Client

    effects, async_effects = Effects(), AsyncEffects()
    django = set_up_django(django_view(effects), once)
    clients = {
        "flask": flask_client(once, effects),
        "fastapi": fastapi_client(async_once, async_effects),
        "django": Client(),
    }

    def send(key: str, cents: int) -> Any:
        headers = {"Idempotency-Key": key, "Authorization": "Bearer a"}
        if framework == "django":
            return clients[framework].generic(
                "POST", "/charges", f'{{"cents": {cents}}}', "application/json", headers=headers
            )
        return clients[framework].post("/charges", json={"cents": cents}, headers=headers)

    try:
        report = assert_idempotent(
            send, 5, effects=async_effects if framework == "fastapi" else effects, other_request=9
        )
    finally:
        django.disable()
    assert "1 got the result and 4 had to come back" in report.holds["concurrent"]


def test_django_that_is_imported_and_not_set_up_does_not_matter(
    once: Once, failpoints: Failpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has connections then, which raise if they are looked at."""
    import django.db
    from django.conf import LazySettings

    unconfigured = LazySettings()
    monkeypatch.setattr("django.conf.settings", unconfigured)
    monkeypatch.setattr("django.utils.connection.django_settings", unconfigured)
    monkeypatch.setattr("django.db.connections", django.db.ConnectionHandler())
    effects = Effects()
    charge = charge_with(once, effects)
    assert_idempotent(charge, 5, effects=effects, failpoints=failpoints, only="concurrent")


def test_a_consumer_is_a_client(once: Once, failpoints: Failpoints) -> None:
    effects = Effects()

    def deliver(key: str, body: bytes) -> Any:
        return consume(
            once, key, body, lambda message: effects.record(), name="shipping", queue="orders"
        )

    report = assert_idempotent(
        deliver, b"17", effects=effects, other_request=b"18", failpoints=failpoints
    )
    assert set(report.not_checked) == {"other_caller", "rejected_caller"}


def test_a_retry_safe_operation_must_deduplicate_its_effects(failpoints: Failpoints) -> None:
    effects = Effects()
    with blocking_engine(failpoints, retry_safe=True) as once:
        charge = charge_with(once, effects)
        with pytest.raises(NotIdempotent, match="retry_safe=True every effect must be harmless"):
            assert_idempotent(charge, 5, effects=effects, failpoints=failpoints, only="crash")


def test_a_crash_between_the_steps_of_an_operation_repeats_none(failpoints: Failpoints) -> None:
    """The provider deduplicates by the child key, as a real one does."""
    effects = Effects()
    with blocking_engine(failpoints, retry_safe=True) as once:

        def checkout(key: str, cart: str) -> Any:
            def body(attempt: Any) -> str:
                attempt.step("reserve", lambda key: effects.record("reserve", key=key))
                attempt.step("charge", lambda key: effects.record("charge", key=key))
                return cart

            return once.run("checkout", key, body, request=cart).value

        report = assert_idempotent(
            checkout, "cart", effects=effects, failpoints=failpoints, only="crash"
        )
    assert (
        "each of claim, save_step, save_step, save_step, save_step, finish"
        in (report.holds["crash"])
    )
    assert report.holds["crash"].endswith("12 x success")


def test_a_duplicate_that_waits_for_the_first_one_passes(failpoints: Failpoints) -> None:
    effects = Effects()
    with blocking_engine(failpoints, wait="60s") as once:
        report = assert_idempotent(
            charge_with(once, effects), 5, effects=effects, failpoints=failpoints
        )
    assert "5 got the result and 0 had to come back" in report.holds["concurrent"]
