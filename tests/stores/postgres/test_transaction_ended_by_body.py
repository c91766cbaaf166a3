"""A body must not end the caller's transaction: that is refused, or it raises (I1).

If the driver can refuse a commit, it is made to do so: otherwise the rows could be committed
without their record, and a retry would write them again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy.exc import PendingRollbackError
from tests.stores.postgres.conftest import OpenCallers, RunScenario
from tests.support.caller_connections import (
    CALLERS,
    INSERT,
    MUST_NOT_RUN,
    Body,
    Caller,
    advisory_locks,
    orders,
    query,
    resolved,
)

from oncekey.core.errors import ConfigurationError

MILK = Body(("INSERT INTO orders VALUES ('milk')",))
OVER = "is over"
REFUSAL = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'no room for this record'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON oncekey.records
FOR EACH ROW WHEN (NEW.operation = 'cursed') EXECUTE FUNCTION refuse();
"""


def body_that(caller: Caller, ends: Callable[[], Any], error: Exception | None = None) -> Any:
    """A body that inserts, and then ends the transaction in one of the driver's ways."""

    def blocking(attempt: Any) -> str:
        caller.send(INSERT)
        ends()
        if error is not None:
            raise error
        return "mine"

    async def awaited(attempt: Any) -> str:
        await caller.send(INSERT)
        await ends()
        if error is not None:
            raise error
        return "mine"

    return awaited if caller.is_async else blocking


# --- commit -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in CALLERS if "asyncpg" not in kind[:7]])
def test_i1_a_commit_in_the_body_is_refused_and_nothing_is_committed(
    open_callers: OpenCallers, kind: str
) -> None:
    """Even if the caller catches the error and commits. Only asyncpg has no commit()."""

    async def scenario(caller: Caller) -> None:
        commit = caller.db.commit
        if kind.startswith("django"):
            from django.db import transaction

            def commit() -> None:
                transaction.commit(using=caller.db.alias)

        await caller.begin()
        tx = caller.once.in_transaction(caller.subject)
        with pytest.raises(Exception) as refused:
            await resolved(tx.run("order", "k", body_that(caller, commit)))
        result = f"{type(refused.value).__name__}: {refused.value}"
        assert any(
            word in result for word in ("commit() forbidden", "must not commit", "atomic")
        ), result
        assert orders() == []
        try:
            await caller.commit()
        except PendingRollbackError:  # SQLAlchemy's Connection insists on it
            await caller.rollback()
        assert (orders(), await caller.state("k"), advisory_locks()) == ([], None, [])
        async with caller.transaction():
            assert not (await caller.run_inside("k")).replayed
        assert orders() == ["tea"]

    open_callers.run_scenario(kind, scenario, {})


@pytest.mark.parametrize("kind", [kind for kind in CALLERS if "sqlalchemy" in kind])
def test_i1_a_commit_inside_a_nested_block_is_refused_too(
    open_callers: OpenCallers, kind: str
) -> None:
    async def scenario(caller: Caller) -> None:
        def blocking(attempt: Any) -> None:
            caller.db.begin_nested()
            caller.send(INSERT)
            caller.db.commit()

        async def awaited(attempt: Any) -> None:
            await caller.db.begin_nested()
            await caller.send(INSERT)
            await caller.db.commit()

        await caller.begin()
        tx = caller.once.in_transaction(caller.subject)
        with pytest.raises(ConfigurationError, match="must not commit"):
            await resolved(tx.run("order", "k", awaited if caller.is_async else blocking))
        await caller.rollback()
        assert (orders(), await caller.state("k"), advisory_locks()) == ([], None, [])

    open_callers.run_scenario(kind, scenario, {})


