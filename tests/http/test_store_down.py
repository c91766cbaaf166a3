"""A PostgreSQL that goes away under a served app, and comes back (I4, I13).

The same for an SQLite file, on every server, is in test_matrix.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.http.operations import APP, Operation, check_outcome, problem
from tests.http.served import Served, served
from tests.support import postgres_stores
from tests.support.servers import Proxy, Uvicorn, require
from tests.support.servers.processes import wait_until


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with Proxy(postgres_stores.server().port) as running:
        yield running


@pytest.fixture(scope="module")
def app(proxy: Proxy) -> Iterator[Served]:
    require(lambda: Uvicorn("x:y"))  # skips by name where it is not installed
    address = postgres_stores.server().url(postgres_stores.DATABASE, port=proxy.port)
    schema = postgres_stores.emptied({})["schema"]
    with served(Uvicorn, APP, env={"GUARDED_STORE": f"{address}?schema={schema}"}) as made:
        yield made


@contextmanager
def down(proxy: Proxy) -> Iterator[None]:
    proxy.refuse()
    proxy.cut()
    try:
        yield
    finally:
        proxy.heal()


def unprotected(app: Served) -> int:
    with app.connect() as wire:
        return int(wire.ask("GET", "/unprotected").body)


def test_nothing_runs_and_the_connection_lives_on(app: Served, proxy: Proxy) -> None:
    operation = Operation(app, "plain")
    operation.let_go()
    with app.connect() as wire:
        with down(proxy):
            for _ in range(2):
                refused = operation.ask_on(wire)
                assert (refused.status, problem(refused)) == (503, "unavailable")
                assert int(refused.one("Retry-After") or 0) >= 1
        assert operation.effects() == 0
        assert unprotected(app) == 0
        wait_until(lambda: operation.ask_on(wire).status == 201, "the store is back")
    check_outcome(operation)


def test_what_was_chosen_to_run_runs_and_is_counted(app: Served, proxy: Proxy) -> None:
    risky = Operation(app, "risky")
    risky.let_go()
    before = unprotected(app)
    with down(proxy):
        for _ in range(2):
            answer = risky.ask()
            assert (answer.status, answer.one("X-Idempotency-Retention")) == (201, None)
    assert (risky.effects(), unprotected(app)) == (2, before + 2)

    def is_protected() -> bool:
        return Operation(app, "risky").asked().one("X-Idempotency-Retention") is not None

    wait_until(is_protected, "the store is back")


def test_i4_a_result_reached_while_it_is_down_is_stored_when_it_is_back(
    app: Served, proxy: Proxy
) -> None:
    """The answer waits for that too: nobody is told what could be lost (I13)."""
    operation, gone = Operation(app, "plain"), Operation(app, "large")
    with operation.begin() as wire:
        gone.begin().abort()
        proxy.hold("requests")
        operation.let_go()
        gone.let_go()
        proxy.wait_until_held("requests")
        with down(proxy):
            assert operation.effects() == gone.effects() == 1
            assert wire.is_quiet()
        assert wire.read().status == 201
    check_outcome(operation)
    check_outcome(gone)
