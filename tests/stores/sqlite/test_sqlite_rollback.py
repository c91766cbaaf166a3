"""`attempt.rollback()` rolls back the rows written so far; the result is stored."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from oncekey import AsyncOnce, Once, OperationFailed, Terminal
from oncekey.core.errors import ConfigurationError


def orders(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT item FROM orders").fetchall()
    connection.close()
    return [item for (item,) in rows]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    Once(f"sqlite:///{path}").close()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE orders (item TEXT)")
    connection.close()
    return path


# --- threads --------------------------------------------------------------------------------------


@pytest.fixture
def once(path: Path) -> Iterator[Once]:
    with Once(f"sqlite:///{path}?busy_timeout=0s") as once:
        yield once


@pytest.fixture
def mine(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, timeout=0)
    yield connection
    connection.close()


def insert(connection: sqlite3.Connection, item: str) -> None:
    connection.execute("INSERT INTO orders VALUES (?)", (item,))


def test_attempt_rollback_stores_the_result_without_the_rows(
    path: Path, once: Once, mine: sqlite3.Connection
) -> None:
    def body(attempt: Any) -> str:
        insert(mine, "tea")
        attempt.rollback()
        return "sold out"

    with mine:
        insert(mine, "before")
        assert once.in_transaction(mine).run("order", "k", body).value == "sold out"
        insert(mine, "after")
    assert orders(path) == ["before", "after"]
    again = once.run("order", "k", lambda attempt: "milk")
    assert (again.value, again.replayed) == ("sold out", True)


def test_a_body_continues_after_attempt_rollback_and_may_call_it_again(
    path: Path, once: Once, mine: sqlite3.Connection
) -> None:
    def body(attempt: Any) -> str:
        for item in ("tea", "milk"):
            insert(mine, item)
            attempt.rollback()
        insert(mine, "water")
        return "water"

    with mine:
        once.in_transaction(mine).run("order", "k", body)
    assert orders(path) == ["water"]


def test_rows_after_attempt_rollback_are_rolled_back_if_the_body_raises(
    path: Path, once: Once, mine: sqlite3.Connection
) -> None:
    def body(attempt: Any) -> str:
        insert(mine, "tea")
        attempt.rollback()
        insert(mine, "milk")
        raise ValueError("no milk")

    with mine:
        with pytest.raises(ValueError, match="no milk"):
            once.in_transaction(mine).run("order", "k", body)
        insert(mine, "after")
    assert orders(path) == ["after"]
    assert once.get("order", "k") is None, "the key is free"


def test_a_terminal_error_is_stored_without_the_rows(
    path: Path, once: Once, mine: sqlite3.Connection
) -> None:
    def body(attempt: Any) -> str:
        insert(mine, "tea")
        raise Terminal("never again")

    with mine, pytest.raises(Terminal):
        once.in_transaction(mine).run("order", "k", body)
    assert orders(path) == []
    with mine, pytest.raises(OperationFailed, match="never again"):
        once.in_transaction(mine).run("order", "k", body)


def test_attempt_rollback_outside_a_transaction_is_refused(once: Once) -> None:
    def body(attempt: Any) -> None:
        attempt.rollback()

    with pytest.raises(ConfigurationError, match="run it with once"):
        once.run("order", "k", body, retry_safe=True)


def test_attempt_rollback_after_the_body_is_refused(
    path: Path, once: Once, mine: sqlite3.Connection
) -> None:
    tx = once.in_transaction(mine)
    kept: list[Any] = []
    with mine:
        tx.run("order", "k", kept.append)
        insert(mine, "tea")
        with pytest.raises(ConfigurationError, match="while that runs"):
            kept[0].rollback()

        def later(attempt: Any) -> None:
            insert(mine, "milk")
            with pytest.raises(ConfigurationError, match="while that runs"):
                kept[0].rollback()

        tx.run("order", "k2", later)
    assert orders(path) == ["tea", "milk"]


def test_an_inner_body_cannot_roll_back_the_outer_one(
    path: Path, once: Once, mine: sqlite3.Connection
) -> None:
    """All savepoints have the same name: the rollback would go to the inner one."""

    def outer(attempt: Any) -> str:
        insert(mine, "outer")

        def inner(attempt_within: Any) -> str:
            insert(mine, "inner")
            with pytest.raises(ConfigurationError, match="outside of operations within it"):
                attempt.rollback()
            attempt_within.rollback()
            return "inner"

        once.in_transaction(mine).run("inner", "k", inner)
        return "outer"

    with mine:
        once.in_transaction(mine).run("outer", "k", outer)
    assert orders(path) == ["outer"]

    def undone(attempt: Any) -> str:
        once.in_transaction(mine).run("inner", "k2", lambda within: insert(mine, "inner"))
        attempt.rollback()
        return "nothing"

    with mine:
        once.in_transaction(mine).run("outer", "k2", undone)
    assert orders(path) == ["outer"]
    assert once.get("inner", "k2") is None, "with its rows, the operation within is undone"


def test_operations_on_two_connections_run_at_the_same_time(once: Once, tmp_path: Path) -> None:
    """A connection runs one operation at a time; two connections do not wait for each other."""
    other_path = tmp_path / "other.db"
    with Once(f"sqlite:///{other_path}") as other:
        mine, its = (
            sqlite3.connect(path, check_same_thread=False)
            for path in (tmp_path / "app.db", other_path)
        )
        outcome: list[Any] = []

        def elsewhere() -> None:
            with its:
                outcome.append(other.in_transaction(its).run("op", "k", lambda attempt: 2).value)

        def body(attempt: Any) -> int:
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join(60)
            return 1

        with mine:
            assert once.in_transaction(mine).run("op", "k", body).value == 1
        assert outcome == [2]
        mine.close()
        its.close()


# --- event loops ----------------------------------------------------------------------------------


class Mine:
    """The caller's connection on an event loop: sqlite3 or aiosqlite."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def insert(self, item: str) -> None:
        done = self.connection.execute("INSERT INTO orders VALUES (?)", (item,))
        if not isinstance(done, sqlite3.Cursor):
            await done

    async def commit(self) -> None:
        done = self.connection.commit()
        if done is not None:
            await done


