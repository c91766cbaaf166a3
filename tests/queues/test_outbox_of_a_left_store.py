"""An outbox stays where its rows are: a store whose keys were moved away still has its messages."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiosqlite
import psycopg
import pytest
from tests.support.postgres_stores import server

from oncekey import AsyncOnce, Once
from oncekey.core.errors import ConfigurationError
from oncekey.core.identity import Identities
from oncekey.engine.store_urls import blocking_store
from oncekey.queues.outbox import AsyncOutbox, AsyncOutboxPublisher, Outbox, OutboxPublisher
from oncekey.stores.move import DualStore

Connect = Callable[[], Any]


@pytest.fixture(params=["sqlite", "postgres"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Connect]]:
    """The URL of a store, and how its rows are reached."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/old.db", lambda: sqlite3.connect(tmp_path / "old.db")
        return
    schema = f"left_{uuid4().hex[:12]}"
    yield f"{server().url()}?schema={schema}", lambda: psycopg.connect(server().url())
    server().execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def add(outbox: Outbox, connect: Connect, key: str) -> None:
    with closing(connect()) as connection, connection:
        outbox.add(connection, "mails", "hello", key=key)


def leave(url: str, folder: Path) -> None:
    """Move all keys to another store."""
    with closing(blocking_store(url)) as one, closing(blocking_store(new(folder))) as other:
        store = DualStore(one, other)
        store.bind(Identities(None).check_value())
        store.finish_copy()


@asynccontextmanager
async def closing_all(*engines: AsyncOnce) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for engine in engines:
            await engine.close()


def new(folder: Path) -> str:
    return f"sqlite:///{folder}/new.db"


@pytest.fixture
def left(old: tuple[str, Connect], tmp_path: Path) -> tuple[str, Connect]:
    """A store with a waiting message, whose keys were moved away."""
    url, connect = old
    with Once(url) as once:
        outbox = Outbox(once)
        outbox.create_table()
        add(outbox, connect, "m1")
    leave(url, tmp_path)
    return old


def test_i4_messages_of_a_store_that_was_left_are_published(left: tuple[str, Connect]) -> None:
    url, connect = left
    outbox = Outbox(url)
    assert outbox.stats().waiting == 1
    sent: list[str] = []
    publisher = OutboxPublisher(url, lambda message: sent.append(message.id))
    assert publisher.publish_due() == 1
    outbox.create_table()
    add(outbox, connect, "m2")
    assert publisher.publish_due() == 1
    assert sent == ["m1", "m2"]
    assert outbox.stats().waiting == 0
    publisher.once.close()
    outbox.once.close()


def test_i4_messages_of_a_store_that_was_left_are_published_from_tasks(
    left: tuple[str, Connect],
) -> None:
    url, _ = left
    sent: list[str] = []
    publisher: Any = None

    async def publish(message: Any) -> None:
        sent.append(message.id)
        if message.id == "m2":
            publisher.stop()

    async def connect() -> Any:
        if url.startswith("sqlite"):
            return await aiosqlite.connect(url.removeprefix("sqlite:///"))
        return await psycopg.AsyncConnection.connect(server().url())

    async def work() -> None:
        nonlocal publisher
        outbox = AsyncOutbox(url)
        publisher = AsyncOutboxPublisher(url, publish)
        async with closing_all(outbox.once, publisher.once):
            assert (await outbox.stats()).waiting == 1
            assert await publisher.publish_due() == 1
            connection = await connect()
            await outbox.add(connection, "mails", "hello", key="m2")
            await connection.commit()
            await connection.close()
            await publisher.run()
            assert (await outbox.stats()).waiting == 0

    asyncio.run(work())
    assert sent == ["m1", "m2"]


def test_the_engine_of_such_an_outbox_still_refuses_keys(left: tuple[str, Connect]) -> None:
    url, connect = left
    outbox = Outbox(url)
    with pytest.raises(ConfigurationError, match="open the new store"):
        outbox.once.run("op", "k", lambda attempt: 1)
    add(outbox, connect, "m2")
    with pytest.raises(ConfigurationError, match="open the new store"):
        outbox.once.run("op", "k", lambda attempt: 1)
    with closing(connect()) as connection:
        tx = outbox.once.in_transaction(connection)
        with pytest.raises(ConfigurationError, match="open the new store"):
            tx.run("op", "k", lambda attempt: 1)
    outbox.once.close()


def test_an_outbox_of_another_secret_is_refused(old: tuple[str, Connect]) -> None:
    url, connect = old
    with Once(url, secret="a secret of sixteen bytes") as once:
        Outbox(once).create_table()
    outbox = Outbox(url)
    with pytest.raises(ConfigurationError, match="secret"):
        add(outbox, connect, "m1")
    outbox.once.close()
