"""Stripe's own SDK against a guarded API: its retries run once, and it raises its own errors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import stripe
from tests.http.app_server import ServedApp, serve_app
from tests.support.servers import Proxy, Uvicorn, require

_names = itertools.count(1)


@pytest.fixture(scope="module")
def app() -> Iterator[ServedApp]:
    require(lambda: Uvicorn("x:y"))
    with serve_app(Uvicorn, "tests.http.apps.stripe_api:app") as served:
        yield served


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stripe.HTTPClient, "INITIAL_DELAY", 0.01)
    monkeypatch.setattr(stripe.HTTPClient, "MAX_DELAY", 0.01)
    monkeypatch.setattr(stripe, "enable_telemetry", False)


def client(port: int, key: str = "sk_test_1", retries: int = 0) -> stripe.StripeClient:
    return stripe.StripeClient(
        key,
        base_addresses={"api": f"http://127.0.0.1:{port}"},
        max_network_retries=retries,
    )


def pay(shop: stripe.StripeClient, description: str, key: str | None = None, **more: Any) -> Any:
    parameters: Any = {
        "amount": 500,
        "currency": "eur",
        "source": "tok_ok",
        "description": description,
        **more,
    }
    options: Any = {} if key is None else {"idempotency_key": key}
    return shop.v1.charges.create(parameters, options)


def code_of(error: stripe.StripeError) -> Any:
    assert error.error is not None
    return error.error.code


def test_retry_with_the_same_key_is_one_charge(app: ServedApp) -> None:
    shop, description = client(app.server.port), f"plain-{next(_names)}"
    first, again = pay(shop, description, "order-17"), pay(shop, description, "order-17")
    assert first.id == again.id
    assert "idempotent-replayed" not in first.last_response.headers
    assert again.last_response.headers["idempotent-replayed"] == "true"
    assert app.effects(description) == 1


def test_key_used_for_another_request_raises_idempotency_error(app: ServedApp) -> None:
    shop, description = client(app.server.port, retries=2), f"reused-{next(_names)}"
    pay(shop, description, description)
    with pytest.raises(stripe.IdempotencyError, match="used for another request") as raised:
        pay(shop, description, description, amount=900)
    assert raised.value.http_status == 400
    assert code_of(raised.value) == "key_reused"
    assert app.effects(description) == 1


def test_lost_response_is_retried_by_the_sdk_and_charged_once(app: ServedApp) -> None:
    description = f"lost-{next(_names)}"
    with Proxy(app.server.port) as proxy:
        proxy.drop_replies(b"/v1/charges")
        served = pay(client(proxy.port, retries=3), description)  # under a key that the SDK made
        proxy.wait_until_dropped()
    assert served.last_response.headers["idempotent-replayed"] == "true"
    assert app.effects(description) == 1


def test_duplicate_in_flight_is_retried_by_the_sdk_until_it_is_answered(app: ServedApp) -> None:
    description = f"gated{next(_names)}"
    shop, patient = client(app.server.port), client(app.server.port, retries=500)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(pay, shop, description, description)
        try:
            app.wait_at_gate(description)
            with pytest.raises(stripe.APIError) as raised:
                pay(shop, description, description)
            again = threads.submit(pay, patient, description, description)
        finally:
            app.open_gate(description)
        assert (raised.value.http_status, code_of(raised.value)) == (409, "in_flight")
        assert first.result().id == again.result().id
    assert app.effects(description) == 1


def test_declined_card_stays_declined_under_its_key(app: ServedApp) -> None:
    shop, description = client(app.server.port), f"declined-{next(_names)}"
    for _ in range(2):
        with pytest.raises(stripe.CardError, match=r"No\. "):
            pay(shop, description, description, source="tok_declined")
    assert app.effects(description) == 1


def test_unknown_caller_raises_authentication_error(app: ServedApp) -> None:
    shop, description = client(app.server.port, "sk_test_other"), f"nobody-{next(_names)}"
    with pytest.raises(stripe.AuthenticationError, match="Nobody is authenticated"):
        pay(shop, description, description)
    assert app.effects(description) == 0
