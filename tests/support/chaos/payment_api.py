"""The API under chaos: a FastAPI app with one route for each level of guarantee.

    uvicorn tests.support.chaos.payment_api:app

`/transactional` writes its row in the transaction that holds the key. `/late` calls the provider
and writes a row in a session of its own, which a dependency commits after the handler. `/fenced`
calls the provider in a step, under a child key that the provider deduplicates on. `/once` and
`/recovered` call it without that; the second has a `recover` function that asks the provider. The
bodies tell the history when they begin, whether they still hold their key, and when they end.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import asyncpg
from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from starlette.requests import Request
from starlette.responses import JSONResponse
from tests.support.chaos.chaos_history import history_of_environment
from tests.support.chaos.chaos_plan import LEASE_SECONDS
from tests.support.chaos.effect_provider import ProviderClient
from tests.support.chaos.payment_names import (
    GRACE_VARIABLE,
    KEEP,
    NAME_VARIABLE,
    REQUIRE_VARIABLE,
    ROWS_VARIABLE,
    STORE_VARIABLE,
    TABLE,
    operation_id,
)

from oncekey import AsyncOnce, Policy, Recovery
from oncekey.core.events import Event
from oncekey.http.fastapi import CurrentAttempt, Idempotency
from oncekey.http.message import Response

INSERT: Final = text(f"INSERT INTO {TABLE} VALUES (:id, :run, :cents)")  # noqa: S608
_CONNECT_SECONDS: Final = 3

name = os.environ[NAME_VARIABLE]
history = history_of_environment(f"{name}-{os.getpid()}")
provider = ProviderClient()


told_guarantees: set[tuple[str, str]] = set()


def write_event(event: Event) -> None:
    history.write(
        "event", what=event.kind, tag=event.tag, fence=event.fence, attempt=event.attempt, by=name
    )
    said = (once.guarantee.level.name.lower(), once.guarantee.reason)
    if said not in told_guarantees:
        told_guarantees.add(said)
        history.write("guarantee", level=said[0], reason=said[1], by=name)


def open_keys(url: str) -> AsyncOnce:
    """Return an engine whose decisions are in the history. Every second worker has no cache of
    replays, so that it asks the store every time."""
    policy = Policy(
        lease=f"{LEASE_SECONDS}s",
        keep=KEEP,
        audit=KEEP,
        store_timeout="4s",
        require=os.environ[REQUIRE_VARIABLE],
    )
    cache: dict[str, Any] = {} if os.getpid() % 2 else {"cache": 0}
    keys = AsyncOnce(url, policy=policy, raw_keys=True, sweep_every="2s", **cache)
    keys.subscribe(write_event)
    return keys


once = open_keys(os.environ[STORE_VARIABLE])


async def connect() -> Any:
    return await asyncpg.connect(
        os.environ[ROWS_VARIABLE], timeout=_CONNECT_SECONDS, command_timeout=_CONNECT_SECONDS
    )


engine = create_async_engine(
    "postgresql+asyncpg://", async_creator=connect, pool_size=8, max_overflow=8, pool_timeout=3
)
sessions = async_sessionmaker(engine)


async def get_session() -> AsyncIterator[AsyncSession]:
    async with sessions() as session:
        try:
            await session.begin()
            await session.connection()
        except (OSError, DBAPIError, asyncpg.PostgresError, PoolTimeout) as error:
            raise HTTPException(503, "no connection for the rows") from error
        yield session


async def get_late_session() -> AsyncIterator[AsyncSession]:
    """A session that is committed after the handler has returned, as many apps do it."""
    async for session in get_session():
        yield session
        await session.commit()


def current_account(authorization: Annotated[str, Header()] = "") -> str:
    """The token is the account's name, with a prefix that says that it is good."""
    if not authorization.startswith("Bearer good-"):
        raise HTTPException(401, "unknown token")
    return authorization.removeprefix("Bearer good-")


class Order(BaseModel):
    cents: int
    work_ms: int = 0


