"""Records in the transaction of an SQLAlchemy session or connection on SQLite.

Every kind of transaction control is tested. What holds for sqlite3 connections holds here too.
"""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session
from sqlalchemy.orm import sessionmaker as make_session
from sqlalchemy.pool import StaticPool

from oncekey import AsyncOnce, Once, OperationFailed, Terminal
from oncekey.core.errors import ConfigurationError, StoreUnavailable

KINDS = ["session", "scoped", "core", "async-session", "async-core"]
SESSIONS = ["session", "scoped", "async-session"]
# How an engine begins transactions: as SQLAlchemy does by itself, or by its documented recipes.
CONTROLS = ["as it comes", "BEGIN", "BEGIN IMMEDIATE", "AUTOCOMMIT"]


class Base(DeclarativeBase):
    pass


class Line(Base):
    """The table of orders as a mapped class, with unique items."""

    __tablename__ = "orders"
    item: Mapped[str] = mapped_column(primary_key=True)


async def done(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given


class Caller:
    """An oncekey engine, an SQLAlchemy engine, and a session or connection of the latter."""

    def __init__(self, path: Path, kind: str, control: str = "as it comes", url: str = "") -> None:
        self.path = path
        self.kind = kind
        self.is_async = kind.startswith("async")
        dialect = "sqlite+aiosqlite" if self.is_async else "sqlite"
        make: Any = create_async_engine if self.is_async else create_engine
        options: dict[str, Any] = {"connect_args": {"timeout": 0}}
        if control == "AUTOCOMMIT":
            options["isolation_level"] = control
        if url.endswith("://"):
            options["poolclass"] = StaticPool
        self.engine = make(f"{dialect}{url.removeprefix('sqlite') or f':///{path}'}", **options)
        if control.startswith("BEGIN"):
            begin_with(self.engine.sync_engine if self.is_async else self.engine, control)

    async def __aenter__(self) -> Caller:
        address = f"sqlite:///{self.path}?busy_timeout=0s"
        self.once: Any = AsyncOnce(address) if self.is_async else Once(address)
        await done(self.once.get("order", "-"))  # the tables are there
        connection = sqlite3.connect(self.path)
        connection.execute("CREATE TABLE IF NOT EXISTS orders (item TEXT PRIMARY KEY)")
        connection.close()
        self.db = await self.open()
        return self

    async def open(self) -> Any:
        """Another session or connection of the same kind."""
        if self.kind == "session":
            return Session(self.engine)
        if self.kind == "scoped":
            return scoped_session(make_session(self.engine))
        if self.kind == "async-session":
            return AsyncSession(self.engine)
        return await done(self.engine.connect())

    async def __aexit__(self, *_: object) -> None:
        await done(self.db.close())
        await done(self.engine.dispose())
        await done(self.once.close())

    async def run(self, key: str, body: Callable[..., Any], db: Any = None, **options: Any) -> Any:
        tx = self.once.in_transaction(self.db if db is None else db)
        return await done(tx.run("order", key, self.body(body), **options))

    def body(self, body: Callable[..., Any]) -> Callable[[Any], Any]:
        """A sync or async body, as the engine needs it."""

        async def awaited(attempt: Any) -> Any:
            return await done(body(attempt))

        return awaited if self.is_async else body

    def insert(self, item: str, then: Any = None) -> Callable[[Any], Any]:
        """A body that inserts a row, and then returns or raises."""
        sql = text("INSERT INTO orders VALUES (:item)").bindparams(item=item)

        def answer() -> Any:
            if isinstance(then, Exception):
                raise then
            return item

        async def awaited() -> Any:
            await self.db.execute(sql)
            return answer()

        def body(attempt: Any) -> Any:
            if self.is_async:
                return awaited()
            self.db.execute(sql)
            return answer()

        return body

    async def execute(self, sql: str) -> None:
        await done(self.db.execute(text(sql)))

    async def commit(self) -> None:
        await done(self.db.commit())

    async def rollback(self) -> None:
        await done(self.db.rollback())

    def orders(self) -> list[str]:
        connection = sqlite3.connect(self.path)
        rows = connection.execute("SELECT item FROM orders ORDER BY 1").fetchall()
        connection.close()
        return [item for (item,) in rows]

    async def state(self, key: str) -> Any:
        status = await done(self.once.get("order", key))
        return None if status is None else status.state


def begin_with(engine: Any, begin: str) -> None:
    """SQLAlchemy's documented recipe, with which the driver begins nothing implicitly."""

    @event.listens_for(engine, "connect")
    def _(connection: Any, record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _(connection: Any) -> None:
        connection.exec_driver_sql(begin)


Scenario = Callable[[Caller], Awaitable[None]]


@pytest.fixture
def run_scenario(tmp_path: Path) -> Callable[..., None]:
    def run_scenario(scenario: Scenario, kind: str, control: str = "as it comes") -> None:
        async def main() -> None:
            async with Caller(tmp_path / "app.db", kind, control) as caller:
                await scenario(caller)

        asyncio.run(main())

    return run_scenario


def never(attempt: Any) -> Any:
    raise AssertionError("this body must not run")


# --- all or nothing -------------------------------------------------------------------------------


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_outcome_commit_together_or_not_at_all(
    run_scenario: Any, kind: str, control: str
) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.run("k", caller.insert("tea"))
        assert (caller.orders(), await caller.state("k")) == ([], None)  # nobody else sees it yet
        await caller.rollback()
        assert (caller.orders(), await caller.state("k")) == ([], None)
        assert not (await caller.run("k", caller.insert("tea"))).replayed
        await caller.commit()
        assert (caller.orders(), await caller.state("k")) == (["tea"], "succeeded")
        again = await caller.run("k", never)
        assert (again.value, again.replayed) == ("tea", True)
        await caller.commit()
        other = sqlite3.connect(caller.path, isolation_level=None, timeout=0)
        other.execute("BEGIN IMMEDIATE")  # nothing holds the lock any more
        other.close()
        assert caller.orders() == ["tea"]

    run_scenario(scenario, kind, control)


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_body_that_raises_rolls_back_only_its_own_rows(
    run_scenario: Any, kind: str, control: str
) -> None:
    async def scenario(caller: Caller) -> None:
        if control == "AUTOCOMMIT":
            await caller.execute("BEGIN IMMEDIATE")  # else each statement commits by itself
        await caller.execute("INSERT INTO orders VALUES ('before')")
        with pytest.raises(ValueError, match="no tea"):
            await caller.run("k", caller.insert("tea", ValueError("no tea")))
        await caller.execute("INSERT INTO orders VALUES ('after')")
        assert (await caller.run("k", caller.insert("milk"))).value == "milk"
        with pytest.raises(Terminal):
            await caller.run("k2", caller.insert("wine", Terminal("too young")))
        await caller.commit()
        assert caller.orders() == ["after", "before", "milk"]
        with pytest.raises(OperationFailed, match="too young"):
            await caller.run("k2", never)

    run_scenario(scenario, kind, control)


@pytest.mark.parametrize("kind", KINDS)
def test_runs_may_be_nested_and_partly_rolled_back(run_scenario: Any, kind: str) -> None:
    async def scenario(caller: Caller) -> None:
        async def outer(attempt: Any) -> str:
            await done(caller.insert("undone")(attempt))
            await done(attempt.rollback())
            await done(caller.insert("outer")(attempt))
            return str((await caller.run("inner", caller.insert("inner"))).value)

        def blocking(attempt: Any) -> str:
            caller.insert("undone")(attempt)
            attempt.rollback()
            caller.insert("outer")(attempt)
            tx = caller.once.in_transaction(caller.db)
            return str(tx.run("order", "inner", caller.insert("inner")).value)

        assert (await caller.run("outer", outer if caller.is_async else blocking)).value == "inner"
        await caller.commit()
        assert caller.orders() == ["inner", "outer"]
        assert (await caller.state("inner"), await caller.state("outer")) == (
            "succeeded",
            "succeeded",
        )

    run_scenario(scenario, kind)


# --- what a session remembers ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", SESSIONS)
def test_objects_added_by_a_body_are_rolled_back_with_its_rows(
    run_scenario: Any, kind: str
) -> None:
    async def scenario(caller: Caller) -> None:
        def adding(item: str, error: Exception | None = None) -> Callable[[Any], str]:
            def body(attempt: Any) -> str:
                caller.db.add(Line(item=item))
                if error is not None:
                    raise error
                return "added"

            return body

        caller.db.add(Line(item="before"))
        with pytest.raises(ValueError, match="mine"):
            await caller.run("k", adding("tea", ValueError("mine")))
        assert not (await caller.run("k", adding("milk"))).replayed
        with pytest.raises(IntegrityError):
            await caller.run("k2", adding("milk"))  # found out when the session writes it
        assert not (await caller.run("k2", adding("wine"))).replayed
        await caller.commit()
        assert caller.orders() == ["before", "milk", "wine"]
        assert (await caller.state("k"), await caller.state("k2")) == ("succeeded", "succeeded")

    run_scenario(scenario, kind)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_that_ends_the_transaction_is_refused(run_scenario: Any, kind: str) -> None:
    async def scenario(caller: Caller) -> None:
        with pytest.raises(ConfigurationError, match="must not commit"):
            await caller.run("k", lambda attempt: caller.db.commit())
        await caller.rollback()

        async def begins_anew() -> None:
            await done(caller.db.rollback())
            await caller.execute("INSERT INTO orders VALUES ('astray')")

        def blocking(attempt: Any) -> None:
            caller.db.rollback()
            caller.db.execute(text("INSERT INTO orders VALUES ('astray')"))

        rolls_back = pytest.raises(ConfigurationError, match="is over")
        with rolls_back:
            await caller.run("k", lambda attempt: caller.db.rollback())
        await caller.rollback()
        with rolls_back:
            await caller.run("k", (lambda attempt: begins_anew()) if caller.is_async else blocking)
        await caller.rollback()
        assert (caller.orders(), await caller.state("k")) == ([], None)
        assert (await caller.run("k", caller.insert("tea"))).value == "tea"

    run_scenario(scenario, kind)


@pytest.mark.parametrize("control", ["as it comes", "BEGIN"])
@pytest.mark.parametrize("kind", KINDS)
def test_another_writer_and_a_stale_snapshot_make_the_store_unavailable(
    run_scenario: Any, kind: str, control: str
) -> None:
    async def scenario(caller: Caller) -> None:
        other = sqlite3.connect(caller.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="busy_timeout"):
            await caller.run("k", never)
        await caller.rollback()
        other.execute("ROLLBACK")
        if control == "BEGIN":
            await caller.execute("SELECT * FROM orders")
            other.execute("INSERT INTO orders VALUES ('theirs')")
            with pytest.raises(StoreUnavailable, match="begin it with BEGIN IMMEDIATE"):
                await caller.run("k", never)
            await caller.rollback()
        other.close()
        assert (await caller.run("k", caller.insert("tea"))).value == "tea"

    run_scenario(scenario, kind, control)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["another file", "in memory"])
def test_another_database_is_refused(tmp_path: Path, kind: str, where: str) -> None:
    url = "sqlite://" if where == "in memory" else f"sqlite:///{tmp_path / 'second.db'}"
    Once(f"sqlite:///{tmp_path / 'second.db'}").close()

    async def main() -> None:
        async with Caller(tmp_path / "app.db", kind, url=url) as caller:
            with pytest.raises(ConfigurationError, match="must be the same file"):
                await caller.run("k", never)

    asyncio.run(main())


def test_unsupported_sqlalchemy_sessions_are_refused(tmp_path: Path) -> None:
    with Once(f"sqlite:///{tmp_path / 'app.db'}") as once:
        elsewhere = create_engine("postgresql+psycopg://nowhere")
        with pytest.raises(ConfigurationError, match="needs a sqlite3 connection, an SQLAlchemy"):
            once.in_transaction(AsyncSession(create_async_engine("sqlite+aiosqlite://")))
        with pytest.raises(ConfigurationError, match="needs a sqlite3 connection, an SQLAlchemy"):
            once.in_transaction(elsewhere)


# --- several at once ------------------------------------------------------------------------------


def test_duplicates_in_sessions_of_many_threads_run_once(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 30})
    Base.metadata.create_all(engine)
    barrier = threading.Barrier(8)
    replayed: list[bool] = []
    with Once(f"sqlite:///{path}") as once:

        def work() -> None:
            with Session(engine) as session:
                barrier.wait()
                with session.begin():
                    tx = once.in_transaction(session)
                    result = tx.run("order", "k", lambda attempt: session.add(Line(item="tea")))
                replayed.append(result.replayed)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with Session(engine) as session:
            assert session.query(Line).count() == 1
    engine.dispose()
    assert sorted(replayed) == [False] + [True] * 7
