"""A body must leave the caller's transaction alone: who ends it is refused, or told (I1).

Where the driver can refuse a commit it is made to: the rows could otherwise be committed without
their record, and a retry would write them again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy.exc import PendingRollbackError
from tests.stores.postgres.conftest import Play, Stage
from tests.support.caller_connections import (
    INSERT,
    NEVER,
    SHOPS,
    Order,
    Shop,
    done,
    locks,
    rows,
    watch,
)

from oncekey.core.errors import ConfigurationError

MILK = Order(("INSERT INTO orders VALUES ('milk')",))
OVER = "is over"
REFUSAL = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'no room for this record'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON oncekey.records
FOR EACH ROW WHEN (NEW.operation = 'cursed') EXECUTE FUNCTION refuse();
"""


def body_that(shop: Shop, ends: Callable[[], Any], error: Exception | None = None) -> Any:
    """A body that writes, and then ends the transaction by one of the driver's own means."""

    def blocking(attempt: Any) -> str:
        shop.send(INSERT)
        ends()
        if error is not None:
            raise error
        return "mine"

    async def awaited(attempt: Any) -> str:
        await shop.send(INSERT)
        await ends()
        if error is not None:
            raise error
        return "mine"

    return awaited if shop.is_async else blocking


# --- commit -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in SHOPS if "asyncpg" not in kind[:7]])
def test_i1_a_commit_in_the_body_is_refused_and_nothing_is_committed(
    stage: Stage, kind: str
) -> None:
    """Also where the caller catches the error and commits: asyncpg alone has no commit()."""

    async def scene(shop: Shop) -> None:
        commit = shop.db.commit
        if kind.startswith("django"):
            from django.db import transaction

            def commit() -> None:
                transaction.commit(using=shop.db.alias)

        await shop.begin()
        tx = shop.once.in_transaction(shop.subject)
        with pytest.raises(Exception) as refused:
            await done(tx.run("order", "k", body_that(shop, commit)))
        told = f"{type(refused.value).__name__}: {refused.value}"
        assert any(word in told for word in ("commit() forbidden", "must not commit", "atomic")), (
            told
        )
        assert rows() == []
        try:
            await shop.commit()
        except PendingRollbackError:  # SQLAlchemy's Connection insists on it
            await shop.rollback()
        assert (rows(), await shop.state("k"), locks()) == ([], None, [])
        async with shop.transaction():
            assert not (await shop.inside("k")).replayed
        assert rows() == ["tea"]

    stage.play(kind, scene, {})


@pytest.mark.parametrize("kind", [kind for kind in SHOPS if "sqlalchemy" in kind])
def test_i1_a_commit_under_a_nested_block_is_refused_too(stage: Stage, kind: str) -> None:
    async def scene(shop: Shop) -> None:
        def blocking(attempt: Any) -> None:
            shop.db.begin_nested()
            shop.send(INSERT)
            shop.db.commit()

        async def awaited(attempt: Any) -> None:
            await shop.db.begin_nested()
            await shop.send(INSERT)
            await shop.db.commit()

        await shop.begin()
        tx = shop.once.in_transaction(shop.subject)
        with pytest.raises(ConfigurationError, match="must not commit"):
            await done(tx.run("order", "k", awaited if shop.is_async else blocking))
        await shop.rollback()
        assert (rows(), await shop.state("k"), locks()) == ([], None, [])

    stage.play(kind, scene, {})


@pytest.mark.parametrize("kind", ["sqlalchemy-session", "sqlalchemy-async-session"])
def test_a_nested_block_of_the_body_may_be_committed(stage: Stage, kind: str) -> None:
    async def scene(shop: Shop) -> None:
        async with shop.transaction():

            def blocking(attempt: Any) -> None:
                with shop.nested():
                    shop.send(INSERT)
                assert shop.once.in_transaction(shop.db).run("order", "in", lambda a: 1).value == 1
                with shop.nested():
                    shop.send(INSERT)

            async def awaited(attempt: Any) -> None:
                async with shop.nested():
                    await shop.send(INSERT)
                await shop.inside("in", Order(()))
                async with shop.nested():
                    await shop.send(INSERT)

            tx = shop.once.in_transaction(shop.subject)
            await done(tx.run("order", "k", awaited if shop.is_async else blocking))
        assert rows() == ["tea", "tea"]

    stage.play(kind, scene, {})


def test_a_commit_behind_the_drivers_back_is_told(play_on_driver: Play) -> None:
    async def scene(shop: Shop) -> None:
        tx = shop.once.in_transaction(shop.subject)
        await shop.execute("BEGIN")
        with pytest.raises(ConfigurationError, match=OVER):
            await done(tx.run("order", "k", body_that(shop, lambda: shop.send("COMMIT"))))
        assert (await shop.state("k"), locks()) == (None, [])

    play_on_driver(scene)


def test_a_commit_and_a_new_beginning_are_told(play_on_driver: Play) -> None:
    async def scene(shop: Shop) -> None:
        tx = shop.once.in_transaction(shop.subject)
        await shop.execute("BEGIN")
        with pytest.raises(ConfigurationError, match=OVER):
            await done(tx.run("order", "k", body_that(shop, lambda: shop.send("COMMIT; BEGIN"))))
        await shop.execute("ROLLBACK")
        assert (await shop.state("k"), locks()) == (None, [])

    play_on_driver(scene)


