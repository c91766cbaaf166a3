"""The caller's own savepoints, around operations and inside of them (I1, I10).

A rollback to before an operation also removes its record, its lock and its claim, so the key is
free: at once for others, and for the same transaction too.
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
    RolledBack,
    advisory_locks,
    orders,
    resolved,
)

from oncekey import InFlight
from oncekey.stores.postgres.caller_transaction import OPEN_SAVEPOINTS_MAX

MILK = Body(("INSERT INTO orders VALUES ('milk')",))
COUNT = 3 * OPEN_SAVEPOINTS_MAX


def test_i1_an_operation_in_a_nested_block_commits_or_rolls_back_with_it(
    run_scenario_mainly: RunScenario,
) -> None:
    async def scenario(caller: Caller, other: Caller) -> None:
        tx = caller.once.in_transaction(caller.subject)
        async with caller.transaction():
            async with caller.savepoint():
                await caller.run_on(tx, "kept", MILK)
            async with caller.savepoint():
                await caller.run_on(tx, "k")
                with pytest.raises(InFlight):
                    await other.run_leased("k", MUST_NOT_RUN)
                raise RolledBack
            # Free for everybody, although the transaction goes on.
            async with other.transaction():
                assert not (await other.run_inside("k", Body((), value="theirs"))).replayed
            assert (await caller.run_on(tx, "k", MUST_NOT_RUN)).value == "theirs"
            assert (await caller.run_on(tx, "kept", MUST_NOT_RUN)).replayed
        assert (orders(), advisory_locks()) == (["milk"], [])

    run_scenario_mainly(scenario)


@pytest.mark.parametrize("same", [True, False], ids=["the-same-tx", "another-tx"])
def test_a_key_that_was_rolled_back_runs_again_in_the_same_transaction(
    run_scenario_mainly: RunScenario, same: bool
) -> None:
    async def scenario(caller: Caller) -> None:
        tx = caller.once.in_transaction(caller.subject)
        async with caller.transaction():
            for _ in range(3):
                async with caller.savepoint():
                    await caller.run_on(tx, "k")
                    raise RolledBack
            again = await caller.run_on(
                tx if same else caller.once.in_transaction(caller.db), "k", MILK
            )
            assert (again.replayed, again.attempt) == (False, 1)
        assert (orders(), await caller.state("k")) == (["milk"], "succeeded")

    run_scenario_mainly(scenario)


def test_a_failed_operation_in_a_nested_block_leaves_the_block_usable(
    run_scenario_mainly: RunScenario,
) -> None:
    async def scenario(caller: Caller) -> None:
        async with caller.transaction():
            await caller.execute(MILK.statements[0])
            with pytest.raises(ValueError, match="mine"):
                async with caller.savepoint():
                    await caller.run_inside("k", Body(error=ValueError("mine")))
            async with caller.savepoint():
                with pytest.raises(ValueError, match="mine"):
                    await caller.run_inside("k", Body(error=ValueError("mine")))
                await caller.run_inside("k")
        assert (orders(), await caller.state("k")) == (["milk", "tea"], "succeeded")

    run_scenario_mainly(scenario)


@pytest.mark.parametrize("fails", [False, True])
def test_a_body_may_have_nested_blocks(run_scenario_mainly: RunScenario, fails: bool) -> None:
    async def scenario(caller: Caller) -> None:
        def blocking(attempt: Any) -> None:
            with caller.nested():
                caller.send(INSERT)
            try:
                with caller.nested():
                    caller.send("INSERT INTO orders VALUES ('undone')")
                    raise RolledBack
            except RolledBack:
                caller.send(MILK.statements[0])
            if fails:
                raise ValueError("mine")

        async def awaited(attempt: Any) -> None:
            async with caller.savepoint():
                await caller.send(INSERT)
            async with caller.savepoint():
                await caller.send("INSERT INTO orders VALUES ('undone')")
                raise RolledBack
            await caller.send(MILK.statements[0])
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
        assert orders() == ([] if fails else ["milk", "tea"])
        assert await caller.state("k") == (None if fails else "succeeded")

    run_scenario_mainly(scenario)


def test_many_operations_run_in_one_transaction(run_scenario_mainly: RunScenario) -> None:
    """More than may leave their savepoints open, and some in blocks that are rolled back."""

    async def scenario(caller: Caller) -> None:
        tx = caller.once.in_transaction(caller.subject)
        kept = 0
        async with caller.transaction():
            for number in range(COUNT):
                async with caller.savepoint():
                    await caller.run_on(tx, f"k{number}")
                    if number % 3 == 0:
                        raise RolledBack
                    kept += 1
                if number % 5 == 0:
                    with pytest.raises(ValueError):
                        await caller.run_on(tx, f"fails{number}", Body(error=ValueError()))
            async with caller.savepoint():
                for number in range(COUNT):
                    await caller.run_on(tx, f"gone{number}")
                raise RolledBack
        assert orders() == ["tea"] * kept
        assert advisory_locks() == []
        async with caller.transaction():
            for number in range(COUNT):
                assert (await caller.run_on(tx, f"k{number}", Body(()))).replayed is (
                    number % 3 > 0
                )

    run_scenario_mainly(scenario)


def test_savepoints_set_with_plain_sql_work(run_scenario_on_drivers: RunScenario) -> None:
    async def scenario(caller: Caller) -> None:
        async with caller.transaction():
            await caller.execute("SAVEPOINT mine")
            await caller.run_inside("k", MILK)
            with pytest.raises(ValueError):
                await caller.run_inside("k2", Body((INSERT, "SAVEPOINT mine"), error=ValueError()))
            await caller.execute("ROLLBACK TO SAVEPOINT mine")
            await caller.run_inside("k", Body((INSERT, "SAVEPOINT mine", *MILK.statements)))
        assert (orders(), await caller.state("k")) == (["milk", "tea"], "succeeded")

    run_scenario_on_drivers(scenario)
