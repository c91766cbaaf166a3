"""A transaction takes over a key whose owner is late but not dead (I1, I2).

Whichever writes first wins: the other one's rows are rolled back, or its outcome is lost. A late
owner that finds the row of an open transaction gets its reply without waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.stores.postgres.conftest import RunScenario
from tests.support.caller_connections import RING, Body, Caller, advisory_locks, orders
from tests.support.caller_connections.concurrent_commands import (
    CLOCK,
    apply,
    claim_of,
    finish_of,
    run_while,
)

from oncekey.core.commands import (
    Claimed,
    Done,
    Finish,
    Lost,
    Release,
    Renew,
    Resolve,
    SaveStep,
    Unknown,
)
from oncekey.core.errors import LeaseLost
from oncekey.core.record import State
from oncekey.core.recovery import Recovery

MILK = "INSERT INTO orders VALUES ('milk')"
Verb = Callable[[Claimed], Any]


def finish(claimed: Claimed) -> Finish:
    return finish_of("k", claimed, "the zombie's")


def renew(claimed: Claimed) -> Renew:
    return Renew(claim_of("k").id, claim_of("k").owner, claimed.fence, 10_000_000)


def release(claimed: Claimed) -> Release:
    return Release(claim_of("k").id, claim_of("k").owner, claimed.fence)


def save_step(claimed: Claimed) -> SaveStep:
    claim = claim_of("k")
    return SaveStep(claim.id, claim.owner, claimed.fence, "late", True, b"x")


VERBS = [finish, renew, release, save_step]
every_verb = pytest.mark.parametrize("verb", VERBS)
plain_or_ring = pytest.mark.parametrize("options", [{}, RING], ids=["plain", "ring"])


async def dead_owner(caller: Caller) -> Claimed:
    """A retry-safe key whose owner's lease has ended."""
    (claimed,) = await apply(caller, claim_of("k"))
    CLOCK.us += 20_000_000
    assert isinstance(claimed, Claimed)
    return claimed


@plain_or_ring
@every_verb
def test_i2_a_late_owner_is_lost_after_a_transaction_has_written(
    run_scenario_on_drivers: RunScenario, verb: Verb, options: dict[str, Any]
) -> None:
    async def scenario(caller: Caller, other: Caller) -> None:
        claimed = await dead_owner(caller)
        async with caller.transaction():
            await caller.run_inside("k")
            # Written and not committed; other keys of the batch are not held up either.
            replies = await apply(other, claim_of("b"), verb(claimed), claim_of("c"))
            assert isinstance(replies[0], Claimed)
            assert isinstance(replies[2], Claimed)
            assert replies[1] == Lost()
        assert await apply(other, verb(claimed)) == [Lost()]
        assert (orders(), await caller.state("k")) == (["tea"], "succeeded")

    run_scenario_on_drivers(scenario, clock=CLOCK, **options)


@plain_or_ring
def test_a_late_owner_may_finish_after_a_rollback(
    run_scenario_on_drivers: RunScenario, options: dict[str, Any]
) -> None:
    async def scenario(caller: Caller, other: Caller) -> None:
        claimed = await dead_owner(caller)
        await caller.begin()
        await caller.run_inside("k")
        assert await apply(other, finish(claimed)) == [Lost()]
        await caller.rollback()
        assert await apply(other, finish(claimed)) == [Done()]
        async with caller.transaction():
            assert (await caller.run_inside("k", Body(()))).value == "the zombie's"
        assert orders() == []

    run_scenario_on_drivers(scenario, clock=CLOCK, **options)


@plain_or_ring
@every_verb
def test_i1_a_late_owner_that_writes_first_rolls_back_the_transactions_rows(
    run_scenario_on_drivers: RunScenario, verb: Verb, options: dict[str, Any]
) -> None:
    """Its finish becomes the result; any other command of it makes the transaction give up."""

    async def scenario(caller: Caller, other: Caller) -> None:
        claimed = await dead_owner(caller)

        async def rise() -> None:
            assert await apply(other, verb(claimed)) == [Done()]

        async with caller.transaction():
            await caller.execute(MILK)
            if verb is finish:
                result = await run_while(caller, "k", rise)
                assert (result.value, result.replayed, result.attempt) == ("the zombie's", True, 1)
            else:
                with pytest.raises(LeaseLost):
                    await run_while(caller, "k", rise)
        assert (orders(), advisory_locks()) == (["milk"], [])

    run_scenario_on_drivers(scenario, clock=CLOCK, **options)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_i1_a_late_owner_makes_a_transaction_at_a_higher_level_fail(
    run_scenario_on_drivers: RunScenario, level: str
) -> None:
    async def scenario(caller: Caller, other: Caller) -> None:
        claimed = await dead_owner(caller)

        async def rise() -> None:
            assert await apply(other, finish(claimed)) == [Done()]

        with pytest.raises(Exception, match="could not serialize"):
            async with caller.transaction(level):
                await run_while(caller, "k", rise)
        async with caller.transaction(level):
            assert (await caller.run_inside("k", Body(()))).value == "the zombie's"
        assert orders() == []

    run_scenario_on_drivers(scenario, clock=CLOCK)


@plain_or_ring
@pytest.mark.parametrize("found", [Recovery.free(), Recovery.succeeded("seen")])
def test_recovery_in_a_transaction_blocks_no_other_caller(
    run_scenario_on_drivers: RunScenario, found: Recovery, options: dict[str, Any]
) -> None:
    """It takes the key's lock, as claims do, so that other callers need not wait for the row."""

    async def scenario(caller: Caller, other: Caller) -> None:
        await apply(caller, claim_of("k", retry_safe=False))
        CLOCK.us += 60_000_000  # past recover_grace: until then "nothing happened" is not believed
        (result,) = await apply(caller, claim_of("k", b"another".ljust(16)))
        assert isinstance(result, Unknown)

        async def outsiders() -> list[Any]:
            # If one of them had to wait, all three would fail with lock_timeout.
            claims = [claim_of(name, b"outsider".ljust(16)) for name in "bkc"]
            return [type(reply) for reply in await apply(other, *claims)]

        async with caller.transaction():
            ran = await caller.run_inside("k", recover=lambda unknown: found)
            assert await outsiders() == [Claimed, Unknown, Claimed]  # unknown until the commit
            (late,) = await apply(
                other, Resolve(claim_of("k").id, result.record.fence, State.ABSENT, b"", "")
            )
            assert late == Lost()
        assert ran.value == ("seen" if found.state is State.SUCCEEDED else "done")
        assert (await caller.run_leased("k")).value == ran.value

    run_scenario_on_drivers(scenario, clock=CLOCK, **options)
