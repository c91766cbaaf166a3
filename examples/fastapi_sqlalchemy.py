"""Orders that are placed once: the row, the idempotency record and the response in one transaction.

    DATABASE_URL=postgresql://user@host/database uvicorn examples.fastapi_sqlalchemy:app

    curl -X POST localhost:8000/orders -H 'Authorization: Bearer alice' \
         -H 'Idempotency-Key: order-17' -H 'Content-Type: application/json' \
         -d '{"item": "book", "cents": 500}'

Send it again, and it is answered again, with nothing placed. Kill the server in the middle, and
there is neither an order nor a key: the next try runs.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from oncekey import AsyncOnce
from oncekey.http.fastapi import Idempotency

URL = os.environ["DATABASE_URL"]
ACCOUNTS = {"alice": "acct_1", "bob": "acct_2"}  # a real app asks whoever issues its tokens
LIMIT_CENTS = 10_000

engine = create_async_engine(URL.replace("postgresql://", "postgresql+asyncpg://"))
sessions = async_sessionmaker(engine)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "example_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[str]
    item: Mapped[str]
    cents: Mapped[int]


class NewOrder(BaseModel):
    item: str
    cents: int


class PlacedOrder(NewOrder):
    id: int


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


def current_account(
    credentials: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())],
) -> str:
    account = ACCOUNTS.get(credentials.credentials)
    if account is None:
        raise HTTPException(401, "unknown token")
    return account


async def get_session() -> AsyncIterator[AsyncSession]:
    async with sessions.begin() as session:
        yield session


Account = Annotated[str, Depends(current_account)]
Session = Annotated[AsyncSession, Depends(get_session)]

app = FastAPI(lifespan=lifespan)
idempotency = Idempotency(AsyncOnce(URL), caller=Depends(current_account))
idempotency.attach(app)


@app.post("/orders", status_code=201, response_model=PlacedOrder)
@idempotency.guard(transaction=get_session)
async def place(order: NewOrder, account: Account, session: Session) -> Order:
    placed = Order(account=account, item=order.item, cents=order.cents)
    session.add(placed)
    await session.flush()
    mine = select(func.sum(Order.cents)).where(Order.account == account)
    if (await session.scalar(mine) or 0) > LIMIT_CENTS:
        # The row goes, the refusal stays: every retry with this key gets it.
        raise HTTPException(402, "over the limit")
    if order.item == "unicorn":
        raise RuntimeError("no such animal")  # all of it goes, and a retry runs
    return placed


@app.get("/orders")
async def orders(account: Account, session: Session) -> list[str]:
    found = await session.scalars(select(Order.item).where(Order.account == account))
    return list(found)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app)
