"""A Starlette app behind the middleware, for tests over a socket.

Each effect is a line in a file, and a gated handler waits until the test opens its gate, see
app_server.py. The settings are in the environment, because a server imports the app.
"""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.http.apps.movable_clock import MovableClock

from oncekey import AsyncOnce, Policy
from oncekey.http.asgi import IdempotencyMiddleware, attempt_of, response_buffer
from oncekey.http.rules import Rule
from oncekey.stores.sqlite import AsyncSQLiteStore

FOLDER = Path(os.environ["GUARDED_FOLDER"])
STORE = os.environ.get("GUARDED_STORE") or f"sqlite:///{FOLDER}/keys.db"
CLOCK = MovableClock(FOLDER)
POLICY = Policy(lease="1m")
CALLERS = {"Bearer alice": "alice", "Bearer bob": "bob"}
POLL = 0.002
vars(response_buffer)["HOLD_MAX_BYTES"] = 4_000_000  # so that tests are quick


def engine() -> AsyncOnce:
    """An engine on the store that the test names, or on a file and a clock that the test moves."""
    if "GUARDED_STORE" in os.environ:
        return AsyncOnce(STORE, policy=POLICY)
    store = AsyncSQLiteStore(FOLDER / "keys.db", clock=CLOCK.wall)
    return AsyncOnce(store, policy=POLICY, clock=CLOCK)


def effect(name: str) -> int:
    """Add an effect; returns the number of effects so far."""
    with (FOLDER / "effects").open("a+") as ledger:
        ledger.write(name + "\n")
        ledger.flush()
        ledger.seek(0)
        return len(ledger.readlines())


async def gate(name: str) -> None:
    """Reach a gate, and wait until the test opens it."""
    (FOLDER / f"{name}.here").touch()
    while not (FOLDER / f"{name}.go").exists():  # noqa: ASYNC110, it is another process
        await asyncio.sleep(POLL)


async def charge(request: Request) -> Response:
    received = await request.json()
    number = effect("charge")
    headers = {"Location": f"/charges/{number}", "ETag": f'"{number}"', "X-Cost": "3", "X-No": "1"}
    return JSONResponse({"number": number, "received": received}, 201, headers)


async def gated(request: Request) -> Response:
    effect("gated")
    await gate("gated")
    return JSONResponse({"done": True}, headers={"Location": "/x"})


def blocking(request: Request) -> Response:
    return JSONResponse({"number": effect("blocking")})


async def status(request: Request) -> Response:
    code = int(request.path_params["code"])
    effect(f"status {code}")
    return Response(b"" if code == 204 else b"so be it", code, media_type="text/plain")


async def raises(request: Request) -> Response:
    effect("raises")
    raise ValueError("s3cret")


async def refuses(request: Request) -> Response:
    effect("refuses")
    raise HTTPException(409, "out of stock")


async def binary(request: Request) -> Response:
    effect("binary")
    return Response(bytes(range(256)) * 9, media_type="application/octet-stream")


async def large(request: Request) -> Response:
    effect("large")
    return Response(b"x" * int(request.path_params["size"]), media_type="text/plain")


async def long(request: Request) -> Response:
    effect("long")

    async def parts() -> AsyncIterator[bytes]:
        for number in range(100):
            if number == 67:  # the response buffer is full
                await gate("long")
            yield b"x" * 60_000

    return StreamingResponse(parts(), media_type="text/plain")


async def stream(request: Request) -> Response:
    effect("stream")

    async def parts() -> AsyncIterator[bytes]:
        for number in range(50):
            if number == 25 and "gated" in request.query_params:
                await gate("stream")
            yield b"part %d\n" % number

    return StreamingResponse(parts(), media_type="text/plain")


async def background(request: Request) -> Response:
    effect("background")
    return JSONResponse({"done": True}, background=BackgroundTask(_afterwards))


async def _afterwards() -> None:
    await gate("afterwards")
    effect("afterwards")


async def cookies(request: Request) -> Response:
    effect("cookies")
    response = JSONResponse({"done": True})
    response.set_cookie("a", "1")
    response.set_cookie("b", "2")
    return response


async def read(request: Request) -> Response:
    """A stream that must pass untouched."""

    async def parts() -> AsyncIterator[bytes]:
        for number in range(5):
            yield b"%d\n" % number

    return StreamingResponse(parts(), media_type="text/plain")


async def upload(request: Request) -> Response:
    effect("upload")
    body = await request.body()
    if request.headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    return JSONResponse({"bytes": len(body)})


async def attempt(request: Request) -> Response:
    running = attempt_of(request)
    assert running is not None
    return JSONResponse({"fence": running.fence, "child": running.child_key("pay")})


ROUTES = [
    Route("/charges", charge, methods=["POST", "PUT"]),
    Route("/other", charge, methods=["POST"]),
    Route("/optional", charge, methods=["POST"]),
    Route("/gated", gated, methods=["POST"]),
    Route("/waiting", gated, methods=["POST"]),
    Route("/short", charge, methods=["POST"]),
    Route("/blocking", blocking, methods=["POST"]),
    Route("/status/{code}", status, methods=["POST"]),
    Route("/safe/{code}", status, methods=["POST"]),
    Route("/raises", raises, methods=["POST"]),
    Route("/refuses", refuses, methods=["POST"]),
    Route("/binary", binary, methods=["POST"]),
    Route("/large/{size}", large, methods=["POST"]),
    Route("/long", long, methods=["POST"]),
    Route("/stream", stream, methods=["POST"]),
    Route("/background", background, methods=["POST"]),
    Route("/cookies", cookies, methods=["POST"]),
    Route("/read", read, methods=["GET"]),
    Route("/upload", upload, methods=["POST"]),
    Route("/attempt", attempt, methods=["POST"]),
]
RULES = [
    Rule("/optional", required=False),
    Rule("/waiting", wait="2m"),
    Rule("/short", keep="1h", audit="0s"),
    Rule("/safe/{code}", retry_safe=True),
    Rule("/upload", max_request=10_000),
    Rule("/large/{size}", max_response=3_000_000),
    Rule("*", headers=["X-Cost", "Set-Cookie"]),
]


def caller(scope: Any) -> str | None:
    sent = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    return CALLERS.get(sent)


class _Passing(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        response.headers["X-Passed"] = "1"
        return response


def make(
    *,
    between_middleware: bool = False,
    compressed: bool = False,
    wrapped: Any = None,
    routes: list[Route] = ROUTES,
    rules: list[Rule] = RULES,
) -> Starlette:
    """Make the app. With `between_middleware` another middleware stands outside of the guard and
    one inside; `wrapped` is one more, next to the app."""
    app = Starlette(routes=routes)
    if wrapped is not None:
        app.add_middleware(wrapped)
    if between_middleware:
        app.add_middleware(_Passing)
    app.add_middleware(
        IdempotencyMiddleware,
        once=engine(),
        caller=caller,
        rules=rules,
        policy_url="/policy",
    )
    if between_middleware:
        app.add_middleware(_Passing)
    if compressed:
        app.add_middleware(GZipMiddleware, minimum_size=10)
    return app


app = make()
between_middleware = (
    make(between_middleware=True) if os.environ.get("GUARDED_KIND") == "within" else app
)
compressed = make(compressed=True) if os.environ.get("GUARDED_KIND") == "compressed" else app
