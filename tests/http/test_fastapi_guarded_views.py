"""A FastAPI endpoint with a guard is served guarded, or the app is refused before it runs.

In the wrong order (the guard above `@app.post`) the route holds the bare function: it would run as
often as it is asked, and nobody would notice.
"""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from tests.http.decorators import with_wraps, without_wraps

from oncekey import AsyncOnce, ConfigurationError
from oncekey.cli.command_group import run
from oncekey.http.fastapi import Idempotency
from oncekey.http.inspection.policy_discovery import find_policy

KEY = {"Idempotency-Key": "k"}
RAN: list[int] = []


def fastapi(**options: Any) -> tuple[FastAPI, Idempotency]:
    app = FastAPI()
    made = Idempotency(AsyncOnce("memory://"), caller=lambda request: "me", close=False, **options)
    made.attach(app)
    return app, made


async def post(app: Any, path: str) -> Any:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        return await client.post(path, headers=KEY)


async def start(app: FastAPI) -> None:
    async with app.router.lifespan_context(app):
        pass


def assert_refused(app: Any, *words: str) -> None:
    """At startup, at the first request of an app without a lifespan, and by the policy command."""
    RAN.clear()
    for use in (start(app), post(app, "/pay"), post(app, "/pay")):
        with pytest.raises(ConfigurationError) as error:
            asyncio.run(use)
        for word in words:
            assert word in str(error.value)
    with pytest.raises(ConfigurationError, match=words[0]):
        find_policy(app)
    assert RAN == []


@pytest.mark.parametrize("between", [None, with_wraps])
def test_fastapi_wrong_order_is_refused_at_import(between: Any) -> None:
    app, idempotency = fastapi()
    for router in (app, APIRouter(route_class=idempotency.route_class)):

        @router.post("/pay")
        async def pay() -> None:
            RAN.append(1)

        view = between(pay) if between else pay
        with pytest.raises(
            ConfigurationError, match=r"pay \(.*test_fastapi_guarded_views.py:\d+\)"
        ) as e:
            idempotency.guard()(view)
        assert "below @app.post" in str(e.value)


def test_fastapi_wrong_order_in_an_app_that_was_never_attached_is_refused_at_import() -> None:
    app = FastAPI()
    idempotency = Idempotency(AsyncOnce("memory://"), caller=lambda request: "me")

    @app.post("/pay")
    async def pay() -> None: ...

    for view in (pay, with_wraps(pay)):
        with pytest.raises(ConfigurationError, match="bare function"):
            idempotency.guard()(view)
    app.post("/other")(idempotency.guard()(with_wraps(lambda: None)))


def test_the_policy_command_fails_on_an_endpoint_that_runs_unguarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = """
        from fastapi import APIRouter, FastAPI
        from oncekey import AsyncOnce
        from oncekey.http.fastapi import Idempotency
        app, router = FastAPI(), APIRouter()
        guard = Idempotency(AsyncOnce("memory://"), caller=lambda request: "me")
        guard.attach(app)
        @guard.guard()
        @router.post("/pay")
        async def pay(): ...
        app.include_router(router)
    """
    (tmp_path / "wrong_shop.py").write_text(textwrap.dedent(shop))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run(["policy", "wrong_shop:app"]) == 2
    error = capsys.readouterr().err
    assert "pay (" in error
    assert "below @app.post" in error


def test_fastapi_wrong_order_on_a_plain_router_is_refused_at_the_start() -> None:
    app, idempotency = fastapi()
    router = APIRouter()

    @idempotency.guard()
    @router.post("/pay")
    async def pay() -> None:
        RAN.append(1)

    app.include_router(router, prefix="")
    assert_refused(app, "pay", "bare function", "below @app.post")


def test_fastapi_wrong_order_behind_a_decorator_without_wraps_and_a_mount_is_refused() -> None:
    app, idempotency = fastapi()
    inner = FastAPI()

    @idempotency.guard()
    @without_wraps
    @inner.post("/")
    def pay() -> None:
        RAN.append(1)

    app.mount("/pay", inner)
    assert_refused(app, "pay", "bare function")


