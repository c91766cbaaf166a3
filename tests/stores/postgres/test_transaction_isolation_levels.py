"""REPEATABLE READ and SERIALIZABLE: PostgreSQL may refuse a transaction, which is done again (I1).

The driver's own error must get through to whoever does it again, wherever it comes from: a
statement of the body's, the claim, the record, or the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from tests.stores.postgres.conftest import RunScenario
from tests.support.caller_connections import (
    INSERT,
    INSERT_BODY,
    MUST_NOT_RUN,
    RING,
    Body,
    Caller,
    orders,
    query,
    resolved,
)

from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres import run_transaction, run_transaction_async
from oncekey.stores.postgres.transaction_retry import is_conflict

LEVELS = ["REPEATABLE READ", "SERIALIZABLE"]
every_level = pytest.mark.parametrize("level", LEVELS)


class Begun:
    """What `run_transaction` calls to begin; counts the tries, and something happens in each."""

    def __init__(self, caller: Caller, level: str, *before: Callable[[], Any]) -> None:
        self.caller = caller
        self.level = f"SET TRANSACTION ISOLATION LEVEL {level}"
        self.before = list(before)
        self.tries = 0

    @contextmanager
    def blocking(self) -> Iterator[Caller]:
        transaction = self.asyncio()
        caller = finished(transaction.__aenter__())
        try:
            yield caller
        except BaseException as error:
            finished(transaction.__aexit__(type(error), error, error.__traceback__))
            raise
        finished(transaction.__aexit__(None, None, None))

    @asynccontextmanager
    async def asyncio(self) -> AsyncIterator[Caller]:
        self.tries += 1
        async with self.caller.transaction():
            await self.caller.execute(self.level)
            await self.caller.execute("SELECT count(*) FROM orders")  # from here on it looks back
            if self.before:
                await resolved(self.before.pop(0)())
            yield self.caller


def finished(work: Any) -> Any:
    """What a coroutine gives that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


async def transacted(begun: Begun, order: Body = INSERT_BODY, **options: Any) -> Any:
    """An order in a transaction that is done again where that helps."""
    caller = begun.caller

    def work(caller: Caller) -> Any:
        return caller.once.in_transaction(caller.subject).run("order", "k", caller.make_body(order))

    if caller.is_async:
        return await run_transaction_async(begun.asyncio, work, **options)
    return run_transaction(begun.blocking, work, **options)


@every_level
def test_i1_a_record_that_the_snapshot_missed(run_scenario_mainly: RunScenario, level: str) -> None:
    """The key's own insert is refused, because another transaction was first; then it replays."""

    async def scenario(caller: Caller, other: Caller) -> None:
        async def first() -> None:
            async with other.transaction():
                await other.run_inside("k", Body(("INSERT INTO orders VALUES ('theirs')",)))

        begun = Begun(caller, level, first)
        told = await transacted(begun, Body(value="mine"))
        assert (told.value, told.replayed, begun.tries) == ("done", True, 2)
        assert (orders(), caller.ran) == (["theirs"], 1)  # what the first try did is gone

    run_scenario_mainly(scenario)


@every_level
def test_i1_a_row_of_the_bodys_that_another_transaction_has_changed(
    run_scenario_mainly: RunScenario, level: str
) -> None:
    async def scenario(caller: Caller) -> None:
        query("INSERT INTO orders VALUES ('one')")
        begun = Begun(caller, level, lambda: query("UPDATE orders SET item = 'two'"))
        told = await transacted(begun, Body(("UPDATE orders SET item = item || '!'",)))
        assert (told.replayed, begun.tries, caller.ran, orders()) == (False, 2, 2, ["two!"])

    run_scenario_mainly(scenario)


