"""The essential behaviour behind PgBouncer in transaction mode, and on PostgreSQL 15."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.postgres.conftest import RunScenario
from tests.support.caller_connections import (
    MUST_NOT_RUN,
    RING,
    Body,
    Caller,
    RolledBack,
    advisory_locks,
    orders,
    resolved,
)

from oncekey import InFlight, OperationFailed, Terminal

MILK = "INSERT INTO orders VALUES ('milk')"
OLD = 15

plain_or_ring = pytest.mark.parametrize("options", [{}, RING], ids=["plain", "ring"])


async def essentials(caller: Caller, other: Caller) -> None:
    """Commit, rollback, stored and unstored failures, duplicates, savepoints, several runs."""
    major = caller.major
    async with caller.transaction():
        await caller.run_inside("k")
        await other.begin()
        with pytest.raises(InFlight):
            await other.run_inside("k", MUST_NOT_RUN)
        with pytest.raises(InFlight):
            await other.run_leased("k", MUST_NOT_RUN)
        await other.rollback()
    assert (await other.run_leased("k", MUST_NOT_RUN)).value == "done"

    await caller.begin()
    await caller.run_inside("rolled back")
    await caller.rollback()
    assert advisory_locks(major) == []

    async with caller.transaction():
        with pytest.raises(ValueError):
            await caller.run_inside("k2", Body(error=ValueError()))
        with pytest.raises(Terminal):
            await caller.run_inside("k3", Body(error=Terminal("for good")))
        assert (await caller.run_inside("k4", Body(rollback=True))).value == "done"
        async with caller.savepoint():
            await caller.run_inside("k5")
            raise RolledBack
        assert not (await caller.run_inside("k5", Body((MILK,)))).replayed
        for number in range(10):
            await caller.run_inside(f"many{number}", Body(()))
    with pytest.raises(OperationFailed, match="for good"):
        await other.run_leased("k3", MUST_NOT_RUN)
    states = [await caller.state(key) for key in ("k", "rolled back", "k2", "k3", "k4", "k5")]
    assert states == ["succeeded", None, None, "failed", "succeeded", "succeeded"]
    assert (orders(major), advisory_locks(major)) == (["milk", "tea"], [])


@plain_or_ring
def test_transactions_behind_pgbouncer(
    run_scenario_on_drivers: RunScenario, options: dict[str, Any]
) -> None:
    run_scenario_on_drivers(essentials, bouncer=True, **options)


@plain_or_ring
def test_transactions_on_postgresql_15(
    run_scenario_on_drivers: RunScenario, options: dict[str, Any]
) -> None:
    run_scenario_on_drivers(essentials, major=OLD, **options)


def test_i1_transaction_settings_do_not_leak_to_the_next_caller_of_a_pooled_session(
    run_scenario_on_drivers: RunScenario,
) -> None:
    """The settings of a transaction must not be seen by the next one on the same session."""

    async def scenario(caller: Caller, other: Caller) -> None:
        for number in range(6):
            first, second = (caller, other) if number % 2 else (other, caller)
            await first.begin()
            await first.run_inside(f"k{number}")
            await (first.commit() if number % 3 else first.rollback())
            async with second.transaction():
                again = await second.run_inside(f"k{number}", Body(()))
                assert again.replayed is (number % 3 > 0)
                asked = await resolved(second.once.in_transaction(second.subject).get("order", "-"))
                assert asked is None
        assert (orders(), advisory_locks()) == (["tea"] * 4, [])

    run_scenario_on_drivers(scenario, bouncer=True)
