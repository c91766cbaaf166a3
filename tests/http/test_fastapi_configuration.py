"""Configuration errors of FastAPI's guard are raised early: at import, at startup, or before the
endpoint runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from tests.http.fastapi_set_up import KEY, attached, send, set_up

from oncekey import AsyncOnce, ConfigurationError, Once
from oncekey.http.fastapi import Idempotency, install


def test_a_set_up_without_caller_or_async_engine_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="caller="):
        Idempotency(AsyncOnce("memory://"))
    with pytest.raises(ConfigurationError, match="AsyncOnce"):
        Idempotency(Once("memory://"), caller=str)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="caller="):
        install(FastAPI(), AsyncOnce("memory://"), caller=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lease": "0s"}, "lease"),
        ({"ignore": "one"}, "list of names"),
        ({"transaction": str, "required": False}, "required=True"),
        ({"transaction": str, "store_down": "run"}, "store_down='refuse'"),
        ({"transaction": str, "retry_safe": False}, "retry_safe=True"),
        ({"transaction": Depends(str, scope="function")}, "scope='request'"),
    ],
)
def test_invalid_guard_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        set_up().guard(**options)


def test_generators_double_guards_and_get_routes_are_refused() -> None:
    app, idempotency = attached()

    async def parts() -> AsyncIterator[bytes]:
        yield b""

    async def read() -> None: ...

    with pytest.raises(ConfigurationError, match="StreamingResponse"):
        idempotency.guard()(parts)
    with pytest.raises(ConfigurationError, match="twice"):
        idempotency.guard()(idempotency.guard()(read))
    with pytest.raises(ConfigurationError, match="GET"):
        app.get("/read")(idempotency.guard()(read))


def test_a_guarded_endpoint_on_a_plain_route_is_an_error_and_never_runs() -> None:
    app, idempotency = FastAPI(), set_up()
    ran = []

    @app.post("/")
    @idempotency.guard()
    async def run() -> None:
        ran.append(1)

    with pytest.raises(ConfigurationError, match="attach"):
        send(app, KEY)
    with pytest.raises(ConfigurationError, match="before"):
        idempotency.attach(app)
    assert ran == []


def test_a_plain_router_that_is_included_later_is_an_error_at_startup() -> None:
    app, idempotency = attached()
    router = APIRouter()

    @router.post("/late")
    @idempotency.guard()
    async def late() -> None: ...

    app.include_router(router)

    async def start() -> None:
        async with app.router.lifespan_context(app):
            pass

    with pytest.raises(ConfigurationError, match="/late"):
        asyncio.run(start())
