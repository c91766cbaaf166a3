"""The app of bench/http with its endpoint guarded by FastAPI's own guard, not by a middleware."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request

from bench.http.apps import Charge
from oncekey import AsyncOnce
from oncekey.http.fastapi import Idempotency


def _caller(request: Request) -> str | None:
    return request.headers.get("authorization")


def guarded() -> FastAPI:
    made = FastAPI()
    idempotency = Idempotency(AsyncOnce("memory://"), caller=_caller)
    idempotency.attach(made)

    @made.post("/charges", status_code=201)
    @idempotency.guard()
    async def charge(asked: Charge) -> dict[str, Any]:
        return {"id": "ch_1", "cents": asked.cents, "currency": asked.currency}

    return made
