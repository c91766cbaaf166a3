"""The app every contestant serves: FastAPI, a POST that validates a body, a GET.

Which middleware stands before it is said by CONTESTANT, which store is behind that by STORE; a
server imports `app`.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.requests import HTTPConnection
from starlette.responses import StreamingResponse
from starlette.types import Scope


class Charge(BaseModel):
    cents: int
    currency: str


def bare() -> FastAPI:
    made = FastAPI()

    @made.post("/charges", status_code=201)
    async def charge(asked: Charge) -> dict[str, Any]:
        return {"id": "ch_1", "cents": asked.cents, "currency": asked.currency}

    @made.get("/charges")
    async def charges() -> dict[str, Any]:
        return {"charges": []}

    @made.post("/held/{size}")
    async def held(size: int) -> StreamingResponse:
        """All of it but its end; that comes when somebody asks for /open."""
        return StreamingResponse(_held(size), media_type="application/octet-stream")

    @made.get("/waiting")
    async def waiting() -> int:
        return _gate.waiting

    @made.get("/open")
    async def open_gate() -> bool:
        _gate.opened.set()
        return True

    return made


class _Gate:
    def __init__(self) -> None:
        self.waiting = 0
        self.opened = asyncio.Event()


_gate = _Gate()


async def _held(size: int) -> AsyncIterator[bytes]:
    for start in range(0, size, 50_000):
        yield bytes(min(50_000, size - start))
    _gate.waiting += 1
    await _gate.opened.wait()


def _caller(scope: Scope) -> str | None:
    return HTTPConnection(scope).headers.get("authorization")


def oncekey(store: str) -> FastAPI:
    from oncekey import AsyncOnce
    from oncekey.http.asgi import IdempotencyMiddleware
    from oncekey.http.rules import Rule

    made = bare()
    made.add_middleware(
        IdempotencyMiddleware,
        once=AsyncOnce(store),
        caller=_caller,
        rules=[Rule(required=False)],
    )
    return made


def idemkit(store: str) -> FastAPI:
    from idemkit import HttpConfig, IdempotencyMiddleware, InMemoryBackend
    from idemkit.backends.postgres import PostgresBackend

    warnings.filterwarnings("ignore")
    made = bare()
    backend: Any = InMemoryBackend()
    if store.startswith("postgresql"):
        backend = PostgresBackend.from_url(store, min_size=32, max_size=32)
    config = HttpConfig(scope=lambda request: request.headers.get("authorization", ""))
    made.add_middleware(IdempotencyMiddleware, backend=backend, config=config)
    return made


def fastapi_idempotency(store: str) -> FastAPI:
    import fastapi_idempotency as peer

    made = bare()
    made.add_middleware(peer.IdempotencyMiddleware)
    return made


def asgi_idempotency_header(store: str) -> FastAPI:
    from idempotency_header_middleware import IdempotencyHeaderMiddleware
    from idempotency_header_middleware.backends import MemoryBackend

    made = bare()
    middleware: Any = IdempotencyHeaderMiddleware  # a dataclass, which is no factory to mypy
    made.add_middleware(middleware, backend=MemoryBackend())
    return made


def chosen() -> FastAPI:
    name = os.environ.get("CONTESTANT", "bare")
    if name == "bare":
        return bare()
    made: FastAPI = globals()[name](os.environ["STORE"])
    return made


app = chosen()
