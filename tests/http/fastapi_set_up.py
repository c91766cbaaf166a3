"""FastAPI apps with guarded routes that are called in process, without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from fastapi import FastAPI, Request

from oncekey import AsyncOnce
from oncekey.http.fastapi import Idempotency, install
from oncekey.http.rules import Rule

KEY = {"Idempotency-Key": "k"}
GUARDS = ["guard", "install", "install behind http middleware"]


def set_up(**options: Any) -> Idempotency:
    return Idempotency(AsyncOnce("memory://"), **{"caller": lambda request: "acct", **options})


def attached(**options: Any) -> tuple[FastAPI, Idempotency]:
    app, idempotency = FastAPI(), set_up(**options)
    idempotency.attach(app)
    return app, idempotency


def send(
    app: FastAPI, *headers: dict[str, str], method: str = "POST", path: str = "/"
) -> list[Any]:
    """Send one request with each of these headers, without a socket. Raises the app's errors."""

    async def main() -> list[Any]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return [await client.request(method, path, headers=each) for each in headers]

    return asyncio.run(main())


class GuardedApp:
    """A FastAPI app that is guarded in one of three ways. `post` decorates an endpoint."""

    def __init__(self, how: str, **options: Any) -> None:
        self.app = FastAPI()
        self._how, self._options = how, options
        once = AsyncOnce("memory://")
        if how == "guard":
            self._idempotency = Idempotency(once, caller=lambda request: "me")
            self._idempotency.attach(self.app)
            return
        if how == "install behind http middleware":

            @self.app.middleware("http")
            async def pass_on(request: Request, call_next: Any) -> Any:
                return await call_next(request)

        install(self.app, once, caller=lambda scope: "me", rules=[Rule(**options)])

    def post(self, endpoint: Any) -> Any:
        if self._how == "guard":
            endpoint = self._idempotency.guard(**self._options)(endpoint)
        return self.app.post("/orders", status_code=201)(endpoint)
