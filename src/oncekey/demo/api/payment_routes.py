"""The routes of the payments API.

Money moves in a step, under a child key that the provider deduplicates on; the API's own writes are
upserts. So both POSTs are retry-safe, whichever process dies in between.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from oncekey.core.codec import JSON
from oncekey.demo.api.database import PaymentsDatabase
from oncekey.demo.api.models import (
    CHARGE_ID,
    LIST_MAX,
    Charge,
    Charged,
    Entry,
    Me,
    NewCharge,
    NewRefund,
    Refunded,
    problems,
)
from oncekey.demo.api.problems import Refused
from oncekey.demo.api.provider_client import ProviderClient, Receipt
from oncekey.demo.data_dir import Account, DataDir
from oncekey.engine.attempts.async_attempt import AsyncAttempt
from oncekey.http.asgi import attempt_of

routes = APIRouter()

_READ = problems(401, 422)
_CHARGE = problems(400, 401, 402, 409, 413, 422, 500, 502, 503)
_REFUND = problems(400, 401, 404, 409, 413, 422, 500, 502, 503)
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "description": "A new one for each new payment, the same again for a retry.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[A-Za-z0-9._-]+$"},
}
_KEYED: dict[str, Any] = {"parameters": [_KEY]}


@dataclass(frozen=True, slots=True)
class Shop:
    """What the routes work with, found at `app.state.shop`."""

    data_dir: DataDir
    database: PaymentsDatabase
    provider: ProviderClient


def _shop(request: Request) -> Shop:
    shop: Shop = request.app.state.shop
    return shop


_bearer = HTTPBearer(auto_error=False, description="An account's token, printed at the start.")


def _account(
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Account:
    sent = request.headers.get("authorization", "").encode("latin-1")
    account = _shop(request).data_dir.account_of(sent)
    if account is None:
        raise Refused(401, "unknown-caller", "Send Authorization: Bearer and a token.")
    return account


def _current_attempt(request: Request) -> AsyncAttempt:
    attempt = attempt_of(request)
    assert attempt is not None, "the middleware guards every route that asks for its attempt"
    return attempt


CurrentShop = Annotated[Shop, Depends(_shop)]
Caller = Annotated[Account, Depends(_account)]
CurrentAttempt = Annotated[AsyncAttempt, Depends(_current_attempt)]
Limit = Annotated[int, Query(ge=1, le=LIST_MAX)]


@routes.get("/charges", responses=_READ)
def list_charges(shop: CurrentShop, me: Caller, limit: Limit = 20) -> list[Charge]:
    """Your charges, the newest first."""
    return [Charge(**row) for row in shop.database.charges(me.id, limit)]


@routes.get("/ledger", responses=_READ)
def read_ledger(shop: CurrentShop, me: Caller, limit: Limit = 50) -> list[Entry]:
    """Your charges and refunds, newest first."""
    return [Entry(**row) for row in shop.database.ledger(limit, me.id)]


@routes.get("/accounts/me", responses=problems(401))
def read_account(shop: CurrentShop, me: Caller) -> Me:
    """Your account and its totals."""
    return Me(id=me.id, name=me.name, **shop.database.totals(me.id))


@routes.post("/charges", status_code=201, responses=_CHARGE, openapi_extra=_KEYED)
async def create_charge(
    shop: CurrentShop, me: Caller, attempt: CurrentAttempt, new: NewCharge
) -> Charged:
    """Charge a card, once per key."""
    receipt: Receipt = await attempt.step(
        "payment:charge",
        lambda key: shop.provider.charge(key, new.order, new.cents, new.card),
        codec=JSON,
    )
    if receipt["status"] == "declined":
        raise Refused(402, "declined", "The card was declined.")
    id = _id("ch", attempt)
    payment = str(receipt["id"])
    await asyncio.to_thread(shop.database.add_charge, id, me.id, new.order, new.cents, payment)
    made = await asyncio.to_thread(shop.database.charge, me.id, id)
    assert made is not None
    return Charged(**made, attempt=attempt.number)


@routes.post("/charges/{id}/refunds", status_code=201, responses=_REFUND, openapi_extra=_KEYED)
async def create_refund(
    shop: CurrentShop,
    me: Caller,
    attempt: CurrentAttempt,
    id: Annotated[str, Path(pattern=CHARGE_ID)],
    new: NewRefund,
) -> Refunded:
    """Give money back, once per key, and never more than was paid."""
    charge = await asyncio.to_thread(shop.database.charge, me.id, id)
    if charge is None:
        raise Refused(404, "no-such-charge", "You have no such charge.")
    order, refund = str(charge["order"]), _id("re", attempt)
    if not await asyncio.to_thread(shop.database.reserve_refund, refund, id, new.cents):
        raise Refused(422, "too-much", "There is not so much left to give back.")
    receipt: Receipt = await attempt.step(
        "payment:refund", lambda key: shop.provider.refund(key, order, new.cents), codec=JSON
    )
    payment = str(receipt["id"])
    await asyncio.to_thread(shop.database.finish_refund, refund, payment)
    return Refunded(id=refund, charge=id, cents=new.cents, payment=payment, attempt=attempt.number)


def _id(prefix: str, attempt: AsyncAttempt) -> str:
    """The id of what this operation creates: the same in every attempt."""
    key = attempt.child_key(f"{prefix}:id")
    return f"{prefix}_{hashlib.sha256(key.encode()).hexdigest()[:16]}"
