"""The transactional inbox: key, rows and outbox commit together, and a message goes after that."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from tests.queues.outbox_case import clear, database
from tests.support.caller_connections.frameworks import django_databases

from oncekey import AsyncOnce, ConfigurationError, Once, OperationFailed, Terminal
from oncekey.queues import Consumer, Disposition, Kind, MemoryBroker, Message
from oncekey.queues.inbox import AsyncInbox, Inbox, django_transaction
from oncekey.queues.outbox import KEY_HEADER, Outbox, OutboxPublisher, memory_sender

INSERT = "INSERT INTO orders VALUES ('tea')"


def rows(url: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT count(*) FROM orders").fetchone()
    assert found is not None
    return int(found[0])


# --- connections of every kind --------------------------------------------------------------------


@contextmanager
def sync_connects(url: str) -> Iterator[dict[str, Callable[[], Any]]]:
    engine = create_engine(url.replace("postgresql", "postgresql+psycopg"))
    with (
        ConnectionPool(url, min_size=1) as pool,
        ConnectionPool(url, min_size=1, kwargs={"autocommit": True}) as autocommit,
    ):

        @contextmanager
        def own_block() -> Iterator[Any]:
            with autocommit.connection() as connection, connection.transaction():
                yield connection

        yield {
            "pool": pool.connection,
            "pool in autocommit": autocommit.connection,
            "the user's block": own_block,
            "connect": lambda: psycopg.connect(url),
            "sessionmaker": sessionmaker(engine),
            "sessionmaker.begin": sessionmaker(engine).begin,
            "engine.connect": engine.connect,
            "engine.begin": engine.begin,
        }
    engine.dispose()


def insert(connection: Any) -> None:
    is_alchemy = type(connection).__module__.startswith("sqlalchemy")
    connection.execute(text(INSERT) if is_alchemy else INSERT)


def test_rows_are_committed_on_every_kind_of_connection() -> None:
    url = database()
    with Once(url) as once, sync_connects(url) as connects:
        for kind, connect in connects.items():
            clear(url)
            inbox = Inbox(once, connect)

            def fails(attempt: Any) -> None:
                insert(attempt.connection)
                raise ZeroDivisionError

            def refuses(attempt: Any) -> None:
                insert(attempt.connection)
                raise Terminal("out of tea")

            with pytest.raises(ZeroDivisionError):
                inbox.run("op", "k", fails)
            assert once.get("op", "k") is None, kind
            result = inbox.run("op", "k", lambda attempt: insert(attempt.connection))
            assert (result.replayed, rows(url)) == (False, 1), kind
            assert inbox.run("op", "k", fails).replayed
            with pytest.raises(Terminal):
                inbox.run("op", "refused", refuses)
            with pytest.raises(OperationFailed):  # the failure was committed, its rows were not
                inbox.run("op", "refused", fails)
            assert rows(url) == 1, kind


def test_rows_are_committed_on_every_kind_of_async_connection() -> None:
    asyncio.run(_check_async_connections())


async def _check_async_connections() -> None:
    url = database()
    engine = create_async_engine(url.replace("postgresql", "postgresql+asyncpg"))
    async with (
        AsyncOnce(url) as once,
        asyncpg.create_pool(url, min_size=1) as pool,
        AsyncConnectionPool(url, min_size=1) as psycopg_pool,
    ):
        connects: dict[str, Callable[[], Any]] = {
            "asyncpg": pool.acquire,
            "psycopg": psycopg_pool.connection,
            "async_sessionmaker": async_sessionmaker(engine),
            "engine.begin": engine.begin,
        }
        for kind, connect in connects.items():
            clear(url)
            inbox = AsyncInbox(once, connect)

            async def writes(attempt: Any) -> None:
                connection = attempt.connection
                is_alchemy = type(connection).__module__.startswith("sqlalchemy")
                await connection.execute(text(INSERT) if is_alchemy else INSERT)

            async def fails(attempt: Any) -> None:
                await writes(attempt)
                raise ZeroDivisionError

            async def refuses(attempt: Any) -> None:
                await writes(attempt)
                raise Terminal("out of tea")

            with pytest.raises(ZeroDivisionError):
                await inbox.run("op", "k", fails)
            result = await inbox.run("op", "k", writes)
            assert (result.replayed, rows(url)) == (False, 1), kind
            assert (await inbox.run("op", "k", fails)).replayed
            with pytest.raises(Terminal):
                await inbox.run("op", "refused", refuses)
            with pytest.raises(OperationFailed):
                await inbox.run("op", "refused", fails)
            assert rows(url) == 1, kind
    await engine.dispose()


def test_django_runs_in_its_own_transaction() -> None:
    from tests.support.caller_connections import clear_tables, orders
    from tests.support.caller_connections.database import database as django_url

    clear_tables()
    django_databases()
    from django.db import connection

    def writes(attempt: Any) -> None:
        with attempt.connection.cursor() as cursor:
            cursor.execute(INSERT)

    try:
        with Once(django_url()) as once:
            inbox = Inbox(once, django_transaction())
            assert not inbox.run("op", "k", writes).replayed
            assert inbox.run("op", "k", writes).replayed
        assert orders() == ["tea"]
    finally:
        connection.close()


def test_sqlite_connections_are_committed_and_closed(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    opened = []

    def connect() -> sqlite3.Connection:
        opened.append(sqlite3.connect(path))
        return opened[-1]

    with Once(f"sqlite:///{path}") as once:
        setup = connect()
        setup.execute("CREATE TABLE orders (item)")
        setup.close()
        inbox = Inbox(once, connect)
        assert not inbox.run("op", "k", lambda attempt: insert(attempt.connection)).replayed
        assert inbox.run("op", "k", lambda attempt: insert(attempt.connection)).replayed
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
    check = sqlite3.connect(path)
    assert check.execute("SELECT count(*) FROM orders").fetchall() == [(1,)]
    check.close()


def test_aiosqlite_connections_are_committed(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def run() -> list[Any]:
        async with AsyncOnce(f"sqlite:///{path}") as once:
            inbox = AsyncInbox(once, lambda: aiosqlite.connect(path))

            async def writes(attempt: Any) -> None:
                await attempt.connection.execute("CREATE TABLE orders (item)")
                await attempt.connection.execute(INSERT)

            await inbox.run("op", "k", writes)
            async with aiosqlite.connect(path) as check:
                return list(await check.execute_fetchall("SELECT item FROM orders"))

    assert asyncio.run(run()) == [("tea",)]


def test_an_attempt_without_a_transaction_has_no_connection() -> None:
    with Once("memory://") as once:
        assert once.run("op", "k", lambda attempt: attempt.connection is None).value


def test_a_serialization_failure_is_tried_again() -> None:
    url = database()
    clear(url)
    with Once(url) as once, ConnectionPool(url, min_size=1) as pool:
        runs: list[int] = []

        def writes(attempt: Any) -> None:
            connection = attempt.connection
            runs.append(1)
            if len(runs) == 1:
                raise psycopg.errors.SerializationFailure("try again")
            insert(connection)

        assert not Inbox(once, pool.connection).run("op", "k", writes).replayed
        assert (len(runs), rows(url)) == (2, 1)


@pytest.mark.parametrize(
    ("once", "connect", "options", "message"),
    [
        (object(), print, {}, "needs a Once"),
        (None, "pool", {}, "must be a function"),
        (None, print, {"tries": 0}, "tries=0"),
    ],
)
def test_bad_settings_are_refused(once: Any, connect: Any, options: Any, message: str) -> None:
    with Once("memory://") as memory, pytest.raises(ConfigurationError, match=message):
        Inbox(once or memory, connect, **options)


# --- a consumer with an inbox, and an outbox behind it --------------------------------------------


class Chain:
    """Orders are consumed into rows and mails, the mails are published and consumed in turn."""

    def __init__(self, url: str, pool: ConnectionPool[Any], once: Once) -> None:
        self.url = url
        self.orders, self.mails = MemoryBroker("orders"), MemoryBroker("mails")
        self.outbox = Outbox(once)
        self.inbox = Inbox(once, pool.connection)
        self.once = once
        self.mailed: list[str] = []
        self.failures: list[Exception] = []

    def order(self, message: Message, connection: Any) -> None:
        connection.execute("INSERT INTO orders VALUES (%s)", [message.text])
        self.outbox.add(connection, "mails", message.text)
        if self.failures:
            raise self.failures.pop()

    def mail(self, message: Message) -> None:
        self.mailed.append(message.text)

    def consume(self, broker: MemoryBroker, count: int) -> None:
        """Consume until so many messages have left the queue."""
        is_orders = broker is self.orders
        options: dict[str, Any] = {"name": "shop", "key": lambda message: message.text}
        if is_orders:
            options["inbox"] = self.inbox
        else:
            options["key"] = f"header:{KEY_HEADER}"
        handler = self.order if is_orders else self.mail
        consumer = Consumer(
            self.once, handler, broker, backoff="1ms", backoff_max="2ms", max_tries=3, **options
        )
        left = threading.Semaphore(0)

        def settled(message: Message, disposition: Disposition) -> None:
            if disposition.lets_pass:
                left.release()

        consumer.on_settled = settled
        thread = threading.Thread(target=consumer.run)
        thread.start()
        for _ in range(count):
            assert left.acquire(timeout=90)
        consumer.stop()
        thread.join(90)
        self.counts = consumer.counts


@pytest.fixture
def chain() -> Iterator[Chain]:
    url = database()
    clear(url)
    with Once(url) as once, ConnectionPool(url, min_size=1, max_size=10) as pool:
        yield Chain(url, pool, once)


def test_a_redelivered_message_writes_its_rows_and_its_message_once(chain: Chain) -> None:
    for items in (("tea", "milk"), ("tea", "tea")):
        for item in items:
            chain.orders.send(item)
        chain.consume(chain.orders, 2)
    assert len(chain.orders) == 0
    assert rows(chain.url) == 2
    publisher = OutboxPublisher(chain.once, memory_sender(chain.mails))
    assert publisher.publish_due() == 2
    sent = list(chain.mails._stored.values())
    chain.consume(chain.mails, 2)
    # A publisher that died before it settled sends everything once more.
    for message in sent:
        chain.mails.send(message.body, message.headers)
    chain.consume(chain.mails, 2)
    assert sorted(chain.mailed) == ["milk", "tea"]


def test_a_handler_that_raises_leaves_nothing_and_is_tried_again(chain: Chain) -> None:
    chain.failures = [ValueError("first"), ValueError("second")]
    chain.orders.send("tea")
    chain.consume(chain.orders, 1)
    assert chain.counts == {Kind.RETRY: 2, Kind.REMOVE: 1}
    assert (rows(chain.url), chain.outbox.stats().waiting) == (1, 1)


def test_a_message_that_fails_too_often_is_a_dead_letter_with_its_stored_error(
    chain: Chain,
) -> None:
    chain.failures = [ValueError(str(number)) for number in range(3)]
    chain.orders.send("tea")
    chain.consume(chain.orders, 1)
    assert chain.counts == {Kind.RETRY: 2, Kind.DEAD_LETTER: 1}
    (letter,) = chain.orders.dead_letters
    assert "failed 3 times" in letter.headers["oncekey-error"]
    assert int(letter.headers["oncekey-fence"]) > 0
    assert (rows(chain.url), chain.outbox.stats().waiting) == (0, 0)
    # Moved back, it runs once more, and only once.
    chain.orders.redrive(1, "by hand")
    chain.orders.send("tea")
    chain.consume(chain.orders, 2)
    assert (rows(chain.url), chain.outbox.stats().waiting) == (1, 1)


def test_a_pool_without_connections_makes_no_dead_letters(chain: Chain) -> None:
    """The handler has not run, so no try has failed, however often the broker has delivered."""
    # The first is that of the consumer's start.
    refusals, connect = [PoolTimeout("no connection")] * 7, chain.inbox._connect

    def crowded() -> Any:
        if refusals:
            raise refusals.pop()
        return connect()

    chain.inbox._connect = crowded
    chain.orders.send("tea")
    chain.consume(chain.orders, 1)
    assert chain.counts == {Kind.RETRY: 6, Kind.REMOVE: 1}
    assert rows(chain.url) == 1


def test_a_message_that_may_end_its_consumers_is_a_dead_letter_in_the_end(chain: Chain) -> None:
    refusals, connect = [PoolTimeout("no connection")] * 31, chain.inbox._connect
    chain.inbox._connect = lambda: connect() if not refusals else raise_(refusals.pop())
    chain.orders.send("tea")
    chain.consume(chain.orders, 1)
    assert chain.counts == {Kind.RETRY: 30, Kind.DEAD_LETTER: 1}


def raise_(error: Exception) -> Any:
    raise error


def test_a_handler_that_hides_an_error_of_the_database_stops_nobody_else(chain: Chain) -> None:
    """Its transaction cannot be committed, which says nothing about the store."""
    order = chain.order

    def hides(message: Message, connection: Any) -> None:
        if message.text == "milk":
            with contextlib.suppress(psycopg.errors.DivisionByZero):
                connection.execute("SELECT 1 / 0")
        else:
            order(message, connection)

    chain.order = hides  # type: ignore[method-assign]
    chain.orders.send("milk")
    chain.orders.send("tea")
    chain.consume(chain.orders, 2)
    assert chain.counts == {Kind.RETRY: 2, Kind.DEAD_LETTER: 1, Kind.REMOVE: 1}
    assert "TransactionAborted" in chain.orders.dead_letters[0].headers["oncekey-error"]
    assert rows(chain.url) == 1
