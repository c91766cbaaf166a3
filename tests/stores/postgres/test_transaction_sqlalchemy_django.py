"""The state that SQLAlchemy and Django keep themselves is rolled back with the rows (I1)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from tests.stores.postgres.conftest import OpenCallers
from tests.support.caller_connections import (
    INSERT,
    MUST_NOT_RUN,
    Body,
    Caller,
    advisory_locks,
    orders,
    query,
    resolved,
)
from tests.support.caller_connections.concurrent_commands import check_run_replay_and_failure

from oncekey.core.errors import ConfigurationError


class Base(DeclarativeBase):
    pass


class Line(Base):
    """The table of orders as a mapped class, with unique items."""

    __tablename__ = "orders"
    item: Mapped[str] = mapped_column(primary_key=True)


# --- SQLAlchemy -------------------------------------------------------------------------------


SESSIONS = ["sqlalchemy-session", "sqlalchemy-scoped", "sqlalchemy-async-session"]


def body_adding(caller: Caller, *items: str, error: Exception | None = None) -> Any:
    """A body that adds objects and lets the session decide when to write them."""

    def blocking(attempt: Any) -> str:
        caller.db.add_all([Line(item=item) for item in items])
        if error is not None:
            raise error
        return "added"

    async def awaited(attempt: Any) -> str:
        return blocking(attempt)

    return awaited if caller.is_async else blocking


@pytest.mark.parametrize("kind", SESSIONS)
def test_i1_unflushed_objects_of_a_body_that_raises_are_never_written(
    open_callers: OpenCallers, kind: str
) -> None:
    async def scenario(caller: Caller) -> None:
        tx = caller.once.in_transaction(caller.subject)
        async with caller.transaction():
            caller.db.add(Line(item="before"))
            with pytest.raises(ValueError, match="mine"):
                await resolved(
                    tx.run("order", "k", body_adding(caller, "tea", error=ValueError("mine")))
                )
            assert not (await resolved(tx.run("order", "k", body_adding(caller, "milk")))).replayed
            caller.db.add(Line(item="after"))
        assert (orders(), await caller.state("k")) == (["after", "before", "milk"], "succeeded")

    open_callers.run_scenario(kind, scenario, {})


@pytest.mark.parametrize("kind", ["sqlalchemy-session", "sqlalchemy-scoped"])
def test_i1_rows_on_a_connection_fetched_before_the_run_are_rolled_back(
    open_callers: OpenCallers, kind: str
) -> None:
    """A session sends its savepoint late, and never if its connection is not requested."""

    async def scenario(caller: Caller) -> None:
        with caller.db.begin():
            connection = caller.db.connection()

            def body(attempt: Any) -> None:
                connection.exec_driver_sql(INSERT)
                raise ValueError("mine")

            with pytest.raises(ValueError, match="mine"):
                caller.once.in_transaction(caller.db).run("order", "k", body)
        assert orders() == []

    open_callers.run_scenario(kind, scenario, {})


@pytest.mark.parametrize("kind", SESSIONS)
def test_a_failed_flush_is_the_bodys_failure(open_callers: OpenCallers, kind: str) -> None:
    async def scenario(caller: Caller) -> None:
        query("CREATE UNIQUE INDEX no_two ON orders (item)")
        try:
            tx = caller.once.in_transaction(caller.subject)
            async with caller.transaction():
                caller.db.add(Line(item="tea"))
                with pytest.raises(IntegrityError):
                    await resolved(tx.run("order", "k", body_adding(caller, "milk", "tea")))
                caller.db.add(Line(item="coffee"))
            assert (orders(), await caller.state("k"), advisory_locks()) == (
                ["coffee", "tea"],
                None,
                [],
            )
            async with caller.transaction():
                assert not (
                    await resolved(tx.run("order", "k", body_adding(caller, "milk")))
                ).replayed
        finally:
            query("DROP INDEX no_two")
        assert orders() == ["coffee", "milk", "tea"]

    open_callers.run_scenario(kind, scenario, {})


@pytest.mark.parametrize("kind", [*SESSIONS, "sqlalchemy-connection"])
@pytest.mark.parametrize("fails", [True, False])
def test_a_nested_block_left_open_by_the_body_is_ended(
    open_callers: OpenCallers, kind: str, fails: bool
) -> None:
    async def scenario(caller: Caller) -> None:
        def blocking(attempt: Any) -> None:
            caller.db.begin_nested()
            caller.send(INSERT)
            caller.db.begin_nested()
            if fails:
                raise ValueError("mine")

        async def awaited(attempt: Any) -> None:
            await caller.db.begin_nested()
            await caller.send(INSERT)
            await caller.db.begin_nested()
            if fails:
                raise ValueError("mine")

        tx = caller.once.in_transaction(caller.subject)
        body = awaited if caller.is_async else blocking
        async with caller.transaction():
            if fails:
                with pytest.raises(ValueError, match="mine"):
                    await resolved(tx.run("order", "k", body))
            else:
                await resolved(tx.run("order", "k", body))
            await caller.execute("INSERT INTO orders VALUES ('after')")
        assert orders() == (["after"] if fails else ["after", "tea"])
        assert await caller.state("k") == (None if fails else "succeeded")

    open_callers.run_scenario(kind, scenario, {})


def test_execution_options_of_the_callers_connection_are_not_used(
    open_callers: OpenCallers,
) -> None:
    async def scenario(caller: Caller) -> None:
        made: Any = caller
        engine = made.engine.execution_options(
            schema_translate_map={None: "nowhere"},
            isolation_level="REPEATABLE READ",
            insertmanyvalues_page_size=1,
            no_parameters=True,
            logging_token="mine",
        )
        kept, caller.db = caller.db, engine.connect()
        await check_run_replay_and_failure(caller)
        caller.db.close()
        caller.db = kept

    open_callers.run_scenario("sqlalchemy-connection", scenario, {})


@pytest.mark.parametrize("kind", ["sqlalchemy-session", "sqlalchemy-async-session"])
def test_an_sqlalchemy_autocommit_connection_is_refused(
    open_callers: OpenCallers, kind: str
) -> None:
    async def scenario(caller: Caller) -> None:
        made: Any = caller
        plain, auto = made.engine, made.make_engine(isolation_level="AUTOCOMMIT")
        kept, sessions = caller.db, AsyncSession if caller.is_async else Session
        for engine in (auto, plain.execution_options(isolation_level="AUTOCOMMIT")):
            for caller.db in (sessions(engine), engine.connect()):
                await resolved(caller.db) if hasattr(caller.db, "__await__") else None
                with pytest.raises(ConfigurationError, match="not AUTOCOMMIT"):
                    await caller.run_inside("k", MUST_NOT_RUN)
                await resolved(caller.db.close())
        caller.db = kept
        await resolved(auto.dispose())
        assert (caller.ran, await caller.state("k"), advisory_locks()) == (0, None, [])

    open_callers.run_scenario(kind, scenario, {})


def test_an_unopened_async_connection_is_refused(open_callers: OpenCallers) -> None:
    async def scenario(caller: Caller) -> None:
        made: Any = caller
        with pytest.raises(ConfigurationError, match="not open yet"):
            caller.once.in_transaction(made.engine.connect())

    open_callers.run_scenario("sqlalchemy-async-connection", scenario, {})


def test_another_database_or_driver_is_refused(open_callers: OpenCallers) -> None:
    async def scenario(caller: Caller) -> None:
        engine = create_engine("sqlite://")
        for elsewhere in (engine.connect(), Session(engine)):
            with pytest.raises(ConfigurationError, match=r"sqlite\+pysqlite; it takes postgresql"):
                caller.once.in_transaction(elsewhere).run(
                    "order", "k", caller.make_body(MUST_NOT_RUN)
                )
            elsewhere.close()
        engine.dispose()

    open_callers.run_scenario("psycopg", scenario, {})


# --- Django -----------------------------------------------------------------------------------


def test_i1_djangos_on_commit_callbacks_are_rolled_back_with_the_rows(
    open_callers: OpenCallers,
) -> None:
    async def scenario(caller: Caller) -> None:
        from django.db import transaction

        called: list[str] = []

        def body(name: str, error: Exception | None = None, undo: bool = False) -> Any:
            def run(attempt: Any) -> None:
                transaction.on_commit(lambda: called.append(name))
                if undo:
                    attempt.rollback()
                if error is not None:
                    raise error

            return run

        tx = caller.once.in_transaction(caller.subject)
        with transaction.atomic():
            with pytest.raises(ValueError):
                tx.run("mail", "1", body("raised", ValueError("mine")))
            tx.run("mail", "2", body("undone", undo=True))
            tx.run("mail", "3", body("sent"))
            assert called == []
        assert called == ["sent"]

    open_callers.run_scenario("django", scenario, {})


def test_a_django_block_marked_for_rollback_is_rolled_back_to_our_savepoint(
    open_callers: OpenCallers,
) -> None:
    """Django refuses further statements then; a rollback to our savepoint makes it usable again."""

    async def scenario(caller: Caller) -> None:
        from django.db import transaction
        from django.db.transaction import TransactionManagementError

        def body(swallow: bool) -> Any:
            def run(attempt: Any) -> str:
                try:
                    with transaction.atomic(savepoint=False):
                        caller.send(INSERT)
                        raise ValueError("mine")
                except ValueError:
                    if not swallow:
                        raise
                return "as if nothing had happened"

            return run

        tx = caller.once.in_transaction(caller.subject)
        with transaction.atomic():
            with pytest.raises(ValueError, match="mine"):
                tx.run("order", "k", body(swallow=False))
            with pytest.raises(TransactionManagementError):
                tx.run("order", "k", body(swallow=True))
            tx.run("order", "k2", caller.make_body(Body()))
        assert (orders(), await caller.state("k")) == (["tea"], None)
        assert await caller.state("k2") == "succeeded"

    open_callers.run_scenario("django", scenario, {})


def test_django_without_autocommit_works(open_callers: OpenCallers) -> None:
    async def scenario(caller: Caller) -> None:
        from django.db import transaction

        transaction.set_autocommit(False)
        tx = caller.once.in_transaction(caller.subject)
        with pytest.raises(ValueError):
            tx.run("order", "k", caller.make_body(Body(error=ValueError())))
        tx.run("order", "k", caller.make_body(Body()))
        tx.run("order", "k2", caller.make_body(Body(rollback=True)))
        transaction.commit()
        transaction.set_autocommit(True)
        assert (orders(), await caller.state("k")) == (["tea"], "succeeded")

    open_callers.run_scenario("django", scenario, {})


def test_each_thread_has_its_own_django_connection(open_callers: OpenCallers) -> None:
    async def scenario(caller: Caller) -> None:
        from django.db import connection, transaction

        both = threading.Barrier(2, timeout=60)
        replies: list[BaseException | None] = []

        def work(key: str) -> None:
            def body(attempt: Any) -> None:
                both.wait()
                caller.send(INSERT)

            try:
                with transaction.atomic():
                    caller.once.in_transaction(connection).run("order", key, body)
            except Exception as error:
                both.abort()
                replies.append(error)
            finally:
                connection.close()

        threads = [threading.Thread(target=work, args=(key,)) for key in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (replies, orders()) == ([], ["tea", "tea"])

    open_callers.run_scenario("django", scenario, {})


def test_another_of_djangos_databases_is_refused(open_callers: OpenCallers) -> None:
    async def scenario(caller: Caller) -> None:
        from django.db import connections

        one = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        connections.settings["small"] = connections.configure_settings({"default": one})["default"]
        with pytest.raises(ConfigurationError, match="'small': it leads to sqlite"):
            caller.once.in_transaction(connections["small"])

    open_callers.run_scenario("django", scenario, {})