@pytest.mark.parametrize("kind", ["sqlalchemy-session", "sqlalchemy-async-session"])
def test_a_nested_block_of_the_body_may_be_committed(open_callers: OpenCallers, kind: str) -> None:
    async def scenario(caller: Caller) -> None:
        async with caller.transaction():

            def blocking(attempt: Any) -> None:
                with caller.nested():
                    caller.send(INSERT)
                assert (
                    caller.once.in_transaction(caller.db).run("order", "in", lambda a: 1).value == 1
                )
                with caller.nested():
                    caller.send(INSERT)

            async def awaited(attempt: Any) -> None:
                async with caller.nested():
                    await caller.send(INSERT)
                await caller.run_inside("in", Body(()))
                async with caller.nested():
                    await caller.send(INSERT)

            tx = caller.once.in_transaction(caller.subject)
            await resolved(tx.run("order", "k", awaited if caller.is_async else blocking))
        assert orders() == ["tea", "tea"]

    open_callers.run_scenario(kind, scenario, {})


def test_a_commit_sent_as_plain_sql_raises(run_scenario_on_drivers: RunScenario) -> None:
    async def scenario(caller: Caller) -> None:
        tx = caller.once.in_transaction(caller.subject)
        await caller.execute("BEGIN")
        with pytest.raises(ConfigurationError, match=OVER):
            await resolved(tx.run("order", "k", body_that(caller, lambda: caller.send("COMMIT"))))
        assert (await caller.state("k"), advisory_locks()) == (None, [])

    run_scenario_on_drivers(scenario)


def test_a_commit_and_a_new_begin_as_plain_sql_raise(run_scenario_on_drivers: RunScenario) -> None:
    async def scenario(caller: Caller) -> None:
        tx = caller.once.in_transaction(caller.subject)
        await caller.execute("BEGIN")
        with pytest.raises(ConfigurationError, match=OVER):
            await resolved(
                tx.run("order", "k", body_that(caller, lambda: caller.send("COMMIT; BEGIN")))
            )
        await caller.execute("ROLLBACK")
        assert (await caller.state("k"), advisory_locks()) == (None, [])

    run_scenario_on_drivers(scenario)


# --- rollback -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [kind for kind in CALLERS if not kind.startswith(("asyncpg", "django"))]
)
@pytest.mark.parametrize("error", [None, ValueError("the body's own")])
def test_i10_a_rollback_in_the_body_leaves_nothing_and_frees_the_key(
    open_callers: OpenCallers, kind: str, error: Exception | None
) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.begin()
        tx = caller.once.in_transaction(caller.subject)
        with pytest.raises(Exception) as refused:
            await resolved(tx.run("order", "k", body_that(caller, caller.db.rollback, error)))
        if error is not None and "sqlalchemy" in kind:
            assert refused.value is error
        elif "sqlalchemy" in kind:
            assert isinstance(refused.value, ConfigurationError)
        else:
            assert isinstance(refused.value, psycopg.ProgrammingError)  # within a block of its own
        if "sqlalchemy" in kind:
            subject = caller.db() if kind == "sqlalchemy-scoped" else caller.db
            assert not subject.in_transaction()  # and no new one was begun
        await caller.rollback()
        assert (orders(), await caller.state("k"), advisory_locks()) == ([], None, [])
        async with caller.transaction():
            assert not (await caller.run_inside("k")).replayed
        assert orders() == ["tea"]

    open_callers.run_scenario(kind, scenario, {})


@pytest.mark.parametrize("sql", ["ROLLBACK", "ROLLBACK; BEGIN"])
def test_a_rollback_sent_as_plain_sql_raises(
    run_scenario_on_drivers: RunScenario, sql: str
) -> None:
    async def scenario(caller: Caller) -> None:
        tx = caller.once.in_transaction(caller.subject)
        await caller.execute("BEGIN")
        with pytest.raises(ConfigurationError, match=OVER):
            await resolved(tx.run("order", "k", body_that(caller, lambda: caller.send(sql))))
        await caller.execute("ROLLBACK")
        assert (orders(), await caller.state("k"), advisory_locks()) == ([], None, [])
        async with caller.transaction():
            await caller.run_on(tx, "k")
        assert orders() == ["tea"]

    run_scenario_on_drivers(scenario)


