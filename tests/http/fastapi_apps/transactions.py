"""A FastAPI app whose guarded routes run in transactions of every kind of session."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

from fastapi import BackgroundTasks, Depends, FastAPI, Header, HTTPException
from fastapi.responses import Response, StreamingResponse
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from tests.http.apps.starlette_app import effect, gate

from oncekey import AsyncOnce, Once
from oncekey.http.fastapi import CurrentAttempt, Idempotency

URL = os.environ["DATABASE_URL"]
make_async = async_sessionmaker(create_async_engine(URL.replace("://", "+asyncpg://")))
make = sessionmaker(create_engine(URL.replace("://", "+psycopg://"), pool_size=30))


def account(authorization: Annotated[str, Header()]) -> str:
    return authorization


async def async_session() -> AsyncIterator[AsyncSession]:
    async with make_async() as session:
        try:
            yield session
        except Exception as error:
            effect(f"dependency saw {type(error).__name__}")
            raise


async def stubborn_session() -> AsyncIterator[AsyncSession]:
    """A session that its dependency commits whatever happens."""
    async with make_async() as session:
        try:
            yield session
        finally:
            await session.commit()
            effect("stubborn: committed")


def session() -> Iterator[Session]:
    with make() as made:
        yield made


def begun_session() -> Iterator[Session]:
    with make.begin() as made:
        yield made


once, blocking = AsyncOnce(URL), Once(URL)
idempotency = Idempotency(once, caller=Depends(account), blocking=blocking)
app = FastAPI()
idempotency.attach(app)


def write(what: str) -> Any:
    return text("INSERT INTO things VALUES (:what)").bindparams(what=what)


def end(how: str) -> Any:
    effect(how)
    if how == "crash":
        raise ValueError("s3cret")
    if how == "wrong":
        return {"what": []}
    if how.isdigit() and int(how) >= 1000:
        return Response(b"returned", int(how) - 1000)
    if how.isdigit():
        raise HTTPException(int(how), "because")
    return {"what": how}


@app.post("/async/{how}", response_model=dict[str, str])
@idempotency.guard(transaction=async_session)
async def place(
    how: str,
    db: Annotated[AsyncSession, Depends(async_session)],
    attempt: CurrentAttempt,
    tasks: BackgroundTasks,
) -> Any:
    await db.execute(write(how))
    if how == "gated":
        await gate("tx")
    if how == "commits":
        await db.commit()
    tasks.add_task(see, how)
    return end(how)


async def see(what: str) -> None:
    """Whether others see the row when background tasks run."""
    async with make_async() as session:
        found = await session.execute(text("SELECT 1 FROM things WHERE what = :w"), {"w": what})
        effect(f"task saw {what} {len(found.all())}")


@app.post("/blocking/{how}", response_model=dict[str, str])
@idempotency.guard(transaction=session)
def place_blocking(
    how: str, db: Annotated[Session, Depends(session)], attempt: CurrentAttempt
) -> Any:
    db.execute(write(how))
    if how == "commits":
        db.commit()
    return end(how)


@app.post("/begun/{how}", response_model=dict[str, str])
@idempotency.guard(transaction=begun_session)
async def place_begun(how: str, db: Annotated[Session, Depends(begun_session)]) -> Any:
    db.execute(write(how))
    return end(how)


@app.post("/stubborn/{how}")
@idempotency.guard(transaction=stubborn_session)
async def place_stubborn(how: str, db: Annotated[AsyncSession, Depends(stubborn_session)]) -> Any:
    await db.execute(write(how))
    return end(how)


@app.post("/stream")
@idempotency.guard(transaction=async_session)
async def stream(db: Annotated[AsyncSession, Depends(async_session)]) -> StreamingResponse:
    async def parts() -> AsyncIterator[bytes]:
        for number in range(3):
            await db.execute(write("part"))
            yield b"part %d\n" % number

    return StreamingResponse(parts())
