"""A caller's connection that does not sync promises less than the store, and is treated so (I4).

`PRAGMA synchronous` belongs to each connection. Where the caller has lowered it, a power loss takes
back what was acknowledged in its transactions, whatever the store's own setting is.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.http.django_orders import run
from tests.support.log_records import written_log

from oncekey import AsyncOnce, Once, Policy
from oncekey.core.errors import ConfigurationError
from oncekey.queues.inbox import AsyncInbox, Inbox
from oncekey.queues.outbox import AsyncOutbox, Outbox

KINDS = ["sqlite3", "sqlalchemy", "loop-sqlite3", "aiosqlite", "async-sqlalchemy"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    outbox = Outbox(f"sqlite:///{path}")
    outbox.create_table()
    outbox.once.close()
    return path


@asynccontextmanager
async def connected(kind: str, path: Path, mode: str) -> AsyncIterator[Any]:
    """A caller's connection of this kind with PRAGMA synchronous=mode."""
    pragma = f"PRAGMA synchronous={mode}"
    if kind.endswith("sqlalchemy"):
        if kind == "sqlalchemy":
            engine: Any = create_engine(f"sqlite:///{path}")
            event.listen(engine, "connect", lambda driver, _: driver.execute(pragma).close())
            with Session(engine) as session:
                yield session
            engine.dispose()
        else:
            engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
            connect = engine.sync_engine
            event.listen(connect, "connect", lambda driver, _: driver.cursor().execute(pragma))
            async with AsyncSession(engine) as session:
                yield session
            await engine.dispose()
    elif kind == "aiosqlite":
        async with aiosqlite.connect(path) as connection:
            await connection.execute(pragma)
            yield connection
    else:
        own = sqlite3.connect(path)
        own.execute(pragma)
        yield own
        own.close()


async def done(given: Any) -> Any:
    return await given if isinstance(given, Awaitable) else given


def is_async(kind: str) -> bool:
    return kind not in ("sqlite3", "sqlalchemy")


def engine_of(kind: str, path: Path, **options: Any) -> Any:
    return (AsyncOnce if is_async(kind) else Once)(f"sqlite:///{path}", **options)


def body_of(kind: str, ran: list[int] | None = None) -> Any:
    """A body that notes that it ran."""

    def body(attempt: Any) -> int:
        (ran if ran is not None else []).append(1)
        return 1

    async def awaited(attempt: Any) -> int:
        return body(attempt)

    return awaited if is_async(kind) else body


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["OFF", "NORMAL"])
@pytest.mark.parametrize("level", ["at_most_once", "transactional"])
def test_i4_a_callers_connection_that_does_not_sync_is_refused(
    path: Path, kind: str, mode: str, level: str
) -> None:
    async def work() -> None:
        once = engine_of(kind, path)
        ran: list[int] = []
        async with connected(kind, path, mode) as mine:
            tx = once.in_transaction(mine)
            with pytest.raises(ConfigurationError) as raised:
                await done(tx.run("order", "k", body_of(kind, ran), require=level))
            await done(mine.commit())
        told = str(raised.value)
        assert told.startswith("order [")
        assert f"synchronous={mode.lower()}" in told
        assert '"PRAGMA synchronous=FULL"' in told
        assert not ran
        assert await done(once.get("order", "k")) is None  # the key is free
        await done(once.close())

    asyncio.run(work())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["FULL", "EXTRA"])
def test_a_callers_connection_that_syncs_is_transactional(path: Path, kind: str, mode: str) -> None:
    async def work() -> None:
        once = engine_of(kind, path)
        async with connected(kind, path, mode) as mine:
            tx = once.in_transaction(mine)
            result = await done(tx.run("order", "k", body_of(kind), require="transactional"))
            await done(mine.commit())
        assert result.value == 1
        assert (await done(once.get("order", "k"))).state == "succeeded"
        await done(once.close())

    with written_log("oncekey") as log:
        asyncio.run(work())
    assert log.lines == []


@pytest.mark.parametrize("kind", KINDS)
def test_where_nothing_is_required_it_is_best_effort_and_logged_once(path: Path, kind: str) -> None:
    async def work() -> None:
        once = engine_of(kind, path)
        for key in ("k1", "k2"):
            async with connected(kind, path, "NORMAL") as mine:
                tx = once.in_transaction(mine)
                assert (await done(tx.run("order", key, body_of(kind)))).value == 1
                await done(mine.commit())
        await done(once.close())

    with written_log("oncekey") as log:
        asyncio.run(work())
    (record,) = log.records
    assert record.levelname == "WARNING"
    assert "best effort" in record.getMessage()
    assert "synchronous=normal" in record.getMessage()


