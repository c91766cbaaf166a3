"""Inventory, a FastAPI app: its row, key and response commit in one transaction (exactly once)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import aiosqlite
from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel
from tests.fleet import common

from oncekey import AsyncOnce, Policy
from oncekey.http.fastapi import Idempotency

NAME = "inventory"
TRANSACTIONAL = common.sabotage() != common.NO_TRANSACTION

common.make_ledger(NAME)


def account(authorization: Annotated[str, Header()] = "") -> str:
    if authorization not in common.CALLERS:
        raise HTTPException(401)
    return common.CALLERS[authorization]


async def database() -> AsyncIterator[aiosqlite.Connection]:
    async with aiosqlite.connect(common.database(NAME), timeout=common.BUSY_SECONDS) as db:
        yield db


class Order(BaseModel):
    order: str
    cents: int
    sent_at: int


app = FastAPI()
once = AsyncOnce(common.store_url(NAME), policy=Policy(lease=common.LEASE))
common.log_events(once, NAME)
idempotency = Idempotency(once, caller=Depends(account))
idempotency.attach(app)

OPTIONS: dict[str, Any] = {"transaction": database} if TRANSACTIONAL else {"retry_safe": True}


@app.post("/reservations", status_code=201)
@idempotency.guard(**OPTIONS)
async def reserve(
    order: Order, db: Annotated[aiosqlite.Connection, Depends(database)]
) -> dict[str, Any]:
    async with db.execute(common.INSERT, (order.order, order.cents)) as cursor:
        number = cursor.lastrowid
    common.die_once(NAME)  # the row and the key are not committed
    if not TRANSACTIONAL:
        await db.commit()
    return common.row_id(NAME, number)
