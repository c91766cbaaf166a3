"""`guard(transaction=...)` with SQLAlchemy sessions on SQLite, as on PostgreSQL: the handler's
rows, the record and the response commit together."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Header, HTTPException
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from oncekey import AsyncOnce, Once
from oncekey.http.fastapi import Idempotency


def account(authorization: Annotated[str, Header()]) -> str:
    return authorization


def outcome(how: str) -> dict[str, str]:
    if how == "crash":
        raise ValueError("s3cret")
    if how.isdigit():
        raise HTTPException(int(how), "because")
    return {"what": how}


class Shop:
    """An app with one route per kind of session, on one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        url = f"sqlite:///{path}"
        self.once, self.blocking = AsyncOnce(url), Once(url)
        self.engine = create_engine(url)
        self.async_engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE things (what TEXT)"))
        self.app = self._app()

    def _app(self) -> FastAPI:
        def session() -> Iterator[Session]:
            with Session(self.engine) as made:
                yield made

        async def async_session() -> AsyncIterator[AsyncSession]:
            async with AsyncSession(self.async_engine) as made:
                yield made

        app = FastAPI()
        guarded = Idempotency(self.once, caller=Depends(account), blocking=self.blocking)
        guarded.attach(app)
        insert = text("INSERT INTO things VALUES (:what)")

        @app.post("/blocking/{how}")
        @guarded.guard(transaction=session)
        def place(how: str, db: Session = Depends(session)) -> Any:  # noqa: B008
            db.execute(insert, {"what": how})
            return outcome(how)

        @app.post("/async/{how}")
        @guarded.guard(transaction=async_session)
        async def place_async(how: str, db: AsyncSession = Depends(async_session)) -> Any:  # noqa: B008
            await db.execute(insert, {"what": how})
            await asyncio.sleep(0)
            return outcome(how)

        return app

    def things(self) -> list[str]:
        connection = sqlite3.connect(self.path)
        rows = connection.execute("SELECT what FROM things ORDER BY 1").fetchall()
        connection.close()
        return [what for (what,) in rows]

    async def close(self) -> None:
        await self.once.close()
        self.blocking.close()
        self.engine.dispose()
        await self.async_engine.dispose()


async def post(client: httpx.AsyncClient, path: str, key: str) -> httpx.Response:
    return await client.post(path, headers={"Authorization": "alice", "Idempotency-Key": key})


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_rows_record_and_response_commit_together(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        shop = Shop(tmp_path / "shop.db")
        transport = httpx.ASGITransport(app=shop.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            first, again = [await post(client, f"/{kind}/book", "k1") for _ in range(2)]
            assert (first.status_code, again.json()) == (200, {"what": "book"})
            assert again.headers["X-Idempotency-Replayed"] == "true"
            # A refusal is kept, its rows are not.
            refused = [await post(client, f"/{kind}/402", "k2") for _ in range(2)]
            assert [answer.status_code for answer in refused] == [402, 402]
            assert refused[1].headers["X-Idempotency-Replayed"] == "true"
            # A crash leaves nothing, and the key is free.
            crashed = [await post(client, f"/{kind}/crash", "k3") for _ in range(2)]
            assert [answer.status_code for answer in crashed] == [500, 500]
            assert "X-Idempotency-Replayed" not in crashed[1].headers
            assert shop.things() == ["book"]
            herd = [post(client, f"/{kind}/tea", "k4") for _ in range(5)]
            answers = await asyncio.gather(*herd)
            assert {answer.status_code for answer in answers} <= {200, 409}
            assert shop.things() == ["book", "tea"]
        await shop.close()

    asyncio.run(main())


def test_the_first_transaction_on_a_new_file_creates_the_tables(tmp_path: Path) -> None:
    """An app whose one guarded route is transactional: nothing else has made the tables yet."""

    async def main() -> None:
        path = tmp_path / "shop.db"
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}")

        async def session() -> AsyncIterator[AsyncSession]:
            async with AsyncSession(engine) as made:
                yield made

        app = FastAPI()
        guarded = Idempotency(AsyncOnce(f"sqlite:///{path}"), caller=Depends(account))
        guarded.attach(app)

        @app.post("/things")
        @guarded.guard(transaction=session)
        async def place(db: AsyncSession = Depends(session)) -> None:  # noqa: B008
            await db.execute(text("CREATE TABLE things (what TEXT)"))

        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            answers = [await post(client, "/things", "k") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        await guarded.end()
        await engine.dispose()

    asyncio.run(main())
