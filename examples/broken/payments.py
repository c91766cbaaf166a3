"""The payments API that every server of this folder serves: a shop, its two callers, its provider.

What it answers to a request that comes twice is decided by a `Guard`; this module knows nothing of
keys. A request says itself how the provider is to behave, so that a client can reach every case:

    {"order": "book-1", "cents": 500}                           201 and a payment
    {"order": "book-1", "cents": 500, "seconds": 3}             the same, after 3 seconds
    {"order": "book-1", "cents": 500, "provider": "declines"}   402
    {"order": "book-1", "cents": 500, "provider": "breaks"}     502: nobody knows whether it paid
    {"order": "book-1", "cents": 500, "receipt": "none"}        204, without a body
    {"order": "book-1", "cents": 500, "receipt": "long"}        201 with a body of 2 MiB

`GET /effects?order=book-1` says how often the provider was asked to move money for that order.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from examples.broken.guard import Guard, Refused, refusal
from fastapi import FastAPI, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

# A provider in another town. Without it a request would be over before its duplicate is read.
PROVIDER_SECONDS = 0.02
SECONDS_MAX = 30
LONG_RECEIPT_BYTES = 2 * 1024 * 1024

_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[A-Za-z0-9._-]+$"},
}
_KEYED: dict[str, Any] = {"parameters": [_KEY]}

_SIGNING_SECRET = b"of a shop that exists in examples only"


def token_for(account: str) -> str:
    """The token of an account: its name and a signature, as in a JWT."""
    signature = hmac.new(_SIGNING_SECRET, account.encode(), hashlib.sha256).hexdigest()[:16]
    return f"{account}.{signature}"


ALICE = token_for("acct_alice")
BOB = token_for("acct_bob")


class Payment(BaseModel):
    """What a client asks for, and how the provider is to behave meanwhile."""

    order: Annotated[str, Field(min_length=1, max_length=100)]
    cents: Annotated[int, Field(gt=0, le=1_000_000)]
    provider: Literal["accepts", "declines", "breaks"] = "accepts"
    seconds: Annotated[float, Field(ge=0, le=SECONDS_MAX)] = 0
    receipt: Literal["usual", "none", "long"] = "usual"


class Shop:
    """Moves money, and counts how often it did."""

    def __init__(
        self,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        *,
        sets_cookies: bool = True,
    ) -> None:
        self._sleep = sleep
        self._sets_cookies = sets_cookies
        self.effects: Counter[str] = Counter()

    async def move_money(
        self, kind: str, asked: Payment, *, commits_later: bool = False
    ) -> Response:
        """Move money and return the receipt. Who `commits_later` has the receipt before the money
        moves; what breaks then is rolled back, and the receipt is out."""
        self.effects[asked.order] += 1  # from here on the money may have moved
        await self._sleep(PROVIDER_SECONDS + asked.seconds)
        if asked.provider == "declines":
            return JSONResponse({"error": "the card was declined"}, 402)
        if asked.provider == "breaks" and commits_later:
            self.effects[asked.order] -= 1
        elif asked.provider == "breaks":
            return JSONResponse({"error": "the provider did not answer"}, 502)
        if asked.receipt == "none":
            return Response(status_code=204)
        made = f"{kind}_{secrets.token_hex(8)}"
        receipt: dict[str, Any] = {"id": made, "order": asked.order, "cents": asked.cents}
        if asked.receipt == "long":
            receipt["text"] = "Thank you. " * (LONG_RECEIPT_BYTES // 11)
        response = JSONResponse(receipt, 201, {"Location": f"/{kind}s/{made}"})
        if self._sets_cookies:  # it belongs to the session of whoever asked first
            response.set_cookie("session", secrets.token_hex(8), httponly=True)
        return response


def account_of(request: Request) -> str | None:
    """The account whose token came with a request, or None if the token is not one of ours."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    account = token.partition(".")[0]
    genuine = hmac.compare_digest(token.encode(), token_for(account).encode())
    return account if scheme.lower() == "bearer" and genuine else None


def payments_api(guard: Guard, shop: Shop | None = None) -> FastAPI:
    """The API behind a guard."""
    shop = shop or Shop()
    late = guard.is_inside_the_transaction
    app = FastAPI(title="Payments", docs_url=None, redoc_url=None)

    @app.post("/payments", status_code=201, openapi_extra=_KEYED)
    async def pay(request: Request, asked: Payment) -> Response:
        return await guard.respond(
            request, account_of, lambda: shop.move_money("payment", asked, commits_later=late)
        )

    @app.post("/refunds", status_code=201, openapi_extra=_KEYED)
    async def refund(request: Request, asked: Payment) -> Response:
        return await guard.respond(
            request, account_of, lambda: shop.move_money("refund", asked, commits_later=late)
        )

    @app.get("/effects")
    async def effects(order: str) -> dict[str, int]:
        return {"count": shop.effects[order]}

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return refusal(error)

    return app
