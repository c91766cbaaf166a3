"""One payments API behind each middleware, set up as its own documentation says.

The API is the one of examples/broken, with its authentication as a dependency of the routes, which
is where FastAPI has it. Each middleware that can tell callers apart gets the verified account. All
of them keep records in memory, in one process. PEER says which one stands before the API,
LEASE_SECONDS and KEEP_SECONDS shorten its lease and how long it remembers a key, COOKIES makes the
API set a cookie; a server imports `app`.
"""

from __future__ import annotations

import os
import warnings
from datetime import timedelta
from typing import Annotated, Any

from examples.broken.payments import Payment, Shop, account_of
from fastapi import Depends, FastAPI, HTTPException, Request
from starlette.responses import Response

PEER = os.environ.get("PEER", "bare")
LEASE_SECONDS = float(os.environ.get("LEASE_SECONDS", "0"))
KEEP_SECONDS = float(os.environ.get("KEEP_SECONDS", "0")) or 24 * 3600.0
COOKIES = os.environ.get("COOKIES") == "1"


def authenticated(request: Request) -> str:
    account = account_of(request)
    if account is None:
        raise HTTPException(401, "Send Authorization: Bearer and a token.")
    return account


Account = Annotated[str, Depends(authenticated)]


def bare() -> FastAPI:
    """The API without any guard: what the verifier says about it is what a guard has to change."""
    made = FastAPI(docs_url=None, redoc_url=None)
    shop = Shop(sets_cookies=COOKIES)

    @made.post("/payments", status_code=201)
    async def pay(account: Account, asked: Payment) -> Response:
        return await shop.move_money("payment", asked)

    @made.post("/refunds", status_code=201)
    async def refund(account: Account, asked: Payment) -> Response:
        return await shop.move_money("refund", asked)

    @made.get("/effects")
    async def effects(order: str) -> dict[str, int]:
        return {"count": shop.effects[order]}

    return made


def oncekey() -> FastAPI:
    from oncekey import AsyncOnce, Policy
    from oncekey.http.asgi import IdempotencyMiddleware

    made = bare()
    lease, keep = LEASE_SECONDS or min(30, KEEP_SECONDS), KEEP_SECONDS
    once = AsyncOnce("memory://", policy=Policy(lease=f"{lease:g}s", keep=f"{keep:g}s"))
    made.add_middleware(
        IdempotencyMiddleware, once=once, caller=lambda scope: account_of(Request(scope))
    )
    return made


def idemkit() -> FastAPI:
    from idemkit import HttpConfig, IdempotencyMiddleware, InMemoryBackend

    warnings.filterwarnings("ignore")
    made = bare()
    config = HttpConfig(
        scope=lambda request: account_of(request) or "anonymous",
        lease_ttl_seconds=LEASE_SECONDS or None,
        expires_after_seconds=KEEP_SECONDS,
    )
    made.add_middleware(IdempotencyMiddleware, backend=InMemoryBackend(), config=config)
    return made


def fastapi_idempotency() -> FastAPI:
    import fastapi_idempotency as peer

    made = bare()
    lease: dict[str, Any] = {}
    if LEASE_SECONDS:
        # Its own defaults have the same ratio.
        lease = {"lease_seconds": LEASE_SECONDS, "heartbeat_seconds": LEASE_SECONDS / 3}
    made.add_middleware(
        peer.IdempotencyMiddleware,
        scope=lambda request: account_of(request) or "anonymous",
        key_window=timedelta(seconds=KEEP_SECONDS),
        **lease,
    )
    return made


def asgi_idempotency_header() -> FastAPI:
    """It has neither a notion of callers nor a lease."""
    from idempotency_header_middleware import IdempotencyHeaderMiddleware
    from idempotency_header_middleware.backends import MemoryBackend

    made = bare()
    middleware: Any = IdempotencyHeaderMiddleware  # a dataclass, which is no factory to mypy
    made.add_middleware(middleware, backend=MemoryBackend(expiry=int(KEEP_SECONDS)))
    return made


PEERS = {
    "bare": bare,
    "oncekey": oncekey,
    "idemkit": idemkit,
    "fastapi-idempotency": fastapi_idempotency,
    "asgi-idempotency-header": asgi_idempotency_header,
}
app = PEERS[PEER]()
