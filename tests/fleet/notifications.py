"""Notifications, an ASGI app behind the middleware.

Its handler writes the row as payments does: in an operation of its own, in one transaction.
"""

from __future__ import annotations

from typing import Any

import aiosqlite
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from tests.fleet import common

from oncekey import AsyncOnce, Policy
from oncekey.http.asgi import IdempotencyMiddleware, attempt_of
from oncekey.http.rules import Rule

NAME = "notifications"

common.make_ledger(NAME)
once = AsyncOnce(common.store_url(NAME), policy=Policy(lease=common.LEASE, wait=common.WAIT))
common.log_events(once, NAME)


async def receipt(request: Request) -> JSONResponse:
    attempt, order = attempt_of(request), await request.json()
    assert attempt is not None

    async with aiosqlite.connect(common.database(NAME), timeout=common.BUSY_SECONDS) as db:

        async def insert(_: Any) -> dict[str, Any]:
            async with db.execute(common.INSERT, (order["order"], order["cents"])) as cursor:
                return common.row_id(NAME, cursor.lastrowid)

        if common.sabotage() == common.NO_TRANSACTION:
            value = await insert(None)
        else:
            tx = once.in_transaction(db)
            key = attempt.child_key("ledger")
            value = (await tx.run("ledger", key, insert, request=order)).value
        await db.commit()
    common.die_once(NAME)  # the row is committed, and the outcome of the request is not
    return JSONResponse(value, 201)


def caller(scope: Any) -> str | None:
    return common.CALLERS.get(dict(scope["headers"]).get(b"authorization", b"").decode())


app = Starlette(routes=[Route("/receipts", receipt, methods=["POST"])])
app.add_middleware(
    IdempotencyMiddleware,
    once=once,
    caller=caller,
    rules=[Rule("/receipts", retry_safe=True)],
)
