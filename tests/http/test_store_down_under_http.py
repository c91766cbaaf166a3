"""A PostgreSQL store that is down for a while under a served app (I4, I13).

test_client_disconnects.py has the same for an SQLite file, on every server.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from tests.http.app_server import ServedApp, problem_code, serve_app
from tests.http.gated_request import APP, GatedRequest, check_outcome
from tests.support import postgres_stores
from tests.support.servers import Proxy, Uvicorn, require
from tests.support.servers.processes import wait_until


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with Proxy(postgres_stores.server().port) as running:
        yield running


@pytest.fixture(scope="module")
def app(proxy: Proxy) -> Iterator[ServedApp]:
    require(lambda: Uvicorn("x:y"))  # skips by name where it is not installed
    address = postgres_stores.server().url(postgres_stores.DATABASE, port=proxy.port)
    schema = postgres_stores.emptied({"schema": f"down_{uuid4().hex[:12]}"})["schema"]
    with serve_app(Uvicorn, APP, env={"GUARDED_STORE": f"{address}?schema={schema}"}) as served:
        yield served


@contextmanager
def down(proxy: Proxy) -> Iterator[None]:
    proxy.refuse()
    proxy.cut()
    try:
        yield
    finally:
        proxy.heal()


def unprotected(app: ServedApp) -> int:
    with app.connect() as connection:
        return int(connection.request("GET", "/unprotected").body)


def test_request_gets_503_and_the_connection_stays_usable(app: ServedApp, proxy: Proxy) -> None:
    request = GatedRequest(app, "plain")
    request.open_gates()
    before = unprotected(app)
    with app.connect() as connection:
        with down(proxy):
            for _ in range(2):
                refused = request.send_on(connection)
                assert (refused.status, problem_code(refused)) == (503, "unavailable")
                assert int(refused.one("Retry-After") or 0) >= 1
        assert request.effects() == 0
        assert unprotected(app) == before
        wait_until(lambda: request.send_on(connection).status == 201, "the store is back")
    check_outcome(request)


def test_rule_with_store_down_run_runs_unprotected_and_is_counted(
    app: ServedApp, proxy: Proxy
) -> None:
    risky = GatedRequest(app, "risky")
    risky.open_gates()
    before = unprotected(app)
    with down(proxy):
        for _ in range(2):
            response = risky.send()
            assert (response.status, response.one("X-Idempotency-Retention")) == (201, None)
    assert (risky.effects(), unprotected(app)) == (2, before + 2)

    def is_protected() -> bool:
        return (
            GatedRequest(app, "risky").send_undisturbed().one("X-Idempotency-Retention") is not None
        )

    wait_until(is_protected, "the store is back")


def test_i4_result_reached_while_the_store_is_down_is_stored_later(
    app: ServedApp, proxy: Proxy
) -> None:
    """The response waits for the store too: no client gets a result that could be lost (I13)."""
    request, abandoned = GatedRequest(app, "plain"), GatedRequest(app, "large")
    with request.start() as connection:
        abandoned.start().abort()
        proxy.hold("requests")
        request.open_gates()
        abandoned.open_gates()
        proxy.wait_until_held("requests")
        with down(proxy):
            assert request.effects() == abandoned.effects() == 1
            assert connection.is_quiet()
        assert connection.read_response().status == 201
    check_outcome(request)
    check_outcome(abandoned)