@pytest.fixture(params=["sqlite3", "aiosqlite"])
def run_scenario(
    request: pytest.FixtureRequest, path: Path
) -> Callable[[Callable[[AsyncOnce, Mine], Coroutine[Any, Any, None]]], None]:
    """Runs a scenario with an engine and a connection of each kind."""

    def run(scenario: Callable[[AsyncOnce, Mine], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with AsyncOnce(f"sqlite:///{path}") as once:
                if request.param == "aiosqlite":
                    async with aiosqlite.connect(path) as connection:
                        await scenario(once, Mine(connection))
                else:
                    plain = sqlite3.connect(path)
                    await scenario(once, Mine(plain))
                    plain.close()

        asyncio.run(main())

    return run


def test_async_attempt_rollback_stores_the_result_without_the_rows(
    path: Path, run_scenario: Any
) -> None:
    async def scenario(once: AsyncOnce, mine: Mine) -> None:
        async def body(attempt: Any) -> str:
            await mine.insert("tea")
            await attempt.rollback()
            await mine.insert("water")
            return "no tea"

        tx = once.in_transaction(mine.connection)
        assert (await tx.run("order", "k", body)).value == "no tea"
        await mine.commit()
        again = await once.run("order", "k", body)
        assert (again.value, again.replayed) == ("no tea", True)

    run_scenario(scenario)
    assert orders(path) == ["water"]


def test_async_rows_after_attempt_rollback_are_rolled_back_if_the_body_raises(
    path: Path, run_scenario: Any
) -> None:
    async def scenario(once: AsyncOnce, mine: Mine) -> None:
        async def body(attempt: Any) -> str:
            await mine.insert("tea")
            await attempt.rollback()
            await mine.insert("milk")
            raise ValueError("no milk")

        with pytest.raises(ValueError, match="no milk"):
            await once.in_transaction(mine.connection).run("order", "k", body)
        await mine.insert("after")
        await mine.commit()

    run_scenario(scenario)
    assert orders(path) == ["after"]


def test_async_attempt_rollback_outside_a_transaction_is_refused(run_scenario: Any) -> None:
    async def scenario(once: AsyncOnce, mine: Mine) -> None:
        async def body(attempt: Any) -> None:
            await attempt.rollback()

        with pytest.raises(ConfigurationError, match="run it with once"):
            await once.run("order", "k", body, retry_safe=True)

    run_scenario(scenario)


def test_async_attempt_rollback_after_the_body_is_refused(path: Path, run_scenario: Any) -> None:
    async def scenario(once: AsyncOnce, mine: Mine) -> None:
        kept: list[Any] = []

        async def body(attempt: Any) -> None:
            kept.append(attempt)
            await mine.insert("tea")
            if len(kept) == 2:
                with pytest.raises(ConfigurationError, match="while that runs"):
                    await kept[0].rollback()

        tx = once.in_transaction(mine.connection)
        await tx.run("order", "k", body)
        with pytest.raises(ConfigurationError, match="while that runs"):
            await kept[0].rollback()
        await tx.run("order", "k2", body)
        await mine.commit()

    run_scenario(scenario)
    assert orders(path) == ["tea", "tea"]
