"""What SQLAlchemy and Django keep on their own goes the way of the rows (I1)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from tests.stores.postgres.conftest import Stage
from tests.support.caller_connections import INSERT, NEVER, Order, Shop, done, locks, rows, watch
from tests.support.caller_connections.rivals import goes_as_ever

from oncekey.core.errors import ConfigurationError


class Base(DeclarativeBase):
    pass


class Line(Base):
    """The table of orders as a mapped class; no two alike."""

    __tablename__ = "orders"
    item: Mapped[str] = mapped_column(primary_key=True)


# --- SQLAlchemy -------------------------------------------------------------------------------


SESSIONS = ["sqlalchemy-session", "sqlalchemy-scoped", "sqlalchemy-async-session"]


def body_adding(shop: Shop, *items: str, error: Exception | None = None) -> Any:
    """A body that adds objects and leaves it to the session when they are written."""

    def blocking(attempt: Any) -> str:
        shop.db.add_all([Line(item=item) for item in items])
        if error is not None:
            raise error
        return "added"

    async def awaited(attempt: Any) -> str:
        return blocking(attempt)

    return awaited if shop.is_async else blocking


@pytest.mark.parametrize("kind", SESSIONS)
def test_i1_what_a_raising_body_has_not_flushed_is_never_written(stage: Stage, kind: str) -> None:
    async def scene(shop: Shop) -> None:
        tx = shop.once.in_transaction(shop.subject)
        async with shop.transaction():
            shop.db.add(Line(item="before"))
            with pytest.raises(ValueError, match="mine"):
                await done(tx.run("order", "k", body_adding(shop, "tea", error=ValueError("mine"))))
            assert not (await done(tx.run("order", "k", body_adding(shop, "milk")))).replayed
            shop.db.add(Line(item="after"))
        assert (rows(), await shop.state("k")) == (["after", "before", "milk"], "succeeded")

    stage.play(kind, scene, {})


@pytest.mark.parametrize("kind", ["sqlalchemy-session", "sqlalchemy-scoped"])
def test_i1_a_connection_the_body_had_before_is_undone_as_well(stage: Stage, kind: str) -> None:
    """A session sets its savepoint late, and never if it is not asked for its connection."""

    async def scene(shop: Shop) -> None:
        with shop.db.begin():
            connection = shop.db.connection()

            def body(attempt: Any) -> None:
                connection.exec_driver_sql(INSERT)
                raise ValueError("mine")

            with pytest.raises(ValueError, match="mine"):
                shop.once.in_transaction(shop.db).run("order", "k", body)
        assert rows() == []

    stage.play(kind, scene, {})


@pytest.mark.parametrize("kind", SESSIONS)
def test_a_flush_that_fails_is_the_bodys_failure(stage: Stage, kind: str) -> None:
    async def scene(shop: Shop) -> None:
        watch("CREATE UNIQUE INDEX no_two ON orders (item)")
        try:
            tx = shop.once.in_transaction(shop.subject)
            async with shop.transaction():
                shop.db.add(Line(item="tea"))
                with pytest.raises(IntegrityError):
                    await done(tx.run("order", "k", body_adding(shop, "milk", "tea")))
                shop.db.add(Line(item="coffee"))
            assert (rows(), await shop.state("k"), locks()) == (["coffee", "tea"], None, [])
            async with shop.transaction():
                assert not (await done(tx.run("order", "k", body_adding(shop, "milk")))).replayed
        finally:
            watch("DROP INDEX no_two")
        assert rows() == ["coffee", "milk", "tea"]

    stage.play(kind, scene, {})


@pytest.mark.parametrize("kind", [*SESSIONS, "sqlalchemy-connection"])
@pytest.mark.parametrize("fails", [True, False])
def test_a_nested_block_the_body_has_left_open(stage: Stage, kind: str, fails: bool) -> None:
    async def scene(shop: Shop) -> None:
        def blocking(attempt: Any) -> None:
            shop.db.begin_nested()
            shop.send(INSERT)
            shop.db.begin_nested()
            if fails:
                raise ValueError("mine")

        async def awaited(attempt: Any) -> None:
            await shop.db.begin_nested()
            await shop.send(INSERT)
            await shop.db.begin_nested()
            if fails:
                raise ValueError("mine")

        tx = shop.once.in_transaction(shop.subject)
        body = awaited if shop.is_async else blocking
        async with shop.transaction():
            if fails:
                with pytest.raises(ValueError, match="mine"):
                    await done(tx.run("order", "k", body))
            else:
                await done(tx.run("order", "k", body))
            await shop.execute("INSERT INTO orders VALUES ('after')")
        assert rows() == (["after"] if fails else ["after", "tea"])
        assert await shop.state("k") == (None if fails else "succeeded")

    stage.play(kind, scene, {})


def test_options_of_a_connection_have_no_part_in_it(stage: Stage) -> None:
    async def scene(shop: Shop) -> None:
        made: Any = shop
        engine = made.engine.execution_options(
            schema_translate_map={None: "nowhere"},
            isolation_level="REPEATABLE READ",
            insertmanyvalues_page_size=1,
            no_parameters=True,
            logging_token="mine",
        )
        kept, shop.db = shop.db, engine.connect()
        await goes_as_ever(shop)
        shop.db.close()
        shop.db = kept

    stage.play("sqlalchemy-connection", scene, {})


@pytest.mark.parametrize("kind", ["sqlalchemy-session", "sqlalchemy-async-session"])
def test_autocommit_is_refused(stage: Stage, kind: str) -> None:
    async def scene(shop: Shop) -> None:
        made: Any = shop
        plain, auto = made.engine, made.make_engine(isolation_level="AUTOCOMMIT")
        kept, sessions = shop.db, AsyncSession if shop.is_async else Session
        for engine in (auto, plain.execution_options(isolation_level="AUTOCOMMIT")):
            for shop.db in (sessions(engine), engine.connect()):
                await done(shop.db) if hasattr(shop.db, "__await__") else None
                with pytest.raises(ConfigurationError, match="not AUTOCOMMIT"):
                    await shop.inside("k", NEVER)
                await done(shop.db.close())
        shop.db = kept
        await done(auto.dispose())
        assert (shop.ran, await shop.state("k"), locks()) == (0, None, [])

    stage.play(kind, scene, {})


def test_a_connection_that_is_not_open_is_refused(stage: Stage) -> None:
    async def scene(shop: Shop) -> None:
        made: Any = shop
        with pytest.raises(ConfigurationError, match="not open yet"):
            shop.once.in_transaction(made.engine.connect())

    stage.play("sqlalchemy-async-connection", scene, {})


def test_another_database_or_driver_is_refused(stage: Stage) -> None:
    async def scene(shop: Shop) -> None:
        engine = create_engine("sqlite://")
        for elsewhere in (engine.connect(), Session(engine)):
            with pytest.raises(ConfigurationError, match=r"sqlite\+pysqlite; it takes postgresql"):
                shop.once.in_transaction(elsewhere).run("order", "k", shop.body(NEVER))
            elsewhere.close()
        engine.dispose()

    stage.play("psycopg", scene, {})


# --- Django -----------------------------------------------------------------------------------


def test_i1_callbacks_for_the_commit_go_back_with_the_rows(stage: Stage) -> None:
    async def scene(shop: Shop) -> None:
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

        tx = shop.once.in_transaction(shop.subject)
        with transaction.atomic():
            with pytest.raises(ValueError):
                tx.run("mail", "1", body("raised", ValueError("mine")))
            tx.run("mail", "2", body("undone", undo=True))
            tx.run("mail", "3", body("sent"))
            assert called == []
        assert called == ["sent"]

    stage.play("django", scene, {})


def test_a_block_that_wants_to_be_rolled_back(stage: Stage) -> None:
    """Django refuses further statements then; our savepoint is far enough back to go on."""

    async def scene(shop: Shop) -> None:
        from django.db import transaction
        from django.db.transaction import TransactionManagementError

        def body(swallow: bool) -> Any:
            def run(attempt: Any) -> str:
                try:
                    with transaction.atomic(savepoint=False):
                        shop.send(INSERT)
                        raise ValueError("mine")
                except ValueError:
                    if not swallow:
                        raise
                return "as if nothing had happened"

            return run

        tx = shop.once.in_transaction(shop.subject)
        with transaction.atomic():
            with pytest.raises(ValueError, match="mine"):
                tx.run("order", "k", body(swallow=False))
            with pytest.raises(TransactionManagementError):
                tx.run("order", "k", body(swallow=True))
            tx.run("order", "k2", shop.body(Order()))
        assert (rows(), await shop.state("k")) == (["tea"], None)
        assert await shop.state("k2") == "succeeded"

    stage.play("django", scene, {})


def test_django_without_autocommit(stage: Stage) -> None:
    async def scene(shop: Shop) -> None:
        from django.db import transaction

        transaction.set_autocommit(False)
        tx = shop.once.in_transaction(shop.subject)
        with pytest.raises(ValueError):
            tx.run("order", "k", shop.body(Order(error=ValueError())))
        tx.run("order", "k", shop.body(Order()))
        tx.run("order", "k2", shop.body(Order(undo=True)))
        transaction.commit()
        transaction.set_autocommit(True)
        assert (rows(), await shop.state("k")) == (["tea"], "succeeded")

    stage.play("django", scene, {})


def test_threads_share_djangos_connection_by_name_only(stage: Stage) -> None:
    async def scene(shop: Shop) -> None:
        from django.db import connection, transaction

        both = threading.Barrier(2, timeout=10)
        told: list[BaseException | None] = []

        def work(key: str) -> None:
            def body(attempt: Any) -> None:
                both.wait()
                shop.send(INSERT)

            try:
                with transaction.atomic():
                    shop.once.in_transaction(connection).run("order", key, body)
            except Exception as error:
                both.abort()
                told.append(error)
            finally:
                connection.close()

        threads = [threading.Thread(target=work, args=(key,)) for key in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (told, rows()) == ([], ["tea", "tea"])

    stage.play("django", scene, {})


def test_another_of_djangos_databases_is_refused(stage: Stage) -> None:
    async def scene(shop: Shop) -> None:
        from django.db import connections

        one = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        connections.settings["small"] = connections.configure_settings({"default": one})["default"]
        with pytest.raises(ConfigurationError, match="'small': it leads to sqlite"):
            shop.once.in_transaction(connections["small"])

    stage.play("django", scene, {})
