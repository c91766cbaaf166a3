"""Outboxes for tests: on SQLite and PostgreSQL, sync and async, all used in the same way.

A case has an engine, an outbox and a clock that stands still. Messages are added on a connection of
the test's own. Async engines run on one event loop that the case keeps.
"""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
from tests.support.postgres_stores import server

from oncekey import AsyncOnce, Once
from oncekey.queues.outbox import (
    AsyncOutbox,
    AsyncOutboxPublisher,
    Outbox,
    OutboxPublisher,
    OutboxStats,
    OutgoingMessage,
)
from oncekey.stores.postgres import AsyncPostgresStore, PostgresStore
from oncekey.stores.sqlite.sqlite_store import AsyncSQLiteStore, SQLiteStore
from oncekey.testing import FakeClock

# The flow of a publisher is the same for all of them, and each half of these is the other's pair.
ALL_KINDS = ("sqlite", "sqlite-async", "postgres", "postgres-async")
KINDS = ALL_KINDS if os.environ.get("ONCEKEY_SOAK") else ("sqlite-async", "postgres")
SECOND = 1_000_000


@functools.cache
def database() -> str:
    """The URL of a database of this process, with an empty outbox, on the shared server."""
    url: str = server().create_database(f"outbox_{secrets.token_hex(4)}")
    with Once(url) as once:
        Outbox(once).create_table()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE orders (item text)")
    return url


def clear(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("DELETE FROM oncekey.outbox; DELETE FROM orders")
        connection.execute("DELETE FROM oncekey.records; DELETE FROM oncekey.history")


class OutboxCase:
    """One engine with its outbox; every method blocks, whatever the engine is."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.clock = FakeClock()
        self.is_async = kind.endswith("-async")
        self.runner = asyncio.Runner()
        self.path = directory / "outbox.db"
        self.url = f"sqlite:///{self.path}"
        if not kind.startswith("sqlite"):
            self.url = database()
            clear(self.url)
        self.once: Any = self.engine()
        self.outbox: Any = (AsyncOutbox if self.is_async else Outbox)(self.once)
        self.do(self.outbox.create_table())

    def engine(self) -> Any:
        if self.kind.startswith("sqlite"):
            sqlite_store: Any = AsyncSQLiteStore if self.is_async else SQLiteStore
            store = sqlite_store(self.path, clock=self.clock.wall)
        else:
            postgres: Any = AsyncPostgresStore if self.is_async else PostgresStore
            store = postgres(self.url, clock=self.clock.wall)
        once: Any = AsyncOnce if self.is_async else Once
        return once(store, clock=self.clock)

    def do(self, result: Any) -> Any:
        """The result of a call, awaited if it is awaitable."""
        if not hasattr(result, "__await__"):
            return result

        async def awaited() -> Any:
            return await result

        return self.runner.run(awaited())

    def close(self) -> None:
        self.do(self.once.close())
        self.runner.close()

    # --- messages -----------------------------------------------------------------------------

    def add(self, body: Any, *, commit: bool = True, queue: str = "orders", **options: Any) -> str:
        """Add a message in a transaction of its own."""
        if self.is_async:
            id: str = self.runner.run(self._add_async(body, commit, queue, options))
            return id
        with closing(self.connect()) as connection:
            id = self.outbox.add(connection, queue, body, **options)
            connection.commit() if commit else connection.rollback()
        return id

    def connect(self) -> Any:
        is_sqlite = self.kind.startswith("sqlite")
        return sqlite3.connect(self.path) if is_sqlite else psycopg.connect(self.url)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A sync connection in a transaction that is committed."""
        with closing(self.connect()) as connection:
            yield connection
            connection.commit()

    async def _add_async(self, body: Any, commit: bool, queue: str, options: Any) -> str:
        if self.kind.startswith("sqlite"):
            async with aiosqlite.connect(self.path) as connection:
                id: str = await self.outbox.add(connection, queue, body, **options)
                await (connection.commit() if commit else connection.rollback())
            return id
        postgres = await asyncpg.connect(self.url)
        try:
            transaction = postgres.transaction()
            await transaction.start()
            id = await self.outbox.add(postgres, queue, body, **options)
            await (transaction.commit() if commit else transaction.rollback())
        finally:
            await postgres.close()
        return id

    def publisher(
        self, publish: Callable[[OutgoingMessage], object] | Any, **options: Any
    ) -> TestPublisher:
        return TestPublisher(self, publish, options)

    def bodies(self) -> list[str]:
        """The bodies of the rows, in their order."""
        table = "oncekey_outbox" if self.kind.startswith("sqlite") else "oncekey.outbox"
        with closing(self.connect()) as connection:
            rows = connection.execute(f"SELECT body FROM {table} ORDER BY seq").fetchall()  # noqa: S608
        return [bytes(body).decode() for (body,) in rows]

    def stats(self) -> OutboxStats:
        stats: OutboxStats = self.do(self.outbox.stats())
        return stats


class TestPublisher:
    """A publisher of either kind; `publish` is a plain function."""

    __test__ = False

    def __init__(self, case: OutboxCase, publish: Any, options: dict[str, Any]) -> None:
        async def publish_async(message: OutgoingMessage) -> None:
            result = publish(message)
            if hasattr(result, "__await__"):
                await result

        self.case = case
        given = publish_async if case.is_async and not hasattr(publish, "send") else publish
        kind: Any = AsyncOutboxPublisher if case.is_async else OutboxPublisher
        self.publisher: Any = kind(case.once, given, clock=case.clock, **options)

    def publish_due(self) -> int:
        published: int = self.case.do(self.publisher.publish_due())
        return published

    def run(self) -> None:
        self.case.do(self.publisher.run())

    def stop(self) -> None:
        self.publisher.stop()


def refused() -> ValueError:
    return ValueError("the broker says no")


class Sent:
    """A function that remembers what it was given, and refuses what it is told to."""

    def __init__(self, case: OutboxCase | None = None) -> None:
        self.case = case
        self.messages: list[OutgoingMessage] = []
        self.errors: dict[str, BaseException] = {}
        self.hook: Callable[[OutgoingMessage], object] = lambda message: None

    def __call__(self, message: OutgoingMessage) -> object:
        result = self.hook(message)
        error = self.errors.get(message.text)
        if error is not None:
            raise error
        self.messages.append(message)
        return result

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.messages]


class BatchSender:
    """A sender of up to ten messages at a time, which remembers its batches."""

    batch_max = 10

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.errors: dict[str, Exception] = {}

    def send(self, messages: Sequence[OutgoingMessage]) -> list[Exception | None]:
        self.batches.append([message.text for message in messages])
        return [self.errors.get(message.text) for message in messages]


class AsyncBatchSender(BatchSender):
    async def send(  # type: ignore[override]
        self, messages: Sequence[OutgoingMessage]
    ) -> list[Exception | None]:
        return super().send(messages)
