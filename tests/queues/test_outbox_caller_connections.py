"""Messages are added on callers' connections of every kind, and commit or roll back with them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from tests.support.caller_connections import CALLERS, Caller, clear_tables, query, resolved
from tests.support.caller_connections.database import database

from oncekey import AsyncOnce, ConfigurationError, Mismatch, Once
from oncekey.queues.outbox import AsyncOutbox, Outbox, OutgoingMessage
from oncekey.queues.outbox.outgoing_message import BODY_MAX_BYTES, HEADERS_MAX_BYTES

ROWS = "SELECT id, queue, order_group, convert_from(body, 'UTF8') FROM oncekey.outbox ORDER BY seq"


@pytest.fixture(autouse=True, scope="module")
def _table() -> None:
    with Once(database()) as once:
        Outbox(once).create_table()


def with_caller(kind: str, check: Callable[[Caller, Any], Awaitable[None]]) -> None:
    clear_tables()
    query("DELETE FROM oncekey.outbox")

    async def run() -> None:
        async with CALLERS[kind]() as caller:
            outbox = AsyncOutbox(caller.once) if caller.is_async else Outbox(caller.once)
            await check(caller, outbox)

    if CALLERS[kind].is_async:
        asyncio.run(run())
        return
    with pytest.raises(StopIteration):  # without an event loop, which Django does not allow
        run().send(None)


@pytest.mark.parametrize("kind", CALLERS)
def test_a_message_commits_and_rolls_back_with_the_rows(kind: str) -> None:
    async def check(caller: Caller, outbox: Any) -> None:
        async with caller.transaction():
            await caller.execute("INSERT INTO orders VALUES ('tea')")
            await resolved(outbox.add(caller.subject, "q", {"n": 1}, key="k1", order_group="g"))
            assert query(ROWS) == []  # nobody else sees it before the commit
        assert query(ROWS) == [("k1", "q", "g", '{"n":1}')]
        await caller.begin()
        await resolved(outbox.add(caller.subject, "q", "two"))
        await caller.rollback()
        assert len(query(ROWS)) == 1

    with_caller(kind, check)


@pytest.mark.parametrize("kind", CALLERS)
def test_a_message_of_an_operation_has_a_child_key_and_shares_its_savepoint(kind: str) -> None:
    async def check(caller: Caller, outbox: Any) -> None:
        ids = []

        def adds(attempt: Any) -> Any:
            ids.append(attempt.child_key("outbox:q"))
            return outbox.add(caller.subject, "q", "one")

        async def adds_async(attempt: Any) -> Any:
            return await adds(attempt)

        async def fails_async(attempt: Any) -> Any:
            await adds(attempt)
            raise ZeroDivisionError

        def fails(attempt: Any) -> Any:
            adds(attempt)
            raise ZeroDivisionError

        async with caller.transaction():
            tx = caller.once.in_transaction(caller.subject)
            with pytest.raises(ZeroDivisionError):
                await resolved(tx.run("op", "a", fails_async if caller.is_async else fails))
            result = await resolved(tx.run("op", "b", adds_async if caller.is_async else adds))
        assert query(ROWS) == [(ids[1], "q", None, "one")]
        assert result.value == ids[1] != ids[0]

    with_caller(kind, check)


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async", "asyncpg", "django"])
def test_a_connection_without_a_transaction_is_refused(kind: str) -> None:
    async def check(caller: Caller, outbox: Any) -> None:
        with pytest.raises(ConfigurationError, match="in no transaction"):
            await resolved(outbox.add(caller.subject, "q", "one"))
        assert query(ROWS) == []

    with_caller(kind, check)


@pytest.mark.parametrize("kind", ["psycopg", "asyncpg"])
def test_a_connection_to_another_store_is_refused(kind: str) -> None:
    async def check(caller: Caller, outbox: Any) -> None:
        query("UPDATE oncekey.meta SET value = value || 'x' WHERE name = 'identity'")
        other = Once if not caller.is_async else AsyncOnce
        elsewhere: Any = other(caller.url)
        await resolved(elsewhere.get("order", "-"))
        query("UPDATE oncekey.meta SET value = substr(value, 1, 16) WHERE name = 'identity'")
        elsewhere._store._identify = lambda: resolved(None) if caller.is_async else None
        try:
            other_outbox: Any = AsyncOutbox if caller.is_async else Outbox
            async with caller.transaction():
                with pytest.raises(ConfigurationError, match="nobody would publish"):
                    await resolved(other_outbox(elsewhere).add(caller.subject, "q", "one"))
        finally:
            await resolved(elsewhere.close())
        assert query(ROWS) == []

    with_caller(kind, check)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("kind", ["psycopg", "asyncpg"])
def test_a_message_is_added_at_every_isolation_level(kind: str, isolation: str) -> None:
    async def check(caller: Caller, outbox: Any) -> None:
        for number in range(2):
            async with caller.transaction(isolation):
                await caller.execute("SELECT count(*) FROM orders")  # takes the snapshot
                for _ in range(2):
                    await resolved(
                        outbox.add(caller.subject, "q", "m", key=f"k{number}", order_group="g")
                    )
        assert [id for id, *_ in query(ROWS)] == ["k0", "k1"]

    with_caller(kind, check)


# --- SQLite ---------------------------------------------------------------------------------------


def stored(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT body FROM oncekey_outbox ORDER BY seq").fetchall()
    connection.close()
    return [body.decode() for (body,) in rows]


def test_sqlite_connections_of_every_kind_add_messages(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Once(f"sqlite:///{path}") as once:
        outbox = Outbox(once)
        outbox.create_table()
        plain = sqlite3.connect(path)
        with plain:
            outbox.add(plain, "q", "sqlite3")
        plain.close()
        engine = create_engine(f"sqlite:///{path}")
        with Session(engine) as session:
            outbox.add(session, "q", "session")
            session.commit()
            outbox.add(session, "q", "rolled back")
            session.rollback()
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE t (x)"))
            outbox.add(connection, "q", "connection")
        engine.dispose()
    assert stored(path) == ["sqlite3", "session", "connection"]


def test_async_sqlite_connections_of_every_kind_add_messages(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def run() -> None:
        async with AsyncOnce(f"sqlite:///{path}") as once:
            outbox = AsyncOutbox(once)
            await outbox.create_table()
            async with aiosqlite.connect(path) as connection:
                await outbox.add(connection, "q", "aiosqlite")
                await connection.commit()
                await outbox.add(connection, "q", "rolled back")
            on_loop = sqlite3.connect(path)
            with on_loop:
                await outbox.add(on_loop, "q", "sqlite3")
            on_loop.close()
            engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
            async with engine.begin() as alchemy:
                await outbox.add(alchemy, "q", "sqlalchemy")
            await engine.dispose()

    asyncio.run(run())
    assert stored(path) == ["aiosqlite", "sqlite3", "sqlalchemy"]


# --- ids and what is refused ----------------------------------------------------------------------


class Shop:
    """An outbox on SQLite, and an open connection."""

    def __init__(self, path: Path) -> None:
        self.once = Once(f"sqlite:///{path}")
        self.outbox = Outbox(self.once)
        self.outbox.create_table()
        self.db = sqlite3.connect(path)
        self.path = path

    def add(self, body: Any = "x", **options: Any) -> str:
        return self.outbox.add(self.db, "q", body, **options)


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    made = Shop(tmp_path / "a.db")
    yield made
    made.db.close()
    made.once.close()


def test_an_operation_that_runs_again_adds_the_same_message(shop: Shop) -> None:
    """Its first attempt committed the message and died before its outcome was stored."""
    runs: list[str] = []

    def body(attempt: Any) -> None:
        runs.append(shop.add(f"run {len(runs)}"))
        shop.db.commit()
        if len(runs) == 1:
            raise RuntimeError("the process dies here")

    with pytest.raises(RuntimeError):
        shop.once.run("op", "k", body, retry_safe=True)
    shop.once.run("op", "k", body, retry_safe=True)
    assert len(runs) == 2
    assert runs[0] == runs[1]
    assert stored(shop.path) == ["run 0"]  # the first one stays


def test_messages_of_one_operation_need_names_of_their_own(shop: Shop) -> None:
    def body(attempt: Any) -> list[str]:
        first, again = shop.add("a"), shop.add("a")
        with pytest.raises(Mismatch, match="name="):
            shop.add("b")
        second = shop.add("b", name="second")
        shop.db.commit()  # before the outcome is stored in the same file
        return [first, again, second]

    first, again, second = shop.once.run("op", "k", body).value
    assert first == again != second


def test_a_key_stands_for_one_message(shop: Shop) -> None:
    shop.add("a", key="k")
    for other in ({"body": "b"}, {"headers": {"a": "b"}}, {"order_group": "g"}):
        with pytest.raises(Mismatch, match="another message"):
            shop.add(**{"body": "a", "key": "k", **other})


def test_messages_without_a_key_are_different(shop: Shop) -> None:
    assert shop.add("a") != shop.add("a")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "n"}, "none runs here"),
        ({"name": "n", "key": "k"}, "not both"),
        ({"headers": {"oncekey-key": "k"}}, "are ours"),
        ({"headers": {"a": 1}}, "must be text"),
        ({"headers": {"a": "x" * HEADERS_MAX_BYTES}}, "more than"),
        ({"body": b"x" * (BODY_MAX_BYTES + 1)}, "are allowed"),
    ],
)
def test_bad_messages_are_refused_with_what_to_do(
    shop: Shop, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        shop.add(**options)
    assert not shop.db.in_transaction


def test_an_outbox_needs_a_database_of_rows() -> None:
    with Once("memory://") as once, pytest.raises(ConfigurationError, match="PostgreSQL or SQLite"):
        Outbox(once)
    with pytest.raises(ConfigurationError, match="AsyncOnce"):
        AsyncOutbox(object())  # type: ignore[arg-type]


def test_a_message_reads_its_body() -> None:
    message = OutgoingMessage("id", "q", b'{"a": 1}')
    assert message.json() == {"a": 1}
    assert message.text == '{"a": 1}'