class Body:
    """One run of a handler, as the history has it."""

    def __init__(self, attempt: Any, account: str) -> None:
        self.id = operation_id(account, attempt.key)
        self.run = uuid.uuid4().hex[:12]
        self._attempt = attempt
        self._write("begin", attempt=attempt.number)

    def _write(self, kind: str, **more: Any) -> None:
        history.write(kind, id=self.id, fence=self._attempt.fence, run=self.run, by=name, **more)

    def look(self) -> None:
        """Tell the history whether the attempt still holds its key, at a time before the look."""
        at = history.now()
        lost = self._attempt.lost
        self._write("hold", at=at, lost=lost)

    async def work(self, order: Order) -> None:
        await asyncio.sleep(order.work_ms / 1_000)
        self.look()

    async def effect(self, child: str, *, dedup: bool) -> str:
        return await provider.effect(
            child, dedup=dedup, id_of=self.id, fence=self._attempt.fence, by=name
        )

    def response(self, effect: str, order: Order, account: str) -> dict[str, Any]:
        self.look()
        self._write("end", effect=effect)
        return {"effect": effect, "id": self.id, "account": account, "cents": order.cents}


history.write("started", by=name, pid=os.getpid())
app = FastAPI()
idempotency = Idempotency(once, caller=Depends(current_account))
idempotency.attach(app)
Account = Annotated[str, Depends(current_account)]


@app.exception_handler(DBAPIError)
async def database_down(request: Request, error: Exception) -> JSONResponse:
    """The row's transaction failed: nothing of it is left, or its client must ask again. After an
    effect at the provider the app must not say 503 with Retry-After: that frees the key."""
    if request.url.path == "/late":
        return JSONResponse({"code": "rows-failed"}, 500)
    return JSONResponse({"code": "rows-unavailable"}, 503, {"Retry-After": "1"})


@app.post("/transactional", status_code=201)
@idempotency.guard(transaction=get_session)
async def transactional(
    order: Order,
    account: Account,
    attempt: CurrentAttempt,
    session: Annotated[AsyncSession, Depends(get_session)],
) -> dict[str, Any]:
    body = Body(attempt, account)
    values = {"id": body.id, "run": body.run, "cents": order.cents}
    await session.execute(INSERT, values)
    await asyncio.sleep(order.work_ms / 1_000)
    return body.response(body.run, order, account)


@app.post("/late", status_code=201)
@idempotency.guard()
async def late(
    order: Order,
    account: Account,
    attempt: CurrentAttempt,
    session: Annotated[AsyncSession, Depends(get_late_session)],
) -> dict[str, Any]:
    body = Body(attempt, account)
    effect = await body.effect(attempt.child_key("provider:charge"), dedup=False)
    await session.execute(INSERT, {"id": body.id, "run": effect, "cents": order.cents})
    await asyncio.sleep(order.work_ms / 1_000)
    return body.response(effect, order, account)


@app.post("/fenced", status_code=201)
@idempotency.guard(retry_safe=True)
async def fenced(order: Order, account: Account, attempt: CurrentAttempt) -> dict[str, Any]:
    body = Body(attempt, account)
    await body.work(order)

    async def charge(key: str) -> dict[str, str]:
        return {"effect": await body.effect(key, dedup=True)}

    paid = await attempt.step("provider:charge", charge)
    return body.response(paid["effect"], order, account)


async def call_once(order: Order, account: str, attempt: Any) -> dict[str, Any]:
    body = Body(attempt, account)
    await body.work(order)
    effect = await body.effect(attempt.child_key("provider:charge"), dedup=False)
    return body.response(effect, order, account)


@app.post("/once", status_code=201)
@idempotency.guard()
async def at_most_once(order: Order, account: Account, attempt: CurrentAttempt) -> dict[str, Any]:
    return await call_once(order, account, attempt)


async def ask_provider(unknown: Any) -> Recovery:
    """Ask the provider what became of an unknown key; its answer is stored as a response."""
    id = operation_id(unknown.scope, unknown.key)
    effect = await provider.find(unknown.child_key("provider:charge"))
    history.write("recovery", id=id, effect=effect, by=name)
    if effect is None:
        return Recovery.free()
    told = {"effect": effect, "id": id, "account": unknown.scope}
    body = json.dumps(told).encode()
    headers = ((b"content-type", b"application/json"),)
    return Recovery.succeeded(Response(201, headers, body, False))


@app.post("/recovered", status_code=201)
@idempotency.guard(recover=ask_provider, recover_grace=os.environ[GRACE_VARIABLE])
async def recovered(order: Order, account: Account, attempt: CurrentAttempt) -> dict[str, Any]:
    return await call_once(order, account, attempt)
