"""The OpenAPI document of guarded routes and of an app behind the middleware, and what `install`
adds to that app."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse
from pydantic import BaseModel
from tests.http.app_server import ALICE, ServedApp, serve_app
from tests.http.fastapi_set_up import attached, send
from tests.http.socket_client import Response
from tests.support.servers import require
from tests.support.servers.http_servers import Uvicorn


class Item(BaseModel):
    name: str


def _document() -> Any:
    app, idempotency = attached()

    @app.post("/items", status_code=201)
    @idempotency.guard()
    async def add(item: Item, request: Request) -> Item:
        """Add an item."""
        return item

    @app.post("/maybe", openapi_extra={"x-own": 1, "parameters": [{"in": "query", "name": "q"}]})
    @idempotency.guard(required=False)
    async def maybe() -> None: ...

    @app.post("/move", response_class=RedirectResponse)
    @idempotency.guard()
    async def move() -> str:
        return "/"

    @app.post("/open")
    async def unguarded(item: Item) -> None: ...

    router = APIRouter(route_class=idempotency.route())

    @router.patch("/items")
    async def change(item: Item) -> None: ...

    outer = APIRouter()
    outer.include_router(router, prefix="/b")
    app.include_router(outer, prefix="/a")
    return send(app, {}, method="GET", path="/openapi.json")[0].json()["paths"]


def test_the_document_describes_the_key_and_its_refusals() -> None:
    paths = _document()
    added = paths["/items"]["post"]
    (key,) = added["parameters"]
    assert (key["name"], key["in"], key["required"]) == ("Idempotency-Key", "header", True)
    assert key["schema"] == {"type": "string", "minLength": 1, "maxLength": 255}
    assert added["description"] == "Add an item."
    assert set(added["responses"]) == {"201", "400", "409", "422", "503"}
    for status in ("400", "409", "422", "503"):
        response = added["responses"][status]
        schema = response["content"]["application/problem+json"]["schema"]
        assert {"type", "title", "status", "retryable"} <= set(schema["properties"])
        assert ("Retry-After" in response.get("headers", {})) == (status in ("409", "503"))
        assert response["description"]
    assert "application/json" in added["responses"]["422"]["content"], "FastAPI's own stays"
    headers = added["responses"]["201"]["headers"]
    assert set(headers) == {"X-Idempotency-Replayed", "X-Idempotency-Retention"}
    assert "schema" in added["responses"]["201"]["content"]["application/json"]


def test_the_document_of_optional_redirecting_unguarded_and_nested_routes() -> None:
    paths = _document()
    names = [(p["name"], p.get("required")) for p in paths["/maybe"]["post"]["parameters"]]
    assert names == [("q", None), ("Idempotency-Key", False)]
    assert paths["/maybe"]["post"]["x-own"] == 1
    assert set(paths["/move"]["post"]["responses"]) == {"307", "400", "409", "422", "503"}
    assert set(paths["/open"]["post"]["responses"]) == {"200", "422"}
    inner = paths["/a/b/items"]["patch"]
    assert [p["name"] for p in inner["parameters"]] == ["Idempotency-Key"]
    assert "409" in inner["responses"]


# --- an app behind the middleware ------------------------------------------------------------


@pytest.fixture(scope="module")
def app() -> Iterator[ServedApp]:
    require(lambda: Uvicorn("x:y"))
    with serve_app(Uvicorn, "tests.http.fastapi_apps.behind_middleware:app") as served:
        yield served


def test_a_request_that_fails_validation_behind_the_middleware_frees_its_key(
    app: ServedApp,
) -> None:
    bad = app.post("/charges", "first", {"cents": "many"})
    assert (bad.status, bad.body) == (422, b'{"own":"handler"}')
    good = [app.post("/charges", "first", {"cents": 5}) for _ in range(2)]
    assert [answer.status for answer in good] == [201, 201]
    assert good[1].one("X-Idempotency-Replayed") == "true"
    assert app.effects("charge") == 1


def test_a_422_of_a_handler_behind_the_middleware_is_stored(app: ServedApp) -> None:
    for _ in range(2):
        answer: Response = app.post("/notes/1", "second")
        assert (answer.status, answer.body) == (422, b"handler's own")
    assert app.effects("note") == 1


def test_the_document_of_an_app_behind_the_middleware(app: ServedApp) -> None:
    with app.connect() as connection:
        document = [
            json.loads(connection.request("GET", "/openapi.json", [ALICE]).body) for _ in range(2)
        ]
    assert document[0] == document[1]
    paths = document[0]["paths"]
    charge, note, refused = (paths[p]["post"] for p in ("/charges", "/notes/{id}", "/refused"))
    assert [p["name"] for p in charge["parameters"]] == ["Idempotency-Key"]
    assert {"201", "400", "409", "422", "503"} == set(charge["responses"])
    assert "X-Idempotency-Replayed" in charge["responses"]["201"]["headers"]
    assert [(p["name"], p["required"]) for p in note["parameters"]][-1] == (
        "Idempotency-Key",
        False,
    )
    assert "parameters" not in refused
