"""The routes of the payments API.

Money moves in a step, under a child key that the provider dedups on; the API's own rows are
upserts. That makes both POSTs retry-safe, whatever dies in between.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from oncekey.core.codec import JSON
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
from oncekey.demo.api.paying import Paying, Receipt
from oncekey.demo.api.refusals import Refused
from oncekey.demo.api.rows import Rows
from oncekey.demo.keeping import Account, Keeping
from oncekey.engine.aio.attempt import AsyncAttempt
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
    """What the routes work with; it is at `app.state.shop`."""

    keeping: Keeping
    rows: Rows
    paying: Paying


def _shop(request: Request) -> Shop:
    shop: Shop = request.app.state.shop
    return shop


_bearer = HTTPBearer(auto_error=False, description="An account's token, printed at the start.")


def _verified(
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Account:
    sent = request.headers.get("authorization", "").encode("latin-1")
    account = _shop(request).keeping.account_of(sent)
    if account is None:
        raise Refused(401, "unknown-caller", "Send Authorization: Bearer and a token.")
    return account


def _running(request: Request) -> AsyncAttempt:
    attempt = attempt_of(request)
    assert attempt is not None, "the middleware guards every route that asks for its attempt"
    return attempt


Shopping = Annotated[Shop, Depends(_shop)]
Caller = Annotated[Account, Depends(_verified)]
Running = Annotated[AsyncAttempt, Depends(_running)]
Limit = Annotated[int, Query(ge=1, le=LIST_MAX)]


@routes.get("/charges", responses=_READ)
def list_charges(shop: Shopping, me: Caller, limit: Limit = 20) -> list[Charge]:
    """Your charges, the newest first."""
    return [Charge(**row) for row in shop.rows.charges(me.id, limit)]


@routes.get("/ledger", responses=_READ)
def read_ledger(shop: Shopping, me: Caller, limit: Limit = 50) -> list[Entry]:
    """What you were charged and given back, the newest first."""
    return [Entry(**row) for row in shop.rows.ledger(limit, me.id)]


@routes.get("/accounts/me", responses=problems(401))
def read_account(shop: Shopping, me: Caller) -> Me:
    """Who you are, and what it comes to."""
    return Me(id=me.id, name=me.name, **shop.rows.totals(me.id))


@routes.post("/charges", status_code=201, responses=_CHARGE, openapi_extra=_KEYED)
async def create_charge(shop: Shopping, me: Caller, attempt: Running, new: NewCharge) -> Charged:
    """Charge a card, once per key."""
    receipt: Receipt = await attempt.step(
        "payment:charge",
        lambda key: shop.paying.charge(key, new.order, new.cents, new.card),
        codec=JSON,
    )
    if receipt["status"] == "declined":
        raise Refused(402, "declined", "The card was declined.")
    id = _id("ch", attempt)
    payment = str(receipt["id"])
    await asyncio.to_thread(shop.rows.add_charge, id, me.id, new.order, new.cents, payment)
    made = await asyncio.to_thread(shop.rows.charge, me.id, id)
    assert made is not None
    return Charged(**made, attempt=attempt.number)


@routes.post("/charges/{id}/refunds", status_code=201, responses=_REFUND, openapi_extra=_KEYED)
async def create_refund(
    shop: Shopping,
    me: Caller,
    attempt: Running,
    id: Annotated[str, Path(pattern=CHARGE_ID)],
    new: NewRefund,
) -> Refunded:
    """Give money back, once per key, and never more than was paid."""
    charge = await asyncio.to_thread(shop.rows.charge, me.id, id)
    if charge is None:
        raise Refused(404, "no-such-charge", "You have no such charge.")
    order, refund = str(charge["order"]), _id("re", attempt)
    if not await asyncio.to_thread(shop.rows.reserve_refund, refund, id, new.cents):
        raise Refused(422, "too-much", "There is not so much left to give back.")
    receipt: Receipt = await attempt.step(
        "payment:refund", lambda key: shop.paying.refund(key, order, new.cents), codec=JSON
    )
    payment = str(receipt["id"])
    await asyncio.to_thread(shop.rows.finish_refund, refund, payment)
    return Refunded(id=refund, charge=id, cents=new.cents, payment=payment, attempt=attempt.number)


def _id(prefix: str, attempt: AsyncAttempt) -> str:
    """The id of what this operation makes: the same in every attempt of it."""
    key = attempt.child_key(f"{prefix}:id")
    return f"{prefix}_{hashlib.sha256(key.encode()).hexdigest()[:16]}"
