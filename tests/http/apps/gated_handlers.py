"""Handlers of every kind behind the middleware, each of which waits at a gate.

`?name=` names the effects and the gate of one request, so that requests are independent. A layer
outside of the middleware logs when each call begins and ends: a server has noticed its client's
disconnect by then. GATED_KIND chooses the layers around the handlers: "bare" has no lifespan.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.http.apps.call_log import CallLog, Receive, Send
from tests.http.apps.starlette_app import FOLDER, POLL, effect, gate, make

from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.rules import Rule

PARTS = 60
PART = b"a part of it, and not the last one\n" * 30


async def reach_gate(request: Request) -> str:
    """Add the effect and wait at the gate; returns the name of the request."""
    name = request.query_params["name"]
    effect(name)
    await gate(name)
    return name


async def plain(request: Request) -> Response:
    await reach_gate(request)
    return JSONResponse({"done": True}, 201, headers={"Location": "/x"})


async def large(request: Request) -> Response:
    """A response too long to be kept in memory."""
    await reach_gate(request)
    return Response(PART * PARTS * 20, media_type="text/plain")


def thread(request: Request) -> Response:
    name = request.query_params["name"]
    effect(name)
    (FOLDER / f"{name}.here").touch()
    while not (FOLDER / f"{name}.go").exists():
        time.sleep(POLL)
    return JSONResponse({"done": "in a thread"})


async def stream(request: Request) -> Response:
    """A response with the gate in its middle."""
    name = request.query_params["name"]
    effect(name)

    async def parts() -> AsyncIterator[bytes]:
        for number in range(PARTS):
            if number == PARTS // 2:
                await gate(name)
            yield b"%d " % number + PART

    return StreamingResponse(parts(), media_type="text/plain")


async def endless(request: Request) -> Response:
    """A response too long to be buffered: its first half is sent while the gate is closed."""
    name = request.query_params["name"]
    effect(name)

    async def parts() -> AsyncIterator[bytes]:
        for number in range(100):
            if number == 67:
                await gate(name)
            yield b"x" * 60_000
        effect(f"{name} sent all")

    return StreamingResponse(parts(), media_type="text/plain")


async def background(request: Request) -> Response:
    name = await reach_gate(request)

    async def afterwards() -> None:
        await gate(f"{name}-after")
        effect(f"{name}-after")

    return JSONResponse({"done": "soon"}, 202, background=BackgroundTask(afterwards))


async def raises(request: Request) -> Response:
    await reach_gate(request)
    raise ValueError("s3cret")


async def refuses(request: Request) -> Response:
    await reach_gate(request)
    raise HTTPException(402, "no money")


async def unprotected(request: Request) -> Response:
    layer: Any = request.app.middleware_stack
    while not isinstance(layer, IdempotencyMiddleware):
        layer = layer.app
    return JSONResponse(layer.unprotected)


HANDLERS = (plain, large, thread, stream, endless, background, raises, refuses)
ROUTES = [Route(f"/{handler.__name__}", handler, methods=["POST"]) for handler in HANDLERS]
ROUTES += [
    Route("/small", plain, methods=["POST"]),
    Route("/risky", plain, methods=["POST"]),
    Route("/unprotected", unprotected, methods=["GET"]),
]
RULES = [
    Rule("/small", max_request=1_000),
    Rule("/risky", store_down="run"),
    Rule("*", max_response=3_000_000),
]


class WithoutLifespan:
    """An app that raises for unknown scope types, as ASGI demands. No coroutine of its own waits
    for the app, so that nothing of its own can follow a background task."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def __call__(self, scope: Any, receive: Receive, send: Send) -> Any:
        if scope["type"] != "http":
            raise ValueError(f"{scope['type']} is not known here")
        return self.app(scope, receive, send)


kind = os.environ.get("GATED_KIND", "")
app = CallLog(
    make(
        between_middleware=kind == "within",
        compressed=kind == "compressed",
        wrapped=WithoutLifespan if kind == "bare" else None,
        routes=ROUTES,
        rules=RULES,
    )
)