# --- rollback -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [kind for kind in SHOPS if not kind.startswith(("asyncpg", "django"))]
)
@pytest.mark.parametrize("error", [None, ValueError("the body's own")])
def test_i10_a_rollback_in_the_body_leaves_nothing(
    stage: Stage, kind: str, error: Exception | None
) -> None:
    async def scene(shop: Shop) -> None:
        await shop.begin()
        tx = shop.once.in_transaction(shop.subject)
        with pytest.raises(Exception) as refused:
            await done(tx.run("order", "k", body_that(shop, shop.db.rollback, error)))
        if error is not None and "sqlalchemy" in kind:
            assert refused.value is error
        elif "sqlalchemy" in kind:
            assert isinstance(refused.value, ConfigurationError)
        else:
            assert isinstance(refused.value, psycopg.ProgrammingError)  # within a block of its own
        if "sqlalchemy" in kind:
            subject = shop.db() if kind == "sqlalchemy-scoped" else shop.db
            assert not subject.in_transaction()  # and no new one was begun
        await shop.rollback()
        assert (rows(), await shop.state("k"), locks()) == ([], None, [])
        async with shop.transaction():
            assert not (await shop.inside("k")).replayed
        assert rows() == ["tea"]

    stage.play(kind, scene, {})


@pytest.mark.parametrize("sql", ["ROLLBACK", "ROLLBACK; BEGIN"])
def test_a_rollback_behind_the_drivers_back_is_told(play_on_driver: Play, sql: str) -> None:
    async def scene(shop: Shop) -> None:
        tx = shop.once.in_transaction(shop.subject)
        await shop.execute("BEGIN")
        with pytest.raises(ConfigurationError, match=OVER):
            await done(tx.run("order", "k", body_that(shop, lambda: shop.send(sql))))
        await shop.execute("ROLLBACK")
        assert (rows(), await shop.state("k"), locks()) == ([], None, [])
        async with shop.transaction():
            await shop.run_in(tx, "k")
        assert rows() == ["tea"]

    play_on_driver(scene)


def test_the_bodys_own_error_comes_first(play_on_driver: Play) -> None:
    async def scene(shop: Shop) -> None:
        tx = shop.once.in_transaction(shop.subject)
        await shop.execute("BEGIN")
        error = ValueError("the body's own")
        with pytest.raises(ValueError, match="the body's own"):
            await done(tx.run("order", "k", body_that(shop, lambda: shop.send("ROLLBACK"), error)))
        assert (rows(), locks()) == ([], [])
        async with shop.transaction():
            await shop.run_in(tx, "k")
        assert rows() == ["tea"]

    play_on_driver(scene)


# --- savepoints of the caller's, and errors that are swallowed ---------------------------------


def test_going_back_behind_the_claim_is_told(play_on_driver: Play) -> None:
    async def scene(shop: Shop) -> None:
        await shop.begin()
        await shop.execute("SAVEPOINT mine")
        tx = shop.once.in_transaction(shop.subject)
        back = "ROLLBACK TO SAVEPOINT mine"
        with pytest.raises(ConfigurationError, match=OVER):
            await done(tx.run("order", "k", body_that(shop, lambda: shop.send(back))))
        await shop.rollback()
        assert (rows(), await shop.state("k"), locks()) == ([], None, [])

    play_on_driver(scene)


def test_i1_a_body_that_swallows_a_failed_statement_is_not_recorded(play_mainly: Play) -> None:
    """Its rows are lost with the statement, so its answer must be too."""

    async def scene(shop: Shop) -> None:
        def blocking(attempt: Any) -> str:
            shop.send(INSERT)
            with pytest.raises(Exception, match="nowhere"):
                shop.send("SELECT * FROM nowhere")
            return "as if nothing had happened"

        async def awaited(attempt: Any) -> str:
            await shop.send(INSERT)
            with pytest.raises(Exception, match="nowhere"):
                await shop.send("SELECT * FROM nowhere")
            return "as if nothing had happened"

        tx = shop.once.in_transaction(shop.subject)
        async with shop.transaction():
            with pytest.raises(Exception, match="transaction"):
                await done(tx.run("order", "k", awaited if shop.is_async else blocking))
            await shop.run_in(tx, "k2", MILK)  # the rest of the transaction is as it was
        assert (rows(), await shop.state("k"), await shop.state("k2")) == (
            ["milk"],
            None,
            "succeeded",
        )
        async with shop.transaction():
            assert not (await shop.inside("k", Order(()))).replayed

    play_mainly(scene)


def test_i1_rows_never_stay_where_their_record_cannot_be_written(play_mainly: Play) -> None:
    async def scene(shop: Shop) -> None:
        watch(REFUSAL)
        try:
            tx = shop.once.in_transaction(shop.subject)
            async with shop.transaction():
                with pytest.raises(Exception, match="no room for this record"):
                    await done(tx.run("cursed", "k", shop.body(Order())))
                await shop.execute(MILK.statements[0])
        finally:
            watch("DROP FUNCTION refuse CASCADE")
        assert (rows(), locks()) == (["milk"], [])
        async with shop.transaction():
            assert not (await done(tx.run("cursed", "k", shop.body(Order())))).replayed

    play_mainly(scene)


def test_a_lost_connection_is_the_drivers_to_tell(play_on_driver: Play) -> None:
    async def scene(shop: Shop) -> None:
        async with type(shop)() as other:

            def cut() -> Any:
                return other.send("SELECT pg_terminate_backend(pg_backend_pid())")

            tx = other.once.in_transaction(other.subject)
            await other.begin()
            with pytest.raises((psycopg.OperationalError, asyncpg.PostgresError)) as told:
                await done(tx.run("order", "k", body_that(other, cut)))
            assert "terminat" in str(told.value)
            other.block = None  # type: ignore[attr-defined]
        async with shop.transaction():
            assert not (await shop.inside("k")).replayed
        assert (await shop.outside("k", NEVER)).value == "done"
        assert rows() == ["tea"]

    play_on_driver(scene)
