"""A server that hangs and later continues with what was left in its sockets.

Callers got the error that nothing ran long before that. So nothing may be claimed for them
afterwards, and the error must come in time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import httpx
import pytest
from tests.support.postgres_adapters import StoreAdapters, fresh_server, make_claim
from tests.support.servers import Postgres

from oncekey import AsyncOnce
from oncekey.core.errors import StoreUnavailable
from oncekey.core.policy import Policy
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.stores.postgres import AsyncPostgresStore

KEYS = [f"order-{number}" for number in range(12)]
QUICK = {"statement_timeout": "1s", "pool_timeout": "60s"}
# The budget is 2.5 s, and more than a minute where each wait has a limit of its own.
BUDGET_SECONDS = 45.0


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with closing(fresh_server()) as made:
        yield made


@contextmanager
def frozen(postgres: Postgres) -> Iterator[None]:
    postgres.freeze()
    try:
        yield
    finally:
        postgres.thaw()


def refused(run: Callable[[], Any]) -> float:
    """How long it took until the error said that nothing ran."""
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable):
        run()
    return time.monotonic() - begun


def test_keys_refused_while_the_server_was_frozen_are_free_afterwards(
    adapters: StoreAdapters, postgres: Postgres
) -> None:
    once = adapters.once(adapters.store(postgres.url(), **QUICK), policy=Policy(lease="1h"))
    once.run("charge", "before", lambda attempt: "ran")
    ran: list[str] = []

    def charge(key: str) -> Any:
        return once.run("charge", f"{adapters.driver} {key}", lambda attempt: ran.append(key))

    with frozen(postgres):
        calls: list[Future[float]] = [adapters.start(refused, lambda k=k: charge(k)) for k in KEYS]
        waited = [future.result() for future in calls]
    assert ran == []
    assert max(waited) < BUDGET_SECONDS
    until_it_answers(once)
    until_no_session_is_busy(postgres)
    for key in KEYS:
        charge(key)
    assert ran == KEYS


def until_it_answers(once: Any) -> None:
    end = time.monotonic() + 120
    while True:
        try:
            once.get("charge", "before")
        except StoreUnavailable:
            assert time.monotonic() < end
            time.sleep(0.01)
        else:
            return


def until_no_session_is_busy(postgres: Postgres) -> None:
    """Wait until the server has handled everything it found in its sockets."""
    busy = """SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'
              AND state <> 'idle' AND pid <> pg_backend_pid()"""
    end = time.monotonic() + 120
    while postgres.execute(busy) != [(0,)]:
        assert time.monotonic() < end


def test_an_outcome_delayed_by_a_frozen_server_is_stored_afterwards(
    adapters: StoreAdapters, postgres: Postgres
) -> None:
    """Its caller gets the value in time, with the error that says it is not recorded yet."""
    policy = Policy(lease="1h", store_timeout="500ms")
    once = adapters.once(adapters.store(postgres.url(), **QUICK), policy=policy)
    key = f"{adapters.driver} finished"
    with ExitStack() as stack:

        def body(attempt: Any) -> str:
            stack.enter_context(frozen(postgres))
            return "charged"

        begun = time.monotonic()
        with pytest.raises(StoreUnavailable) as raised:
            once.run("charge", key, body)
        assert time.monotonic() - begun < BUDGET_SECONDS
    assert raised.value.value == "charged"
    until_it_answers(once)
    end = time.monotonic() + 120
    while str((status := once.get("charge", key)).state) != "succeeded":
        assert time.monotonic() < end, status
        time.sleep(0.01)
    assert once.run("charge", key, lambda attempt: "again").value == "charged"


def test_an_http_request_refused_by_a_frozen_server_may_be_sent_again(
    postgres: Postgres,
) -> None:
    ran: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        ran.append(scope["path"])
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"charged"})

    async def scene() -> None:
        once = AsyncOnce(AsyncPostgresStore(postgres.url(), **QUICK))
        guarded: Any = IdempotencyMiddleware(app, once=once, caller=lambda scope: "acct")
        transport = httpx.ASGITransport(guarded)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:

            async def pay(key: str) -> int:
                answer = await client.post("/pay", headers={"Idempotency-Key": f'"http-{key}"'})
                return answer.status_code

            while (status := await pay("before")) == 503:
                pass  # a busy machine has kept it from connecting in time
            assert status == 201
            begun = time.monotonic()
            with frozen(postgres):
                assert set(await asyncio.gather(*map(pay, KEYS))) == {503}
            assert time.monotonic() - begun < BUDGET_SECONDS
            while await pay("after") == 503:
                time.sleep(0.01)  # noqa: ASYNC251
            until_no_session_is_busy(postgres)
            assert set(await asyncio.gather(*map(pay, KEYS))) == {201}
        await once.close()

    asyncio.run(scene())
    assert len(ran) == 2 + len(KEYS)


def test_a_server_clock_that_was_set_ahead_refuses_one_claim_only(
    adapters: StoreAdapters, postgres: Postgres
) -> None:
    store = adapters.store(postgres.url())
    store.claim(make_claim(f"{adapters.driver} 1"))
    clock = store.store._program.server_clock
    learnt = clock._ahead
    clock._ahead -= 3_600_000_000  # what was learnt before the server's clock went an hour ahead
    store.claim(make_claim(f"{adapters.driver} 2"))
    assert abs(clock._ahead - learnt) < 10_000_000
