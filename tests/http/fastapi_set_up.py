"""FastAPI apps with guarded routes that are called in process, without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from fastapi import FastAPI

from oncekey import AsyncOnce
from oncekey.http.fastapi import Idempotency

KEY = {"Idempotency-Key": "k"}


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
