"""Operations in the caller's own transaction, on a connection of every kind.

Rows and record commit together or not at all (I1), a rollback leaves nothing to wait for (I10), and
an operation that fails leaves the rest of the transaction as it was.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.postgres.conftest import RunScenario
from tests.support.caller_connections import (
    INSERT,
    MUST_NOT_RUN,
    Body,
    Caller,
    advisory_locks,
    orders,
    resolved,
)

from oncekey import InFlight, Mismatch, OperationFailed, Terminal
from oncekey.core.errors import ConfigurationError

MILK = "INSERT INTO orders VALUES ('milk')"
BROKEN = "INSERT INTO nowhere VALUES ('x')"


# --- the ends of a transaction ------------------------------------------------------------------


def test_i1_rows_and_record_commit_together(run_scenario: RunScenario) -> None:
    async def scenario(caller: Caller) -> None:
        async with caller.transaction():
            first = await caller.run_inside("k")
            assert (first.value, first.replayed, first.attempt) == ("done", False, 1)
            assert (orders(), await caller.state("k")) == ([], None)  # nobody else sees it yet
        assert (orders(), await caller.state("k"), advisory_locks()) == (["tea"], "succeeded", [])
        async with caller.transaction():
            again = await caller.run_inside("k", MUST_NOT_RUN)
        result = await caller.run_leased("k", MUST_NOT_RUN)
        assert (again.value, again.replayed, again.fence) == ("done", True, first.fence)
        assert (result.value, result.replayed, result.fence) == ("done", True, first.fence)
        assert (caller.ran, orders()) == (1, ["tea"])

    run_scenario(scenario)


def test_i10_after_a_rollback_nothing_is_left_and_a_retry_runs_at_once(
    run_scenario: RunScenario,
) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.begin()
        await caller.run_inside("k")
        await caller.rollback()
        assert (orders(), await caller.state("k"), advisory_locks()) == ([], None, [])
        async with caller.transaction():
            again = await caller.run_inside("k")
        assert (again.replayed, again.attempt, orders()) == (False, 1, ["tea"])
        assert (await caller.run_leased("k", MUST_NOT_RUN)).value == "done"

    run_scenario(scenario)


def test_an_error_that_rolls_back_the_transaction_leaves_nothing(run_scenario: RunScenario) -> None:
    async def scenario(caller: Caller) -> None:
        for error in (ValueError("mine"), Terminal("mine"), KeyboardInterrupt("mine")):
            with pytest.raises(type(error), match="mine"):
                async with caller.transaction():
                    await caller.run_inside("k", Body(error=error))
            assert (orders(), await caller.state("k"), advisory_locks()) == ([], None, [])
        async with caller.transaction():
            assert not (await caller.run_inside("k")).replayed

    run_scenario(scenario)


# --- bodies that do not succeed -------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt("mine")])
def test_a_body_that_raises_rolls_back_only_its_own_rows(
    run_scenario: RunScenario, error: BaseException
) -> None:
    async def scenario(caller: Caller) -> None:
        async with caller.transaction():
            await caller.execute("INSERT INTO orders VALUES ('before')")
            tx = caller.once.in_transaction(caller.subject)
            with pytest.raises(type(error), match="mine"):
                await caller.run_on(tx, "k", Body(error=error))
            await caller.execute("INSERT INTO orders VALUES ('after')")
            # The key is free, also in this very transaction.
            again = await caller.run_on(tx, "k", Body((MILK,)))
            assert (again.replayed, again.attempt) == (False, 1)
        assert orders() == ["after", "before", "milk"]
        assert await caller.state("k") == "succeeded"

    run_scenario(scenario)


def test_a_failed_statement_of_a_body_does_not_fail_the_transaction(
    run_scenario: RunScenario,
) -> None:
    async def scenario(caller: Caller) -> None:
        async with caller.transaction():
            with pytest.raises(Exception, match="nowhere"):
                await caller.run_inside("k", Body((INSERT, BROKEN)))
            await caller.execute(MILK)
        assert (orders(), await caller.state("k")) == (["milk"], None)

    run_scenario(scenario)


def test_a_terminal_error_is_stored_without_the_bodys_rows(run_scenario: RunScenario) -> None:
    async def scenario(caller: Caller) -> None:
        async with caller.transaction():
            with pytest.raises(Terminal, match="out of tea"):
                await caller.run_inside("k", Body(error=Terminal("out of tea")))
            with pytest.raises(OperationFailed, match="out of tea"):
                await caller.run_inside("k", MUST_NOT_RUN)
            await caller.execute("INSERT INTO orders VALUES ('refusal noted')")
        assert (orders(), await caller.state("k")) == (["refusal noted"], "failed")
        async with caller.transaction():
            with pytest.raises(OperationFailed, match="out of tea"):
                await caller.run_inside("k", MUST_NOT_RUN)
        with pytest.raises(OperationFailed, match="out of tea"):
            await caller.run_leased("k", MUST_NOT_RUN)

    run_scenario(scenario)


def test_attempt_rollback_stores_the_result_without_the_rows(run_scenario: RunScenario) -> None:
    async def scenario(caller: Caller) -> None:
        async with caller.transaction():
            await caller.execute(MILK)
            result = await caller.run_inside("k", Body(value="sold out", rollback=True))
            assert (result.value, result.replayed) == ("sold out", False)
        assert (orders(), await caller.state("k")) == (["milk"], "succeeded")
        assert (await caller.run_leased("k", MUST_NOT_RUN)).value == "sold out"

    run_scenario(scenario)


def test_rows_written_after_attempt_rollback_follow_the_bodys_end(
    run_scenario: RunScenario,
) -> None:
    async def scenario(caller: Caller) -> None:
        tx = caller.once.in_transaction(caller.subject)
        three = (INSERT, "INSERT INTO orders VALUES ('coffee')", MILK)

        def blocking(fails: bool) -> Any:
            def body(attempt: Any) -> None:
                for sql in three:
                    attempt.rollback()
                    caller.send(sql)
                if fails:
                    raise ValueError("late")

            return body

        def awaited(fails: bool) -> Any:
            async def body(attempt: Any) -> None:
                for sql in three:
                    await attempt.rollback()
                    await caller.send(sql)
                if fails:
                    raise ValueError("late")

            return body

        body = awaited if caller.is_async else blocking
        async with caller.transaction():
            with pytest.raises(ValueError, match="late"):
                await resolved(tx.run("order", "k", body(True)))
            await resolved(tx.run("order", "k", body(False)))
        assert (orders(), await caller.state("k")) == (["milk"], "succeeded")

    run_scenario(scenario)


# --- keys ---------------------------------------------------------------------------------------


def test_i7_a_different_request_in_a_transaction_is_rejected_without_a_write(
    run_scenario: RunScenario,
) -> None:
    async def scenario(caller: Caller) -> None:
        async with caller.transaction():
            await caller.run_inside("k", request={"cents": 1})
        async with caller.transaction():
            with pytest.raises(Mismatch):
                await caller.run_inside("k", MUST_NOT_RUN, request={"cents": 2})
            assert (await caller.run_inside("k", MUST_NOT_RUN, request={"cents": 1})).replayed
        with pytest.raises(Mismatch):
            await caller.run_leased("k", MUST_NOT_RUN, request={"cents": 2})
        assert orders() == ["tea"]

    run_scenario(scenario)


def test_two_operations_and_a_replay_in_one_transaction(run_scenario: RunScenario) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.begin()
        await caller.run_inside("one")
        await caller.run_inside("two", Body((MILK,)))
        assert (await caller.run_inside("one", MUST_NOT_RUN)).replayed
        assert (await caller.run_inside("two", MUST_NOT_RUN)).replayed
        await caller.rollback()
        assert (orders(), await caller.state("one"), await caller.state("two")) == ([], None, None)
        async with caller.transaction():
            tx = caller.once.in_transaction(caller.subject)
            await caller.run_on(tx, "one")
            await caller.run_on(tx, "two", Body((MILK,)))
            assert (await caller.run_on(tx, "one", MUST_NOT_RUN)).replayed
        assert orders() == ["milk", "tea"]
        assert [await caller.state(key) for key in ("one", "two")] == ["succeeded"] * 2

    run_scenario(scenario)


def body_with(caller: Caller, tx: Any, inner: Body, error: BaseException | None = None) -> Any:
    """A body that inserts milk, runs another operation, and inserts milk again."""

    def blocking(attempt: Any) -> Any:
        caller.send(MILK)
        try:
            result = tx.run("order", "inner", caller.make_body(inner)).value
        except ValueError:
            result = "inner failed"
        caller.send(MILK)
        if error is not None:
            raise error
        return result

    async def awaited(attempt: Any) -> Any:
        await caller.send(MILK)
        try:
            result = (await tx.run("order", "inner", caller.make_body(inner))).value
        except ValueError:
            result = "inner failed"
        await caller.send(MILK)
        if error is not None:
            raise error
        return result

    return awaited if caller.is_async else blocking


@pytest.mark.parametrize("same", [True, False], ids=["the-same-tx", "another-tx"])
def test_an_operation_nested_in_another_body_commits_with_it(
    run_scenario: RunScenario, same: bool
) -> None:
    async def scenario(caller: Caller) -> None:
        tx = caller.once.in_transaction(caller.subject)
        inside = tx if same else caller.once.in_transaction(caller.subject)
        failing = Body(error=ValueError("inner"))
        async with caller.transaction():  # both succeed
            result = await resolved(tx.run("outer", "1", body_with(caller, inside, Body())))
            assert result.value == "done"
        assert orders() == ["milk", "milk", "tea"]
        async with caller.transaction():  # the inner one fails, and is undone alone
            result = await resolved(tx.run("outer", "2", body_with(caller, inside, failing)))
            assert result.value == "done"  # it was finished by the first one
        assert orders() == ["milk"] * 4 + ["tea"]

    run_scenario(scenario)


@pytest.mark.parametrize("same", [True, False], ids=["the-same-tx", "another-tx"])
def test_a_failed_inner_operation_is_rolled_back_alone_and_an_outer_one_with_it(
    run_scenario: RunScenario, same: bool
) -> None:
    async def scenario(caller: Caller) -> None:
        tx = caller.once.in_transaction(caller.subject)
        inside = tx if same else caller.once.in_transaction(caller.subject)
        failing = Body(error=ValueError("inner"))
        async with caller.transaction():
            result = await resolved(tx.run("outer", "1", body_with(caller, inside, failing)))
            assert result.value == "inner failed"
        assert (orders(), await caller.state("inner")) == (["milk", "milk"], None)
        async with caller.transaction():
            body = body_with(caller, inside, Body(), KeyError("outer"))
            with pytest.raises(KeyError, match="outer"):
                await resolved(tx.run("outer", "2", body))
            # Of the inner one nothing is left either: it runs, in this very transaction.
            assert not (await caller.run_on(inside, "inner", Body())).replayed
        assert (orders(), await caller.state("inner")) == (["milk", "milk", "tea"], "succeeded")

    run_scenario(scenario)


@pytest.mark.parametrize("same", [True, False], ids=["the-same-tx", "another-tx"])
def test_i1_the_same_key_inside_its_own_body_is_in_flight(
    run_scenario: RunScenario, same: bool
) -> None:
    async def scenario(caller: Caller) -> None:
        tx = caller.once.in_transaction(caller.subject)
        ran = []

        def transaction() -> Any:
            return tx if same else caller.once.in_transaction(caller.subject)

        def blocking(attempt: Any) -> Any:
            ran.append(caller.send(INSERT))
            return transaction().run("order", "k", blocking).value

        async def awaited(attempt: Any) -> Any:
            ran.append(await caller.send(INSERT))
            return (await transaction().run("order", "k", awaited)).value

        async with caller.transaction():
            with pytest.raises(InFlight):
                await resolved(tx.run("order", "k", awaited if caller.is_async else blocking))
            assert len(ran) == 1
            assert not (await caller.run_inside("k", Body((MILK,)))).replayed
        assert orders() == ["milk"]

    run_scenario(scenario)


def test_steps_commit_with_the_record(run_scenario: RunScenario) -> None:
    async def scenario(caller: Caller) -> None:
        called: list[str] = []

        def call(key: str) -> int:
            called.append(key)
            return len(called)

        def blocking(attempt: Any) -> Any:
            attempt.renew()
            caller.send(INSERT)
            return [attempt.step(name, call) for name in "ab"]

        async def awaited(attempt: Any) -> Any:
            await attempt.renew()
            await caller.send(INSERT)
            return [await attempt.step(name, call) for name in "ab"]

        tx = caller.once.in_transaction(caller.subject)
        async with caller.transaction():
            result = await resolved(tx.run("order", "k", awaited if caller.is_async else blocking))
            assert result.value == [1, 2]
        status = await resolved(caller.once.get("order", "k"))
        assert [(step.name, step.done) for step in status.steps] == [("a", True), ("b", True)]
        assert (len(set(called)), orders()) == (2, ["tea"])

    run_scenario(scenario)


def test_get_in_a_transaction_sees_its_own_record(run_scenario: RunScenario) -> None:
    async def scenario(caller: Caller) -> None:
        tx = caller.once.in_transaction(caller.subject)
        async with caller.transaction():
            assert await resolved(tx.get("order", "k")) is None
            await caller.run_on(tx, "k")
            status = await resolved(tx.get("order", "k"))
            assert str(status.state) == "succeeded"
        assert (await resolved(tx.get("order", "k"))).value == "done"  # also without a transaction

    run_scenario(scenario)


def test_in_transaction_without_an_open_transaction_is_refused(run_scenario: RunScenario) -> None:
    """Kinds that begin implicitly are not affected."""

    async def scenario(caller: Caller) -> None:
        if type(caller).__name__ in BEGIN_BY_THEMSELVES:
            await caller.run_inside("k")
            await caller.commit()
            assert (orders(), await caller.state("k")) == (["tea"], "succeeded")
            return
        with pytest.raises(ConfigurationError, match="in no transaction"):
            await caller.run_inside("k")
        assert (caller.ran, orders(), await caller.state("k"), advisory_locks()) == (
            0,
            [],
            None,
            [],
        )

    run_scenario(scenario)


BEGIN_BY_THEMSELVES = {
    "ImplicitPsycopgCaller",
    "SessionCaller",
    "ScopedSessionCaller",
    "ConnectionCaller",
    "AsyncSessionCaller",
    "AsyncSessionPsycopgCaller",
    "AsyncConnectionCaller",
    "AsyncConnectionPsycopgCaller",
}
