"""An app that starts several times in one process: a test client per test, Mangum, two at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from oncekey import AsyncOnce, ConfigurationError, StoreUnavailable
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.fastapi import Idempotency
from oncekey.stores.memory import AsyncMemoryStore
from oncekey.stores.sqlite import AsyncSQLiteStore

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it wants another release of its HTTP library
    from starlette.testclient import TestClient


class Shop:
    """An app of one framework, and how often it has charged."""

    def __init__(self, once: AsyncOnce, build: Callable[[Shop], Any]) -> None:
        self.once = once
        self.charged = 0
        self.app = build(self)

    def charge(self) -> int:
        self.charged += 1
        return self.charged


def starlette(shop: Shop) -> Any:
    async def charge(request: Any) -> JSONResponse:
        return JSONResponse({"charge": shop.charge()})

    app = Starlette(routes=[Route("/charges", charge, methods=["POST"])])
    app.add_middleware(IdempotencyMiddleware, once=shop.once, caller=lambda scope: "acct")
    return app


def fastapi(shop: Shop) -> Any:
    app = FastAPI()
    idempotency = Idempotency(shop.once, caller=lambda request: "acct")
    idempotency.attach(app)

    @app.post("/charges")
    @idempotency.guard()
    async def charge() -> dict[str, int]:
        return {"charge": shop.charge()}

    return app


def post(client: TestClient, key: str = "k-1") -> Any:
    return client.post("/charges", headers={"Idempotency-Key": key})


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/shop.db"


@pytest.mark.parametrize("build", [starlette, fastapi])
def test_an_app_that_starts_again_replays_and_runs(url: str, build: Callable[[Shop], Any]) -> None:
    shop = Shop(AsyncOnce(url), build)
    for lifespan in range(3):
        with TestClient(shop.app) as client:
            assert post(client).json() == {"charge": 1}
            assert post(client).headers["X-Idempotency-Replayed"] == "true"
            assert post(client, f"new-{lifespan}").json() == {"charge": 2 + lifespan}


@pytest.mark.parametrize("build", [starlette, fastapi])
def test_an_app_that_has_ended_answers_500(url: str, build: Callable[[Shop], Any]) -> None:
    shop = Shop(AsyncOnce(url), build)
    with TestClient(shop.app) as client:
        assert post(client).json() == {"charge": 1}
    late = TestClient(shop.app)  # no lifespan: nothing has opened the engine again
    for key in ("k-1", "k-2"):
        with pytest.raises(StoreUnavailable, match="was closed"):
            post(late, key)
    silent = TestClient(shop.app, raise_server_exceptions=False)
    assert post(silent).status_code == 500, "and no 503 that asks to be tried again for ever"
    assert shop.charged == 1


@pytest.mark.parametrize("build", [starlette, fastapi])
def test_the_last_of_two_lifespans_closes_the_engine(
    url: str, build: Callable[[Shop], Any]
) -> None:
    shop = Shop(AsyncOnce(url), build)
    with TestClient(shop.app) as outer:
        with TestClient(shop.app) as inner:
            assert post(inner).json() == {"charge": 1}
        assert post(outer).headers["X-Idempotency-Replayed"] == "true"
        assert post(outer, "k-2").json() == {"charge": 2}
    with pytest.raises(StoreUnavailable, match="was closed"):
        post(TestClient(shop.app))


class NotReopenable(AsyncMemoryStore):
    """A store that cannot be opened again."""

    reopen = None  # type: ignore[assignment]


@pytest.mark.parametrize("build", [starlette, fastapi])
def test_a_store_that_cannot_be_reopened_fails_the_startup(build: Callable[[Shop], Any]) -> None:
    shop = Shop(AsyncOnce(NotReopenable()), build)
    with TestClient(shop.app) as client:
        post(client)
    with pytest.raises(ConfigurationError, match="cannot be opened again"), TestClient(shop.app):
        pass


@pytest.mark.parametrize("build", [starlette, fastapi])
def test_a_store_object_is_reopened_too(tmp_path: Path, build: Callable[[Shop], Any]) -> None:
    shop = Shop(AsyncOnce(AsyncSQLiteStore(tmp_path / "shop.db")), build)
    for _ in range(2):
        with TestClient(shop.app) as client:
            assert post(client).json() == {"charge": 1}