@pytest.mark.parametrize("kind", KINDS)
def test_i4_an_outbox_refuses_a_connection_that_does_not_sync(path: Path, kind: str) -> None:
    async def work() -> None:
        once = engine_of(kind, path, policy=Policy(require="transactional"))
        outbox: Any = (AsyncOutbox if is_async(kind) else Outbox)(once)
        async with connected(kind, path, "OFF") as mine:
            with pytest.raises(ConfigurationError, match="PRAGMA synchronous=FULL"):
                await done(outbox.add(mine, "mail", {"to": "ana"}, key="m1"))
            await done(mine.commit())
        assert (await done(outbox.stats())).waiting == 0
        async with connected(kind, path, "FULL") as mine:
            await done(outbox.add(mine, "mail", {"to": "ana"}, key="m1"))
            await done(mine.commit())
        assert (await done(outbox.stats())).waiting == 1
        await done(once.close())

    asyncio.run(work())


@pytest.mark.parametrize("kind", ["sqlite3", "aiosqlite"])
def test_i4_an_inbox_refuses_connections_that_do_not_sync(path: Path, kind: str) -> None:
    @contextmanager
    def own() -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA synchronous=NORMAL")
            yield connection

    async def work() -> None:
        once = engine_of(kind, path)
        make: Any = AsyncInbox if is_async(kind) else Inbox
        inbox = make(once, lambda: connected(kind, path, "NORMAL") if is_async(kind) else own())
        required = {"require": "at_most_once"}
        with pytest.raises(ConfigurationError, match="PRAGMA synchronous=FULL"):
            await done(inbox.run("order", "k", body_of(kind), **required))
        require = required["require"]
        with pytest.raises(ConfigurationError, match="PRAGMA synchronous=FULL"):
            await done(inbox.check(require))  # before the first message
        await done(inbox.check())
        await done(once.close())

    asyncio.run(work())


def test_i4_a_django_connection_that_does_not_sync_is_refused(tmp_path: Path) -> None:
    run(
        """
create_tables()
open_account()
urlpatterns.append(path("strict", idempotent(transaction=True, require="transactional")(place)))
with connection.cursor() as cursor:
    cursor.execute("PRAGMA synchronous=NORMAL")
try:
    post("/strict", client=Client())
except ConfigurationError as error:
    assert "PRAGMA synchronous=FULL" in str(error), error
else:
    raise AssertionError("it was not refused")
assert (ran, orders()) == ([], 0)
with connection.cursor() as cursor:
    cursor.execute("PRAGMA synchronous=FULL")
for replayed in (None, "true"):
    assert post("/strict").get("X-Idempotency-Replayed") == replayed
assert (ran, orders()) == ([1], 1)
""",
        tmp_path,
    )


def test_a_store_that_is_best_effort_itself_says_no_more_of_its_callers(path: Path) -> None:
    with written_log("oncekey") as log, Once(f"sqlite:///{path}?synchronous=normal") as once:
        mine = sqlite3.connect(path)
        mine.execute("PRAGMA synchronous=OFF")
        with mine:
            assert once.in_transaction(mine).run("order", "k", lambda attempt: 1).value == 1
        mine.close()
    assert log.lines == []


def test_the_setting_of_a_callers_connection_costs_no_statement(path: Path) -> None:
    """It is read together with the file's place, once per `in_transaction`."""
    with Once(f"sqlite:///{path}") as once:
        mine = sqlite3.connect(path, isolation_level=None)
        mine.execute("BEGIN IMMEDIATE")
        sent: list[str] = []
        mine.set_trace_callback(sent.append)
        once.in_transaction(mine).run("order", "k", lambda attempt: 1)
        mine.execute("COMMIT")
        mine.close()
    reads = [sql for sql in sent if "pragma_database_list" in sql]
    assert len(reads) == 1
    assert "pragma_synchronous" in reads[0]
    assert len([sql for sql in sent if "synchronous" in sql and not sql.startswith("--")]) == 1
