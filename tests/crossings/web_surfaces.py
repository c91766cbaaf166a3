"""The surfaces of the web: the same app in every framework, called in the test's own process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
from fastapi import Depends, FastAPI, Request
from flask import Flask, request
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from tests.crossings.rows import INSERT
from tests.crossings.shop import Answer
from tests.crossings.surfaces import Surface, answer_of

from oncekey import StoreUnavailable
from oncekey.http.asgi import IdempotencyMiddleware
from oncekey.http.fastapi import Idempotency
from oncekey.http.flask import Idempotency as FlaskIdempotency
from oncekey.http.flask import idempotent
from oncekey.http.rules import Rule
from oncekey.http.wsgi import IdempotencyWSGI

_KINDS = {"key-reused": "mismatch", "outcome-unknown": "unknown", "failed": "failed"}


class WebSurface(Surface):
    """An app in process. `self.send` gives the status, the headers and the body of a response."""

    operation = "http"
    scope = "me"

    def call(self, key: str, cents: int) -> Answer:
        body = json.dumps({"request": [key, cents]}).encode()
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        try:
            response = self.send(headers, body)
        except BaseException as error:
            return answer_of(error)
        if response.status_code == 201:
            return Answer("done", (201, response.content))
        problem = response.json()
        code = problem.get("code")
        if code in _KINDS:
            return Answer(_KINDS[code])
        assert response.status_code == StoreUnavailable.status, response.text
        return Answer("refused", error=StoreUnavailable(response.text))

    def send(self, headers: dict[str, str], body: bytes) -> httpx.Response:
        raise NotImplementedError

    def rule(self) -> Rule:
        return Rule(**self.options)

    def charge(self, body: bytes) -> bytes:
        return json.dumps(self.shop.charge(*json.loads(body)["request"])).encode()


class AsgiSurface(WebSurface):
    def set_up(self) -> None:
        self._app: Any = IdempotencyMiddleware(
            self._serve, self.once, caller=lambda scope: "me", rules=[self.rule()], close=False
        )

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        body = self.charge((await receive())["body"])
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": body})

    def send(self, headers: dict[str, str], body: bytes) -> httpx.Response:
        async def post() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                return await client.post("/charges", content=body, headers=headers)

        response: httpx.Response = self.wait(post())
        return response


class FastApiSurface(AsgiSurface):
    def set_up(self) -> None:
        app = FastAPI()
        guarded = Idempotency(self.once, caller=lambda request: "me", close=False)
        guarded.attach(app)
        self._app = app
        self._engine: Any = None
        if self.rows is not None:
            self._serve_rows(app, guarded)
            return

        @app.post("/charges", status_code=201)
        @guarded.guard(**self.options)
        async def charge(request: Request) -> Any:
            return self.shop.charge(*(await request.json())["request"])

    def _serve_rows(self, app: FastAPI, guarded: Idempotency) -> None:
        assert self.rows is not None
        engine = create_async_engine(self.rows.alchemy)
        self._engine = engine

        async def session() -> AsyncIterator[AsyncSession]:
            async with AsyncSession(engine) as made:
                yield made

        @app.post("/charges", status_code=201)
        @guarded.guard(transaction=session, **self.options)
        async def charge(request: Request, db: AsyncSession = Depends(session)) -> Any:  # noqa: B008
            key, cents = (await request.json())["request"]
            self.shop.count_run(key)
            await db.execute(text(INSERT.format(key=key)))
            return self.shop.end(key, cents)

    def close(self) -> None:
        if self._engine is not None:
            self.wait(self._engine.dispose())


class WsgiSurface(WebSurface):
    def set_up(self) -> None:
        self._app: Any = IdempotencyWSGI(
            self._serve, self.once, caller=lambda environ: "me", rules=[self.rule()], close=False
        )

    def _serve(self, environ: Any, start_response: Any) -> Any:
        body = self.charge(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        start_response("201 Created", [])
        return [body]

    def send(self, headers: dict[str, str], body: bytes) -> httpx.Response:
        transport = httpx.WSGITransport(self._app)
        with httpx.Client(transport=transport, base_url="http://shop") as client:
            return client.post("/charges", content=body, headers=headers)


class FlaskSurface(WsgiSurface):
    def set_up(self) -> None:
        app = Flask("shop")
        app.testing = True  # so that what a view raises is not made a page
        FlaskIdempotency(app, once=self.once, caller=lambda: "me", close=False)

        @app.post("/charges")
        @idempotent(**self.options)
        def charge() -> Any:
            return self.shop.charge(*request.json["request"]), 201

        self._app = app


class DjangoSurface(WsgiSurface):
    def set_up(self) -> None:
        from tests.crossings.django_project import DjangoProject

        self._project = DjangoProject(self)
        self._app = self._project.app

    def close(self) -> None:
        self._project.close()
