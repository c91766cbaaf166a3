"""A SQLite database whose COMMIT fails while an account is missing, and clients of apps on it.

An order refers to its account by a foreign key that is checked at the COMMIT. So the INSERT works,
and the COMMIT fails until `open_account` was called.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

_SCHEMA = (
    "CREATE TABLE accounts (id INTEGER PRIMARY KEY)",
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, account INTEGER NOT NULL"
    " REFERENCES accounts DEFERRABLE INITIALLY DEFERRED)",
)


class Shop:
    """The database, and the number of times that a handler has run."""

    def __init__(self, folder: Path) -> None:
        # SQLite leaves a transaction open whose COMMIT has failed, so each session has a connection
        # of its own, which ends with it.
        self.engine = create_engine(
            f"sqlite:///{folder / 'shop.db'}",
            connect_args={"check_same_thread": False},
            poolclass=NullPool,
        )
        event.listen(self.engine, "connect", _check_foreign_keys)
        with self.engine.begin() as connection:
            for statement in _SCHEMA:
                connection.execute(text(statement))
        self.make_session = sessionmaker(self.engine)
        self.runs = 0

    def write_order(self, session: Session) -> None:
        self.runs += 1
        session.execute(text("INSERT INTO orders (account) VALUES (1)"))

    def open_account(self) -> None:
        with self.engine.begin() as connection:
            connection.execute(text("INSERT INTO accounts VALUES (1)"))

    def orders(self) -> int:
        with self.engine.begin() as connection:
            return int(connection.execute(text("SELECT count(*) FROM orders")).scalar_one())


def _check_foreign_keys(connection: Any, record: Any) -> None:
    connection.execute("PRAGMA foreign_keys = ON")


def sync_session(shop: Shop) -> Callable[[], Iterator[Session]]:
    """A dependency of FastAPI that commits after its `yield`."""

    def get_session() -> Iterator[Session]:
        with shop.make_session() as session:
            yield session
            session.commit()

    return get_session


def async_session(shop: Shop) -> Callable[[], AsyncIterator[Session]]:
    """The same, async."""

    async def get_session() -> AsyncIterator[Session]:
        with shop.make_session() as session:
            yield session
            session.commit()

    return get_session


def post(app: Any, key: str = "k", path: str = "/orders") -> httpx.Response:
    """Send one keyed request to an ASGI app. An error that the app raises is a 500, as of a
    server."""

    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            return await client.post(path, headers={"Idempotency-Key": key})

    return asyncio.run(main())


def post_wsgi(app: Any, key: str = "k", path: str = "/orders") -> httpx.Response:
    """The same for a WSGI app. An error that it raises before its first byte is a 500."""
    transport = httpx.WSGITransport(app, raise_app_exceptions=False)
    with httpx.Client(transport=transport, base_url="http://shop") as client:
        try:
            return client.post(path, headers={"Idempotency-Key": key})
        except Exception:  # out of the app, as a server sees it
            return httpx.Response(500)


def is_replay(response: httpx.Response) -> bool:
    return bool(response.headers.get("X-Idempotency-Replayed") == "true")