def test_a_commit_that_is_refused(run_scenario_mainly: RunScenario) -> None:
    """Two transactions read what the other one writes: one of them cannot be."""

    async def scenario(caller: Caller, other: Caller) -> None:
        looks = "SELECT count(*) FROM orders"

        async def crosses() -> None:
            async with other.transaction("SERIALIZABLE"):
                await other.execute(looks)
                await other.run_inside("theirs", Body(("INSERT INTO orders VALUES ('milk')",)))

        def work(caller: Caller) -> Any:
            tx = caller.once.in_transaction(caller.subject)
            return tx.run("order", "k", caller.make_body(Body((looks, INSERT))))

        begun = Begun(caller, "SERIALIZABLE", crosses)
        if caller.is_async:
            told = await run_transaction_async(begun.asyncio, work)
        else:
            told = run_transaction(begun.blocking, work)
        assert (told.replayed, begun.tries, orders()) == (False, 2, ["milk", "tea"])

    run_scenario_mainly(scenario)


def test_it_is_tried_three_times_and_then_told(run_scenario_on_drivers: RunScenario) -> None:
    async def scenario(caller: Caller) -> None:
        query("INSERT INTO orders VALUES ('one')")
        change = lambda: query("UPDATE orders SET item = item || 'x'")  # noqa: E731
        for tries in (1, 3):
            begun = Begun(caller, "REPEATABLE READ", *[change] * 9)
            with pytest.raises(Exception, match="could not serialize") as told:
                await transacted(
                    begun, Body(("UPDATE orders SET item = item || '!'",)), tries=tries
                )
            assert is_conflict(told.value)
            assert (begun.tries, await caller.state("k")) == (tries, None)

    run_scenario_on_drivers(scenario)


def test_other_errors_are_raised_at_once(run_scenario_mainly: RunScenario) -> None:
    async def scenario(caller: Caller) -> None:
        for order, error in (
            (Body(error=ValueError("mine")), "mine"),
            (Body(("SELECT * FROM nowhere",)), "nowhere"),
        ):
            begun = Begun(caller, "SERIALIZABLE")
            with pytest.raises(Exception, match=error):
                await transacted(begun, order)
            assert begun.tries == 1

    run_scenario_mainly(scenario)


@pytest.mark.parametrize("tries", [0, -1, "3", 1.5])
def test_the_number_of_tries_is_checked(tries: Any) -> None:
    with pytest.raises(ConfigurationError, match="1 or more"):
        run_transaction(lambda: None, lambda connection: None, tries=tries)  # type: ignore[arg-type, return-value]


def test_i1_a_rush_at_serializable_runs_a_key_once(run_scenario_on_drivers: RunScenario) -> None:
    async def scenario(caller: Caller) -> None:
        if not caller.is_async:
            return

        async def one(number: int) -> Any:
            async with type(caller)() as mine:
                while True:
                    try:
                        begun = Begun(mine, "SERIALIZABLE")
                        return (await transacted(begun, Body(value=number), tries=20)).value
                    except Exception as error:
                        if type(error).__name__ != "InFlight":
                            raise

        answers = await asyncio.gather(*(one(number) for number in range(6)))
        assert (len(set(answers)), orders()) == (1, ["tea"])

    run_scenario_on_drivers(scenario)


@every_level
def test_the_ring_takes_part_at_read_committed_only(
    run_scenario_mainly: RunScenario, level: str
) -> None:
    async def scenario(caller: Caller) -> None:
        with pytest.raises(ConfigurationError, match="must be READ COMMITTED"):
            async with caller.transaction(level):
                await caller.run_inside("k", MUST_NOT_RUN)
        async with caller.transaction():
            await caller.run_inside("k")
        assert (orders(), caller.ran) == (["tea"], 1)

    run_scenario_mainly(scenario, **RING)


def test_the_ring_refuses_what_it_would_not_hold(run_scenario_on_drivers: RunScenario) -> None:
    async def scenario(caller: Caller) -> None:
        async with caller.transaction():
            with pytest.raises(ConfigurationError, match="longer than the ring holds"):
                await caller.run_inside("k", MUST_NOT_RUN, keep="30d")

    run_scenario_on_drivers(scenario, **RING)
