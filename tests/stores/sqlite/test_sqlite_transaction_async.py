"""Records on a caller's sqlite3 or aiosqlite connection on the event loop."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from oncekey import AsyncOnce
from oncekey.core.commands import Busy, Claim, Claimed, Done, Finish, Look, Replay, Seen
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.record import State
from oncekey.core.store import AsyncCallerTransaction
from oncekey.stores.sqlite import AsyncSQLiteStore, SQLiteStore

CLAIM = Claim(b"i" * 16, b"o", b"\x01f", 30_000_000, 60_000_000, 0, True, "Łódź", "op", "k")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    SQLiteStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE orders (item TEXT)")
    connection.close()
    return path


def orders(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT item FROM orders").fetchall()
    connection.close()
    return [item for (item,) in rows]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def claimed(transaction: AsyncCallerTransaction, command: Claim = CLAIM) -> Finish:
    reply = (await transaction.apply([command]))[0]
    assert isinstance(reply, Claimed)
    return Finish(command.id, command.owner, reply.fence, State.SUCCEEDED, b"x")


async def state(store: AsyncSQLiteStore) -> State | None:
    seen = (await store.apply([Look(CLAIM.id)]))[0]
    assert isinstance(seen, Seen)
    return seen.record.state if seen.record else None


@pytest.mark.parametrize("kind", ["sqlite3", "aiosqlite"])
def test_an_async_callers_transaction_commits_rolls_back_and_sets_savepoints(
    path: Path, kind: str
) -> None:
    async def work() -> None:
        store = AsyncSQLiteStore(path)
        connection: Any
        if kind == "sqlite3":
            connection = sqlite3.connect(path)
        else:
            connection = await aiosqlite.connect(path)
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes

        async def do(thing: Any) -> None:
            if kind == "aiosqlite":
                await thing

        transaction = store.join(connection)
        finish = await claimed(transaction)
        await transaction.set_savepoint()
        await do(connection.execute("INSERT INTO orders VALUES ('undone')"))
        await transaction.rollback_to_savepoint()
        await do(connection.rollback())
        assert await state(store) is None

        finish = await claimed(transaction)
        await transaction.set_savepoint()
        await do(connection.execute("INSERT INTO orders VALUES ('tea')"))
        await transaction.release_savepoint()
        assert await transaction.apply([finish]) == [Done()]
        assert await state(store) is None  # not before the commit
        await do(connection.commit())
        assert await state(store) is State.SUCCEEDED
        replay = (await transaction.apply([CLAIM._replace(owner=b"x")]))[0]
        assert isinstance(replay, Replay)
        await do(connection.rollback())
        await do(connection.close())
        await store.close()

    run(work())
    assert orders(path) == ["tea"]


@pytest.mark.parametrize("kind", ["sqlite3", "aiosqlite"])
@pytest.mark.parametrize("begun", [False, True])
def test_waiting_for_the_lock_does_not_block_the_event_loop(
    path: Path, kind: str, begun: bool
) -> None:
    async def work() -> None:
        store = AsyncSQLiteStore(path)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        mine: Any
        if kind == "sqlite3":
            mine = sqlite3.connect(path, timeout=60)
            if begun:
                mine.execute("BEGIN")
        else:
            mine = await aiosqlite.connect(path, timeout=60)
            if begun:
                await mine.execute("BEGIN")
        waiting = asyncio.create_task(claimed(store.join(mine)))
        for _ in range(20):  # the very loop that will let the lock go must turn
            await asyncio.sleep(0.001)
        assert not waiting.done()
        other.execute("ROLLBACK")
        await waiting
        if kind == "sqlite3":
            assert mine.execute("PRAGMA busy_timeout").fetchone() == (60_000,)
            mine.close()
        else:
            await mine.close()
        other.close()
        await store.close()

    run(work())


def test_waiting_for_the_lock_ends_with_the_connections_busy_timeout(path: Path) -> None:
    async def work() -> None:
        store = AsyncSQLiteStore(path)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        mine = sqlite3.connect(path, timeout=0.01)
        with pytest.raises(StoreUnavailable, match="busy_timeout") as raised:
            await claimed(store.join(mine))
        assert not raised.value.ambiguous
        assert mine.execute("PRAGMA busy_timeout").fetchone() == (10,)
        other.close()
        mine.close()
        await store.close()

    run(work())


def test_a_stale_snapshot_fails_without_waiting(path: Path) -> None:
    async def work() -> None:
        store = AsyncSQLiteStore(path)
        mine = sqlite3.connect(path, timeout=60)
        mine.execute("BEGIN")
        mine.execute("SELECT * FROM orders").fetchall()
        assert isinstance((await store.apply([CLAIM]))[0], Claimed)
        with pytest.raises(StoreUnavailable, match="BEGIN IMMEDIATE"):
            await claimed(store.join(mine), CLAIM._replace(id=b"j" * 16))
        mine.rollback()
        busy = (await store.join(mine).apply([CLAIM._replace(owner=b"x")]))[0]
        assert isinstance(busy, Busy)
        mine.rollback()
        mine.close()
        await store.close()

    run(work())


def test_unsupported_connections_are_refused(path: Path) -> None:
    store = AsyncSQLiteStore(path)
    with pytest.raises(ConfigurationError, match="aiosqlite or sqlite3"):
        store.join(object())

    async def blocking() -> None:
        one = SQLiteStore(path)
        async with aiosqlite.connect(path) as connection:
            with pytest.raises(ConfigurationError, match="needs a sqlite3 connection"):
                one.join(connection)
        one.close()

    run(blocking())


def test_another_file_is_refused(path: Path, tmp_path: Path) -> None:
    async def work() -> None:
        store = AsyncSQLiteStore(path)
        async with aiosqlite.connect(tmp_path / "other.db") as connection:
            with pytest.raises(ConfigurationError, match="same file"):
                await store.join(connection).apply([CLAIM])

    run(work())


def test_in_transaction_opens_a_new_file_unless_the_caller_holds_its_lock(
    tmp_path: Path,
) -> None:
    async def body(attempt: Any) -> str:
        return "done"

    async def work() -> None:
        for is_writing in (False, True):
            path = tmp_path / f"{is_writing}.db"
            once = AsyncOnce(f"sqlite:///{path}?busy_timeout=10ms")
            connection = sqlite3.connect(path)
            if is_writing:
                connection.execute("CREATE TABLE orders (item TEXT)")
                connection.execute("INSERT INTO orders VALUES ('tea')")
                with pytest.raises(StoreUnavailable, match="before your transaction writes"):
                    await once.in_transaction(connection).run("order", "k", body)
                connection.rollback()
            for is_retry in (False, True):
                with connection:
                    result = await once.in_transaction(connection).run("order", "k", body)
                assert result.replayed is is_retry
            connection.close()
            await once.close()

    run(work())