def test_the_bodys_own_error_is_raised_even_if_it_ended_the_transaction(
    run_scenario_on_drivers: RunScenario,
) -> None:
    async def scenario(caller: Caller) -> None:
        tx = caller.once.in_transaction(caller.subject)
        await caller.execute("BEGIN")
        error = ValueError("the body's own")
        with pytest.raises(ValueError, match="the body's own"):
            await resolved(
                tx.run("order", "k", body_that(caller, lambda: caller.send("ROLLBACK"), error))
            )
        assert (orders(), advisory_locks()) == ([], [])
        async with caller.transaction():
            await caller.run_on(tx, "k")
        assert orders() == ["tea"]

    run_scenario_on_drivers(scenario)


# --- savepoints of the caller's, and errors that are swallowed ---------------------------------


def test_a_rollback_to_a_savepoint_before_the_claim_raises(
    run_scenario_on_drivers: RunScenario,
) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.begin()
        await caller.execute("SAVEPOINT mine")
        tx = caller.once.in_transaction(caller.subject)
        back = "ROLLBACK TO SAVEPOINT mine"
        with pytest.raises(ConfigurationError, match=OVER):
            await resolved(tx.run("order", "k", body_that(caller, lambda: caller.send(back))))
        await caller.rollback()
        assert (orders(), await caller.state("k"), advisory_locks()) == ([], None, [])

    run_scenario_on_drivers(scenario)


def test_i1_a_body_that_swallows_a_failed_statement_is_not_recorded(
    run_scenario_mainly: RunScenario,
) -> None:
    """Its rows are lost with the statement, so its result must not be stored."""

    async def scenario(caller: Caller) -> None:
        def blocking(attempt: Any) -> str:
            caller.send(INSERT)
            with pytest.raises(Exception, match="nowhere"):
                caller.send("SELECT * FROM nowhere")
            return "as if nothing had happened"

        async def awaited(attempt: Any) -> str:
            await caller.send(INSERT)
            with pytest.raises(Exception, match="nowhere"):
                await caller.send("SELECT * FROM nowhere")
            return "as if nothing had happened"

        tx = caller.once.in_transaction(caller.subject)
        async with caller.transaction():
            with pytest.raises(Exception, match="transaction"):
                await resolved(tx.run("order", "k", awaited if caller.is_async else blocking))
            await caller.run_on(tx, "k2", MILK)  # the rest of the transaction is as it was
        assert (orders(), await caller.state("k"), await caller.state("k2")) == (
            ["milk"],
            None,
            "succeeded",
        )
        async with caller.transaction():
            assert not (await caller.run_inside("k", Body(()))).replayed

    run_scenario_mainly(scenario)


def test_i1_rows_are_rolled_back_if_their_record_cannot_be_written(
    run_scenario_mainly: RunScenario,
) -> None:
    async def scenario(caller: Caller) -> None:
        query(REFUSAL)
        try:
            tx = caller.once.in_transaction(caller.subject)
            async with caller.transaction():
                with pytest.raises(Exception, match="no room for this record"):
                    await resolved(tx.run("cursed", "k", caller.make_body(Body())))
                await caller.execute(MILK.statements[0])
        finally:
            query("DROP FUNCTION refuse CASCADE")
        assert (orders(), advisory_locks()) == (["milk"], [])
        async with caller.transaction():
            assert not (await resolved(tx.run("cursed", "k", caller.make_body(Body())))).replayed

    run_scenario_mainly(scenario)


def test_a_lost_connection_raises_the_drivers_own_error(
    run_scenario_on_drivers: RunScenario,
) -> None:
    async def scenario(caller: Caller) -> None:
        async with type(caller)() as other:

            def cut() -> Any:
                return other.send("SELECT pg_terminate_backend(pg_backend_pid())")

            tx = other.once.in_transaction(other.subject)
            await other.begin()
            with pytest.raises((psycopg.OperationalError, asyncpg.PostgresError)) as raised:
                await resolved(tx.run("order", "k", body_that(other, cut)))
            assert "terminat" in str(raised.value)
            other.block = None  # type: ignore[attr-defined]
        async with caller.transaction():
            assert not (await caller.run_inside("k")).replayed
        assert (await caller.run_leased("k", MUST_NOT_RUN)).value == "done"
        assert orders() == ["tea"]

    run_scenario_on_drivers(scenario)
