"""I16 in FastAPI: a dependency that commits after its `yield` belongs to the attempt. If its COMMIT
fails, so does the attempt, and no retry gets a success."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from tests.http.failing_commits import Shop, async_session, is_replay, post, sync_session
from tests.http.fastapi_set_up import GUARDS, GuardedApp

from oncekey import AsyncOnce, ConfigurationError, Once
from oncekey.http.fastapi import Idempotency, install
from oncekey.http.rules import Rule

SCOPES = [None, "request", "function"]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def orders_app(shop: Shop, how: str, scope: Any, *, is_async: bool, **options: Any) -> FastAPI:
    guarded = GuardedApp(how, **options)
    dependency = async_session(shop) if is_async else sync_session(shop)
    depends = Depends(dependency) if scope is None else Depends(dependency, scope=scope)

    if is_async:

        @guarded.post
        async def place_async(session: Session = depends) -> dict[str, str]:
            shop.write_order(session)
            return {"order": "placed"}

    else:

        @guarded.post
        def place(session: Session = depends) -> dict[str, str]:
            shop.write_order(session)
            return {"order": "placed"}

    return guarded.app


CASES = list(itertools.product(GUARDS, SCOPES, [False, True]))


@pytest.mark.parametrize(("how", "scope", "is_async"), CASES)
def test_i16_a_retry_runs_again_after_a_failed_commit(
    shop: Shop, how: str, scope: Any, is_async: bool
) -> None:
    app = orders_app(shop, how, scope, is_async=is_async, retry_safe=True)
    assert post(app).status_code == 500
    assert shop.orders() == 0
    shop.open_account()
    again = post(app)
    assert (again.status_code, is_replay(again), shop.orders()) == (201, False, 1)
    last = post(app)
    assert (last.status_code, is_replay(last), shop.orders()) == (201, True, 1)
    assert last.json() == again.json()
    assert shop.runs == 2


@pytest.mark.parametrize(("how", "scope", "is_async"), CASES)
def test_i16_a_failed_commit_is_stored_as_a_failure_where_nothing_runs_twice(
    shop: Shop, how: str, scope: Any, is_async: bool
) -> None:
    app = orders_app(shop, how, scope, is_async=is_async)
    assert post(app).status_code == 500
    shop.open_account()
    assert post(app).status_code == 500
    assert (shop.runs, shop.orders()) == (1, 0)


@pytest.mark.parametrize(("how", "scope", "is_async"), CASES)
def test_a_success_is_stored_after_the_commit(
    shop: Shop, how: str, scope: Any, is_async: bool
) -> None:
    shop.open_account()
    app = orders_app(shop, how, scope, is_async=is_async)
    first, again = post(app), post(app)
    assert [one.status_code for one in (first, again)] == [201, 201]
    assert (is_replay(first), is_replay(again)) == (False, True)
    assert (shop.runs, shop.orders()) == (1, 1)


# --- error handlers, middleware, transactions, duplicates, disconnects ---------------------------


@pytest.mark.parametrize("how", GUARDS)
def test_the_apps_handler_answers_a_failed_commit_of_function_scope(shop: Shop, how: str) -> None:
    app = orders_app(shop, how, "function", is_async=True)

    @app.exception_handler(IntegrityError)
    async def conflict(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": "no such account"}, 409)

    first, again = post(app), post(app)
    assert (first.status_code, again.status_code) == (409, 409)
    assert (is_replay(again), shop.runs, shop.orders()) == (True, 1, 0)


class CommittingMiddleware:
    """Commits a session after the app that it wraps has answered."""

    def __init__(self, app: Any, shop: Shop) -> None:
        self.app, self.shop = app, shop

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with self.shop.make_session() as session:
            await self.app({**scope, "session": session}, receive, send)
            session.commit()


@pytest.mark.parametrize("has_background", [False, True])
def test_i16_a_commit_in_a_middleware_inside_of_ours_is_waited_for(
    shop: Shop, has_background: bool
) -> None:
    app = FastAPI()
    app.add_middleware(CommittingMiddleware, shop=shop)
    install(
        app,
        AsyncOnce("memory://"),
        caller=lambda scope: "me",
        rules=[Rule(retry_safe=True)],
    )

    @app.post("/orders", status_code=201)
    async def place(request: Request, tasks: BackgroundTasks) -> str:
        shop.write_order(request.scope["session"])
        if has_background:
            tasks.add_task(lambda: None)
        return "placed"

    assert post(app).status_code == 500
    shop.open_account()
    assert [is_replay(post(app)) for _ in range(2)] == [False, True]
    assert shop.orders() == 1


def test_a_dependency_that_yields_beside_transaction_is_refused(shop: Shop) -> None:
    app = FastAPI()
    blocking = Once("memory://")
    idempotency = Idempotency(
        AsyncOnce("memory://"), blocking=blocking, caller=lambda request: "me"
    )
    idempotency.attach(app)
    get_session, get_other = sync_session(shop), async_session(shop)
    session: Any = Depends(get_session)
    other: Any = Depends(get_other)
    early: Any = Depends(get_other, scope="function")

    def place(db: Session = session, more: Session = other) -> None: ...
    def place_early(db: Session = session, more: Session = early) -> None: ...

    with pytest.raises(ConfigurationError, match=r"get_session yields.*scope='function'"):
        app.post("/orders")(idempotency.guard(transaction=get_session)(place))
    app.post("/early")(idempotency.guard(transaction=get_session)(place_early))


@pytest.mark.parametrize("how", GUARDS)
def test_a_duplicate_waits_for_the_commit_too(shop: Shop, how: str) -> None:
    """wait=: the duplicate gets the success after the commit, and not before."""
    shop.open_account()
    committing, commit = asyncio.Event(), asyncio.Event()
    guarded = GuardedApp(how, wait="60s")

    async def get_session() -> AsyncIterator[Session]:
        with shop.make_session() as session:
            yield session
            committing.set()
            await commit.wait()
            session.commit()

    depends: Any = Depends(get_session)

    @guarded.post
    async def place(session: Session = depends) -> str:
        shop.write_order(session)
        return "placed"

    async def main() -> None:
        transport = httpx.ASGITransport(guarded.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            send = [
                asyncio.create_task(client.post("/orders", headers={"Idempotency-Key": "k"}))
                for _ in range(2)
            ]
            await committing.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            assert not any(one.done() for one in send)
            commit.set()
            responses = [await one for one in send]
            assert [one.status_code for one in responses] == [201, 201]
            assert sorted(is_replay(one) for one in responses) == [False, True]

    asyncio.run(asyncio.wait_for(main(), 60))
    assert (shop.runs, shop.orders()) == (1, 1)


@pytest.mark.parametrize("how", GUARDS)
def test_i14_a_client_that_leaves_during_the_commit_loses_nothing(shop: Shop, how: str) -> None:
    shop.open_account()
    committing, commit = asyncio.Event(), asyncio.Event()
    guarded = GuardedApp(how, wait="60s")

    async def get_session() -> AsyncIterator[Session]:
        with shop.make_session() as session:
            yield session
            committing.set()
            await commit.wait()
            session.commit()

    depends: Any = Depends(get_session)

    @guarded.post
    async def place(session: Session = depends) -> str:
        shop.write_order(session)
        return "placed"

    async def main() -> None:
        transport = httpx.ASGITransport(guarded.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            headers = {"Idempotency-Key": "k"}
            first = asyncio.create_task(client.post("/orders", headers=headers))
            await committing.wait()
            first.cancel()
            await asyncio.wait({first})
            commit.set()
            again = await client.post("/orders", headers=headers)
            assert (again.status_code, is_replay(again)) == (201, True)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert (shop.runs, shop.orders()) == (1, 1)
