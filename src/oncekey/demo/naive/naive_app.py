"""The naive handler: SELECT the key, run, INSERT the key. No oncekey is in its way.

It is not sabotaged. It authenticates, validates, stores and replays as the guarded one does; it
only does what most tutorials do, and checks first and acts later. Its provider's client sends a new
key with each call, as SDKs do when they are given none.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Request
from fastapi.responses import JSONResponse

from oncekey.demo.api import problems
from oncekey.demo.api.models import BODY_MAX_BYTES, CHARGE_ID, NewCharge, NewRefund
from oncekey.demo.api.payment_routes import Caller
from oncekey.demo.api.problems import Refused, problem_response
from oncekey.demo.api.provider_client import ProviderClient
from oncekey.demo.data_dir import DataDir
from oncekey.demo.handlers import Handler, handler_of
from oncekey.demo.naive.naive_database import NaiveDatabase

KEY_MAX_CHARS = 255
_REPLAYED = {"X-Idempotency-Replayed": "true"}

_routes = APIRouter(prefix=Handler.NAIVE.root)


@dataclass(frozen=True, slots=True)
class NaiveShop:
    """What the naive routes work with, found at `app.state.shop`."""

    data_dir: DataDir
    database: NaiveDatabase
    provider: ProviderClient


def _shop(request: Request) -> NaiveShop:
    shop: NaiveShop = request.app.state.shop
    return shop


CurrentShop = Annotated[NaiveShop, Depends(_shop)]
Key = Annotated[str, Header(alias="Idempotency-Key", min_length=1, max_length=KEY_MAX_CHARS)]


@_routes.post("/charges")
async def create_charge(shop: CurrentShop, me: Caller, new: NewCharge, key: Key) -> JSONResponse:
    stored = await asyncio.to_thread(shop.database.stored_response, me.id, key)
    if stored is not None:
        return JSONResponse(stored, 201, _REPLAYED)
    # A second request with the key comes this far too, until the first has stored its response.
    receipt = await shop.provider.charge(
        _new_key(), new.order, new.cents, new.card, handler=Handler.NAIVE
    )
    if receipt["status"] == "declined":
        raise Refused(402, "declined", "The card was declined.")
    id, payment = _new_id("ch"), str(receipt["id"])
    await asyncio.to_thread(shop.database.add_charge, id, me.id, new.order, new.cents, payment)
    made = {"id": id, "order": new.order, "cents": new.cents, "payment": payment}
    # Whoever is killed before this line has charged the card, and nobody knows.
    await asyncio.to_thread(shop.database.store_response, me.id, key, made)
    return JSONResponse(made, 201)


@_routes.post("/charges/{id}/refunds")
async def create_refund(
    shop: CurrentShop,
    me: Caller,
    id: Annotated[str, Path(pattern=CHARGE_ID)],
    new: NewRefund,
    key: Key,
) -> JSONResponse:
    stored = await asyncio.to_thread(shop.database.stored_response, me.id, key)
    if stored is not None:
        return JSONResponse(stored, 201, _REPLAYED)
    charge = await asyncio.to_thread(shop.database.charge, me.id, id)
    if charge is None:
        raise Refused(404, "no-such-charge", "You have no such charge.")
    if new.cents > charge["cents"] - charge["refunded_cents"]:
        raise Refused(422, "too-much", "There is not so much left to give back.")
    receipt = await shop.provider.refund(
        _new_key(), str(charge["order"]), new.cents, handler=Handler.NAIVE
    )
    refund, payment = _new_id("re"), str(receipt["id"])
    await asyncio.to_thread(shop.database.add_refund, refund, id, new.cents, payment)
    made = {"id": refund, "charge": id, "cents": new.cents, "payment": payment}
    await asyncio.to_thread(shop.database.store_response, me.id, key, made)
    return JSONResponse(made, 201)


def _new_key() -> str:
    return str(uuid.uuid4())


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(8)}"


class NaiveHandlerMiddleware:
    """Serves the naive routes, and passes every other request on to the app.

    It stands before oncekey's middleware, which would report that these routes are not guarded.
    """

    def __init__(self, app: Any, *, shop: NaiveShop) -> None:
        self.app = app
        self._naive = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        self._naive.state.shop = shop
        self._naive.include_router(_routes)
        problems.install(self._naive)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or handler_of(scope["path"]) is Handler.GUARDED:
            await self.app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"")
        app: Any = self._naive
        if not length.isdigit() or int(length) > BODY_MAX_BYTES:
            app = problem_response(413, "too-large", f"Send {BODY_MAX_BYTES} bytes at most.")
        await app(scope, receive, send)


def add_naive_handler(app: FastAPI, shop: NaiveShop) -> None:
    """Serves the naive handler beside the guarded one. The app closes the provider's client."""
    app.add_middleware(NaiveHandlerMiddleware, shop=shop)
