"""One app in every framework that refuses some requests by itself, and clients that send to it.

An app notes in `RAN` which of its handlers ran. Must not know what is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import httpx
from fastapi import Depends, FastAPI, HTTPException, UploadFile
from fastapi import Request as FastAPIRequest
from fastapi.exceptions import RequestValidationError
from flask import Flask, abort, request
from litestar import Litestar, post
from litestar import Request as LitestarRequest
from litestar.enums import RequestEncodingType
from litestar.exceptions import (
    NotFoundException,
    ValidationException,
)
from litestar.params import Body, JSONBody, RawBody
from pydantic import BaseModel
from quart import Quart
from quart import request as quart_request
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from werkzeug.test import Client

from oncekey import AsyncOnce, Once
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.fastapi import install
from oncekey.http.wsgi import IdempotencyWSGI

RAN: list[str] = []
Send = Callable[..., tuple[int, bool]]
BODY_LIMIT = 1_000


class Sent(NamedTuple):
    """A body that is no JSON."""

    type: str
    content: bytes


_FORM = "multipart/form-data; boundary=b"
_PART = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
MALFORMED = Sent(_FORM, b"--b\r\n@no header\r\n\r\n--b--\r\n")
UNBOUNDED = Sent("multipart/form-data", _PART + b"x\r\n--b--\r\n")
LARGE_FORM = Sent(_FORM, _PART + b"x" * BODY_LIMIT + b"\r\n--b--\r\n")
LARGE = Sent("application/json", b" " * BODY_LIMIT + b"{}")
NOT_UTF8 = Sent(_FORM, b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n\xff\r\n--b--\r\n')


class Order(BaseModel):
    cents: int


def ran(what: str) -> str:
    RAN.append(what)
    return what


# --- apps -----------------------------------------------------------------------------------------


def guarded(app: Any) -> Any:
    return IdempotencyMiddleware(app, AsyncOnce("memory://"), caller=lambda scope: "me")


def added(app: Any) -> Any:
    app.add_middleware(
        IdempotencyMiddleware, once=AsyncOnce("memory://"), caller=lambda scope: "me"
    )
    return app


def starlette() -> Any:
    async def pay(request: Any) -> Any:
        return PlainTextResponse(ran("pay"), 201)

    async def lost(request: Any) -> Any:
        ran("lost")
        raise HTTPException(404)

    async def own_upload(request: Any) -> Any:
        ran("own upload")
        return PlainTextResponse(str(await request.form()))

    class Reading(HTTPEndpoint):
        async def get(self, request: Any) -> Any: ...

    async def page(request: Any, error: Any) -> Any:
        if request.url.path != "/legacy":
            return PlainTextResponse("", error.status_code)
        return PlainTextResponse(ran("legacy"), 200)  # a handler of its own kind

    routes = [
        Route("/pay", pay, methods=["POST"]),
        Route("/lost", lost, methods=["POST"]),
        Route("/own-upload", own_upload, methods=["POST"]),
        Route("/limited", own_upload, methods=["POST"], max_body_size=BODY_LIMIT),
        Route("/read", pay, methods=["GET"]),
        Route("/reading", Reading),
    ]
    inner = Mount("/in", app=Starlette(routes=routes))
    return Starlette(
        routes=[*routes, inner], exception_handlers={404: page}, max_body_size=2 * BODY_LIMIT
    )


async def passing(request: Any, call_next: Any) -> Any:
    return await call_next(request)


def starlette_inside() -> Any:
    app = starlette()
    app.add_middleware(BaseHTTPMiddleware, dispatch=passing)  # another task between it and us
    return guarded(app)


def fastapi() -> Any:
    app = FastAPI()

    def known(id: int) -> int:
        if id > 1:
            raise HTTPException(404, "a dependency does not know it")
        return id

    @app.post("/pay", status_code=201)
    async def pay(order: Order) -> str:
        return ran("pay")

    @app.post("/items/{id}")
    def item(id: int = Depends(known)) -> str:
        return ran("item")

    @app.post("/upload")
    def upload(file: UploadFile) -> str:
        return ran("upload")

    @app.post("/own-upload")
    async def own_upload(request: FastAPIRequest) -> str:
        ran("own upload")
        return str(await request.form())

    @app.post("/lost")
    async def lost() -> None:
        ran("lost")
        raise HTTPException(404)

    @app.post("/invalid")
    def invalid() -> None:
        ran("invalid")
        raise RequestValidationError([])

    @app.exception_handler(RequestValidationError)
    def refuse(request: Any, error: Any) -> Any:
        return PlainTextResponse("our own form", 422)

    app.get("/read")(pay)
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=BODY_LIMIT)
    return app


def fastapi_installed() -> Any:
    app = fastapi()
    install(app, AsyncOnce("memory://"), caller=lambda scope: "me")
    return app


def litestar() -> Any:
    @post("/pay")
    async def pay(data: JSONBody[dict[str, int]]) -> str:
        return ran("pay")

    @post("/lost")
    async def lost() -> None:
        ran("lost")
        raise NotFoundException

    @post("/invalid")
    async def invalid() -> None:
        ran("invalid")
        raise ValidationException("of the handler's own")

    @post("/upload")
    async def upload(
        data: Annotated[dict[str, str], Body(media_type=RequestEncodingType.MULTI_PART)],
    ) -> str:
        return ran("upload")

    @post("/own-upload")
    async def own_upload(request: LitestarRequest[Any, Any, Any]) -> str:
        ran("own upload")
        return str(await request.form())

    @post("/raw")
    async def raw(body: RawBody) -> str:
        return ran("raw")

    return Litestar(
        [pay, lost, invalid, upload, own_upload, raw],
        openapi_config=None,
        logging_config=None,
        request_max_body_size=BODY_LIMIT,
    )


def views(app: Any) -> Any:
    """Flask's and Quart's."""

    def pay() -> Any:
        return ran("pay"), 201

    def lost() -> Any:
        ran("lost")
        abort(404)

    def own_upload() -> Any:
        ran("own upload")
        return request.form["file"]

    async def own_quart_upload() -> Any:
        ran("own upload")
        return (await quart_request.form)["file"]

    def page(error: Any) -> Any:
        is_legacy = (request if isinstance(app, Flask) else quart_request).path == "/legacy"
        return (ran("legacy"), 200) if is_legacy else ("", 404)

    app.register_error_handler(404, page)
    app.add_url_rule("/pay", "pay", pay, methods=["POST"])
    app.add_url_rule("/lost", "lost", lost, methods=["POST"])
    app.add_url_rule("/read", "read", pay, methods=["GET"])
    view = own_upload if isinstance(app, Flask) else own_quart_upload
    app.add_url_rule("/own-upload", "own_upload", view, methods=["POST"])
    app.config["MAX_CONTENT_LENGTH"] = BODY_LIMIT
    return app


def request_parts(key: str, body: Any) -> dict[str, Any]:
    """The arguments of an httpx request with this key and body."""
    headers = {"Idempotency-Key": key}
    if not isinstance(body, Sent):
        return {"json": body, "headers": headers}
    return {"content": body.content, "headers": {**headers, "Content-Type": body.type}}


def sender_to_asgi(app: Any) -> Send:
    def send(path: str, key: str, body: Any = None) -> tuple[int, bool]:
        async def main() -> Any:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.post(path, **request_parts(key, body))

        response = asyncio.run(main())
        return response.status_code, "x-idempotency-replayed" in response.headers

    return send


def sender_to_wsgi(app: Any) -> Send:
    client = Client(IdempotencyWSGI(app, Once("memory://"), caller=lambda environ: "me"))

    def send(path: str, key: str, body: Any = None) -> tuple[int, bool]:
        parts = request_parts(key, body)
        if "content" in parts:
            parts["data"] = parts.pop("content")
        response = client.post(path, buffered=True, **parts)
        return response.status_code, "X-Idempotency-Replayed" in response.headers

    return send


APPS: dict[str, Callable[[], Send]] = {
    "starlette": lambda: sender_to_asgi(guarded(starlette())),
    "starlette-added": lambda: sender_to_asgi(added(starlette())),
    "starlette-inside": lambda: sender_to_asgi(starlette_inside()),
    "fastapi": lambda: sender_to_asgi(guarded(fastapi())),
    "fastapi-added": lambda: sender_to_asgi(added(fastapi())),
    "fastapi-installed": lambda: sender_to_asgi(fastapi_installed()),
    "litestar": lambda: sender_to_asgi(guarded(litestar())),
    "quart": lambda: sender_to_asgi(guarded(views(Quart("x")))),
    "flask": lambda: sender_to_wsgi(views(Flask("x"))),
}