def test_fastapi_a_guarded_function_that_no_route_serves_is_refused_at_the_start() -> None:
    app, idempotency = fastapi()

    async def pay() -> None:
        RAN.append(1)

    lost = idempotency.guard()(pay)
    assert_refused(app, "pay", "no route serves it")
    app.post("/pay")(lost)  # and now one does
    assert asyncio.run(post(app, "/pay")).status_code == 200


def test_fastapi_serves_correctly_guarded_routes() -> None:
    app, idempotency = fastapi()
    other = FastAPI()
    idempotency.attach(other)
    router = APIRouter(route_class=idempotency.route_class)

    @router.post("/pay")
    @with_wraps
    @idempotency.guard()
    def pay() -> None:
        RAN.append(1)

    @app.api_route("/both", methods=["GET", "CHARGE"])
    @idempotency.guard()
    def both() -> None: ...

    @other.post("/elsewhere")
    @idempotency.guard()
    def elsewhere() -> None: ...

    mounted = FastAPI()
    mounted.include_router(router)
    app.mount("/v1", mounted)
    asyncio.run(start(app))
    RAN.clear()
    assert [asyncio.run(post(app, "/v1/pay")).status_code for _ in range(2)] == [200, 200]
    assert RAN == [1]


def test_fastapi_checks_only_the_routes_of_its_own_app() -> None:
    app, idempotency = fastapi()
    left_out = APIRouter(route_class=idempotency.route_class)

    @left_out.post("/other")
    @with_wraps
    @idempotency.guard()
    async def other() -> None: ...

    @app.post("/pay")
    @idempotency.guard()
    async def pay() -> None: ...

    wrong, router = FastAPI(), APIRouter()
    idempotency.attach(wrong)
    lost = idempotency.guard()(router.post("/pay")(lambda: None))
    wrong.include_router(router)

    asyncio.run(start(app))
    assert asyncio.run(post(app, "/pay")).status_code == 200
    assert [one.path for one in find_policy(app).routes] == ["/pay"]
    assert_refused(wrong, "bare function")
    assert lost is not None


def test_fastapi_two_set_ups_on_one_app_guard_their_own_routes() -> None:
    app, first = fastapi()
    second = Idempotency(
        AsyncOnce("memory://"), caller=lambda request: "me", operation="second", close=False
    )
    second.attach(app)
    with pytest.raises(ConfigurationError, match="already"):
        second.attach(app)
    RAN.clear()
    for idempotency, path in ((first, "/first"), (second, "/second")):

        @app.post(path)
        @idempotency.guard()
        async def pay() -> None:
            RAN.append(1)

        answers = [asyncio.run(post(app, path)) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert "X-Idempotency-Unprotected" not in answers[1].headers
    assert RAN == [1, 1]
    asyncio.run(start(app))


def test_fastapi_unserved_functions_may_be_allowed_but_not_the_wrong_order() -> None:
    app, idempotency = fastapi(unserved="allow")
    kept: list[Any] = [idempotency.guard()(lambda: None)]
    asyncio.run(start(app))
    router = APIRouter()

    @router.post("/pay")
    async def pay() -> None: ...

    kept += [idempotency.guard()(pay)]
    app.include_router(router)
    assert_refused(app, "pay", "bare function")
    with pytest.raises(ConfigurationError, match="unserved"):
        fastapi(unserved="maybe")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "CHARGE"])
def test_fastapi_guards_every_unsafe_method(method: str) -> None:
    app, idempotency = fastapi()

    @app.api_route("/pay", methods=["POST", method])
    @idempotency.guard()
    async def pay() -> None:
        RAN.append(1)

    async def ask() -> list[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            asked = [await client.request(method, "/pay", headers=h) for h in (KEY, KEY, {})]
        return [answer.status_code for answer in asked]

    RAN.clear()
    assert asyncio.run(ask()) == [200, 200, 400]
    assert RAN == [1]


def test_fastapi_a_guard_on_a_class_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="class"):
        fastapi()[1].guard()(FastAPI)
