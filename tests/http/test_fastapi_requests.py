"""FastAPI endpoints of the odder kinds, in one process."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from fastapi import FastAPI, Request

from oncekey import AsyncOnce
from oncekey.http.fastapi import Idempotency, install


async def _asked(app: FastAPI, times: int = 2, **more: Any) -> list[httpx.Response]:
    headers = {"Idempotency-Key": "k"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        return [await client.post("/charges", headers=headers, **more) for _ in range(times)]


def _caller(request: Request) -> str:
    return "me"


def test_an_endpoint_may_ask_for_the_request_itself() -> None:
    async def scene() -> None:
        guard, app = Idempotency(AsyncOnce("memory://"), caller=_caller), FastAPI()
        guard.attach(app)
        runs = []

        @app.post("/charges")
        @guard.guard()
        async def charge(request: Request, cents: int) -> dict[str, Any]:
            runs.append(request.url.path)
            return {"path": request.url.path, "cents": cents}

        first, again = await _asked(app, params={"cents": 5})
        assert first.json() == {"path": "/charges", "cents": 5}
        assert again.content == first.content
        assert again.headers["x-idempotency-replayed"] == "true"
        assert runs == ["/charges"]

    asyncio.run(scene())


def test_a_guarded_route_in_a_guarded_app_is_guarded_once() -> None:
    async def scene() -> None:
        once = AsyncOnce("memory://")
        guard, app = Idempotency(once, caller=_caller), FastAPI()
        guard.attach(app)
        runs = []

        @app.post("/charges")
        @guard.guard()
        async def charge() -> int:
            runs.append(1)
            return len(runs)

        install(app, once, caller=lambda scope: "me")
        assert [(answer.status_code, answer.json()) for answer in await _asked(app)] == [
            (200, 1),
            (200, 1),
        ]
        assert runs == [1]

    asyncio.run(scene())
