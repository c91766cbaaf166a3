"""A dashboard that is mounted in a guarded app: its forms, which have no keys, reach it, and
nothing else gets past the guard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from tests.dashboard.served_dashboard import TOKEN

from oncekey import AsyncOnce
from oncekey.dashboard import Dashboard
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.fastapi import install


class Authenticating:
    """A middleware of the app around the dashboard alone."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


async def pay(request: Request) -> JSONResponse:
    return JSONResponse({"paid": True}, 201)


def _installed(once: AsyncOnce, dashboard: Any) -> Any:
    app = FastAPI()
    install(app, once, caller=lambda scope: None)
    app.add_route("/pay", pay, methods=["POST"])
    app.mount("/ops/keys", dashboard)
    return app


def _added(once: AsyncOnce, dashboard: Any) -> Any:
    guard = Middleware(IdempotencyMiddleware, once=once, caller=lambda scope: None)
    routes = [Route("/pay", pay, methods=["POST"]), Mount("/ops/keys", dashboard)]
    return Starlette(routes=routes, middleware=[guard])


def _around(once: AsyncOnce, dashboard: Any) -> Any:
    """The guard is outside of the app, and the dashboard two mounts inside."""
    inner = Mount("/ops", Starlette(routes=[Mount("/keys", Authenticating(dashboard))]))
    app = Starlette(routes=[Route("/pay", pay, methods=["POST"]), inner])
    return IdempotencyMiddleware(app, once, caller=lambda scope: None)


def posted(app: Any, path: str, data: dict[str, str], **headers: str) -> httpx.Response:
    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            return await client.post(path, data=data, headers=headers)

    return asyncio.run(main())


@pytest.fixture(params=[_installed, _added, _around])
def guarded_app(request: pytest.FixtureRequest) -> Any:
    make: Callable[[AsyncOnce, Any], Any] = request.param
    once = AsyncOnce("memory://")
    return make(once, Dashboard(once, token=TOKEN))


def test_the_forms_of_a_mounted_dashboard_need_no_key(guarded_app: Any) -> None:
    signed_in = posted(guarded_app, "/ops/keys/sign-in", {"token": TOKEN})
    assert signed_in.status_code == 303, signed_in.text
    assert signed_in.headers["location"] == "/ops/keys/"
    assert posted(guarded_app, "/ops/keys/sign-in", {"token": "wrong"}).status_code == 401
    assert posted(guarded_app, f"/ops/keys/keys/{'0' * 32}/decide", {}).status_code == 401


@pytest.mark.parametrize("path", ["/pay", "//pay", "/ops/keys/../../pay", "/ops/keyspace", "/ops"])
def test_every_other_path_beside_a_dashboard_stays_guarded(guarded_app: Any, path: str) -> None:
    refused = posted(guarded_app, path, {})
    assert refused.status_code == 401
    assert refused.json()["code"] == "unknown-caller"


def test_a_route_that_stands_before_the_dashboard_stays_guarded() -> None:
    once = AsyncOnce("memory://")
    taken = Route("/ops/{rest:path}", pay, methods=["POST"])
    app = Starlette(routes=[taken, Mount("/ops/keys", Dashboard(once, token=TOKEN))])
    guarded = IdempotencyMiddleware(app, once, caller=lambda scope: "me")
    refused = posted(guarded, "/ops/keys/sign-in", {"token": TOKEN})
    assert refused.status_code == 400
    assert refused.json()["code"] == "missing-key"


def test_a_form_that_carries_a_key_all_the_same_is_guarded(guarded_app: Any) -> None:
    refused = posted(guarded_app, "/ops/keys/sign-in", {"token": TOKEN}, **{"Idempotency-Key": "k"})
    assert refused.status_code == 401
    assert refused.json()["code"] == "unknown-caller"
