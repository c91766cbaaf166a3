"""A response that no handler made frees its key; the response of a handler is stored.

A client whose request matched no route or did not validate can send it again under the same key. A
handler that did something and then responded with 404 or 422 never runs again.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import httpx
import pytest
from flask import Flask, abort, request
from litestar import Litestar, post
from litestar import Request as LitestarRequest
from litestar.exceptions import (
    ClientException,
    SerializationException,
)
from starlette.responses import PlainTextResponse
from tests.http.app_server import ServedApp, serve_app
from tests.http.refusing_apps import (
    APPS,
    LARGE,
    LARGE_FORM,
    MALFORMED,
    NOT_UTF8,
    RAN,
    UNBOUNDED,
    guarded,
    litestar,
    ran,
    sender_to_asgi,
    sender_to_wsgi,
)
from tests.support.servers import require
from tests.support.servers.http_servers import Gunicorn
from werkzeug.exceptions import BadRequest

from oncekey import Once
from oncekey.http.asgi import leave_unstored as leave_scope_unstored
from oncekey.http.flask import Idempotency, idempotent
from oncekey.http.wsgi import leave_unstored

# Framework, a path that it refuses by itself, its status; the body that it refuses.
REFUSED: list[tuple[str, str, int, Any]] = [
    *((name, "/nowhere", 404, None) for name in APPS),
    *((name, "/read", 405, None) for name in APPS if name != "litestar"),
    ("starlette", "/reading", 405, None),
    ("starlette", "/in/nowhere", 404, None),
    ("starlette", "/in/read", 405, None),
    ("litestar", "/pay", 400, "no object"),
    *((name, "/pay", 422, {"cents": "many"}) for name in APPS if name.startswith("fastapi")),
    *((name, "/items/7", 404, None) for name in APPS if name.startswith("fastapi")),
    *((name, "/upload", 400, MALFORMED) for name in APPS if name.startswith("fastapi")),
    *((name, "/upload", 400, UNBOUNDED) for name in APPS if name.startswith("fastapi")),
    *((name, "/upload", 413, LARGE_FORM) for name in APPS if name.startswith("fastapi")),
    *((name, "/pay", 413, LARGE) for name in APPS if name.startswith("fastapi")),
    ("litestar", "/upload", 400, MALFORMED),
    ("litestar", "/upload", 400, UNBOUNDED),
    ("litestar", "/upload", 413, LARGE_FORM),
    ("litestar", "/upload", 500, NOT_UTF8),
    ("litestar", "/pay", 413, LARGE),
    ("litestar", "/raw", 413, LARGE),
    ("starlette-added", "/limited", 413, LARGE_FORM),  # our middleware has read the body before
]
# Framework, a path whose handler runs, the status that is stored; the body.
HANDLED: list[tuple[str, str, int, Any]] = [
    *((name, "/lost", 404, None) for name in APPS),
    ("starlette", "/in/lost", 404, None),
    ("starlette", "/legacy", 200, None),
    ("flask", "/legacy", 200, None),
    ("quart", "/legacy", 200, None),
    *((name, "/invalid", 422, None) for name in APPS if name.startswith("fastapi")),
    ("litestar", "/invalid", 400, None),
    *((name, "/own-upload", 400, MALFORMED) for name in APPS),
    *((name, "/own-upload", 413, LARGE_FORM) for name in APPS if "starlette" not in name),
    ("starlette", "/limited", 413, LARGE_FORM),
]


@pytest.mark.parametrize(("name", "path", "status", "body"), REFUSED)
def test_response_that_no_handler_made_frees_the_key(
    name: str, path: str, status: int, body: Any
) -> None:
    send = APPS[name]()
    RAN.clear()
    assert [send(path, "k", body) for _ in range(2)] == [(status, False), (status, False)]
    assert RAN == []
    assert [send("/pay", "k", {"cents": 5}) for _ in range(2)] == [(201, False), (201, True)]
    assert RAN == ["pay"]


@pytest.mark.parametrize(("name", "path", "status", "body"), HANDLED)
def test_response_of_a_handler_is_stored(name: str, path: str, status: int, body: Any) -> None:
    send = APPS[name]()
    RAN.clear()
    assert [send(path, "k", body) for _ in range(2)] == [(status, False), (status, True)]
    assert len(RAN) == 1
    assert send("/pay", "k", {"cents": 5})[0] == 422


def test_malformed_json_frees_the_key_in_litestar() -> None:
    app = guarded(litestar())

    async def send(path: str, body: bytes) -> int:
        headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://x"
        ) as client:
            return (await client.post(path, content=body, headers=headers)).status_code

    RAN.clear()
    assert [asyncio.run(send("/pay", body)) for body in (b"{no", b"{no", b"{}")] == [400, 400, 201]
    assert RAN == ["pay"]


def test_litestar_handler_that_finds_malformed_json_itself_is_stored() -> None:
    @post("/own")
    async def own(request: LitestarRequest[Any, Any, Any]) -> Any:
        ran("own")
        try:
            return await request.json()
        except SerializationException as error:
            raise ClientException from error

    app = Litestar([own], openapi_config=None, logging_config=None)
    send = sender_to_asgi(guarded(app))
    RAN.clear()
    headers = {"Content-Type": "application/json", "Idempotency-Key": "k"}

    async def malformed() -> httpx.Response:
        transport = httpx.ASGITransport(guarded_app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.post("/own", content=b"{no", headers=headers)

    guarded_app = guarded(app)
    answers = [asyncio.run(malformed()) for _ in range(2)]
    assert ["x-idempotency-replayed" in one.headers for one in answers] == [False, True]
    assert RAN == ["own"]
    assert send("/own", "other", {})[0] == 201


def test_decorated_flask_view_may_say_that_it_did_nothing() -> None:
    """What it refuses by itself is stored else, because it may have done anything before."""
    app = Flask("x")
    Idempotency(app, once=Once("memory://"), caller=lambda: "me", close=False)

    @app.post("/pay")
    @idempotent()
    def pay() -> Any:
        ran("pay")
        try:
            return request.get_json(), 201
        except BadRequest:
            if "free" in request.args:
                leave_unstored(request)
            raise

    def send(path: str, key: str, body: str) -> tuple[int, bool]:
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        response = app.test_client().post(path, data=body, headers=headers, buffered=True)
        return response.status_code, "X-Idempotency-Replayed" in response.headers

    assert [send("/pay", "k", "{no") for _ in range(2)] == [(400, False), (400, True)]
    assert send("/pay", "k", "{}")[0] == 422
    assert [send("/pay?free", "f", "{no") for _ in range(2)] == [(400, False), (400, False)]
    assert [send("/pay", "f", "{}") for _ in range(2)] == [(201, False), (201, True)]


def test_validation_above_the_guard_of_a_flask_view_claims_nothing() -> None:
    app = Flask("x")
    Idempotency(app, once=Once("memory://"), caller=lambda: "me", close=False)

    def validated(view: Any) -> Any:
        @functools.wraps(view)
        def call() -> Any:
            if "cents" not in request.get_json():
                abort(400)
            return view()

        return call

    @app.post("/pay")
    @validated
    @idempotent()
    def pay() -> Any:
        return ran("pay"), 201

    client = app.test_client()
    RAN.clear()
    statuses = [
        client.post("/pay", json=body, headers={"Idempotency-Key": "k"}, buffered=True).status_code
        for body in ({}, {"cents": 5}, {"cents": 5}, {"cents": 6})
    ]
    assert (statuses, RAN) == ([400, 201, 201, 422], ["pay"])


def test_unknown_framework_stores_all_but_leave_unstored() -> None:
    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        if b"plain" not in scope["query_string"]:
            leave_scope_unstored(scope)
        await PlainTextResponse("", 404)(scope, receive, send)

    def wsgi(environ: Any, start_response: Any) -> list[bytes]:
        if "plain" not in environ["QUERY_STRING"]:
            leave_unstored(environ)
        start_response("404 Not Found", [])
        return [b""]

    for send in (sender_to_asgi(guarded(asgi)), sender_to_wsgi(wsgi)):
        assert [send("/x?plain", "k") for _ in range(2)] == [(404, False), (404, True)]
        assert [send("/x", "unstored") for _ in range(2)] == [(404, False), (404, False)]


# --- Django ---------------------------------------------------------------------------------------


def test_django_response_that_no_view_made_frees_the_key() -> None:
    require(lambda: Gunicorn("x:y"))
    env = {"GUARDED_KIND": "middleware"}
    with serve_app(Gunicorn, "tests.http.wsgi_apps.django_app:app", env=env) as app:
        for number, (path, status) in enumerate({"/nowhere": 404, "/reading": 405}.items()):
            key = f"k-{number}"
            assert [statuses(app, path, key) for _ in range(2)] == [(status, False)] * 2
            assert [statuses(app, "/charges", key) for _ in "12"] == [(201, False), (201, True)]
        assert app.effects() == 2
        assert [statuses(app, "/lost", "own") for _ in "12"] == [(404, False), (404, True)]
        assert app.effects("lost") == 1


def statuses(app: ServedApp, path: str, key: str) -> tuple[int, bool]:
    response = app.post(path, key, {"a": 1})
    return response.status, response.one("X-Idempotency-Replayed") == "true"
