"""The same guarded routes in every framework: an ASGI and a WSGI app that pass each request on to
the framework that its X-App header names, with the path as the server passes it.

A response with `RAN` shows that the handler was reached.
"""

from __future__ import annotations

import os
from typing import Any

from fastapi import FastAPI
from flask import Flask
from litestar import Litestar, post
from quart import Quart
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from oncekey import AsyncOnce, Once
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.flask import Idempotency
from oncekey.http.rules import Rule

RAN = "the handler ran"
RULES = [Rule("/pay"), Rule("/items/{id}/refund"), Rule("/refunds"), Rule("/v1/*")]
ROUTES = ("/pay", "/items/{id}/refund", "/refunds")


async def ran(*args: Any, **values: Any) -> Any:
    return PlainTextResponse(RAN)


def starlette() -> Any:
    routes = [Route(path, ran, methods=["POST"]) for path in ROUTES]
    return Starlette(routes=[*routes, Mount("/v1", routes=list(routes))])


def fastapi() -> Any:
    app = FastAPI()

    async def pay() -> str:
        return RAN

    async def refund(id: str) -> str:
        return RAN

    for path in ROUTES:
        app.post(path)(refund if "{" in path else pay)
    return app


def litestar() -> Any:
    @post([path.replace("{id}", "{id:str}") for path in ROUTES])
    async def pay() -> str:
        return RAN

    return Litestar([pay], openapi_config=None)


def add_routes(app: Any) -> Any:
    """Add the routes to an app of Flask or Quart."""
    for path in ROUTES:
        view = (lambda id="": RAN) if app.__class__ is Flask else _quart_view
        app.add_url_rule(
            path.replace("{id}", "<id>"), path[1:].replace("/", "-"), view, methods=["POST"]
        )
    return app


async def _quart_view(id: str = "") -> str:
    return RAN


def flask() -> Any:
    app = add_routes(Flask("spelled"))
    engine = Once("memory://")
    Idempotency(app, once=engine, caller=lambda environ: "me", rules=RULES)
    return app


def guarded(app: Any) -> Any:
    return IdempotencyMiddleware(
        app, AsyncOnce("memory://"), caller=lambda scope: "me", rules=RULES, close=False
    )


_asgi: dict[bytes, Any] = {
    b"starlette": guarded(starlette()),
    b"fastapi": guarded(fastapi()),
    b"litestar": guarded(litestar()),
    b"quart": guarded(add_routes(Quart("spelled"))),
}
_wsgi: dict[str, Any] = {"flask": flask()}
if os.environ.get("WITH_DJANGO"):  # its settings are a process's own
    from tests.http.apps import path_spellings_django

    _asgi[b"django"] = path_spellings_django.asgi
    _wsgi["django"] = path_spellings_django.wsgi


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await _asgi[dict(scope["headers"])[b"x-app"]](scope, receive, send)
        return
    for kind in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{kind}.complete"})


def wsgi(environ: Any, start_response: Any) -> Any:
    return _wsgi[environ["HTTP_X_APP"]](environ, start_response)
