"""At REPEATABLE READ and SERIALIZABLE PostgreSQL may refuse a transaction, which is retried (I1).

The code that retries must get the driver's own error, wherever it comes from: a statement of the
body, the claim, the record, or the commit.
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
    """The `begin` of `run_transaction`. It counts the tries and lets something happen in each."""

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
            await self.caller.execute("SELECT count(*) FROM orders")  # its snapshot is taken here
            if self.before:
                await resolved(self.before.pop(0)())
            yield self.caller


def finished(work: Any) -> Any:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


async def transacted(begun: Begun, order: Body = INSERT_BODY, **options: Any) -> Any:
    """Run an operation in a transaction that is retried after a conflict."""
    caller = begun.caller

    def work(caller: Caller) -> Any:
        return caller.once.in_transaction(caller.subject).run("order", "k", caller.make_body(order))

    if caller.is_async:
        return await run_transaction_async(begun.asyncio, work, **options)
    return run_transaction(begun.blocking, work, **options)


@every_level
def test_i1_a_record_missing_from_the_snapshot_makes_the_transaction_retry(
    run_scenario_mainly: RunScenario, level: str
) -> None:
    """The key's own insert is refused, because another transaction was first; then it replays."""

    async def scenario(caller: Caller, other: Caller) -> None:
        async def first() -> None:
            async with other.transaction():
                await other.run_inside("k", Body(("INSERT INTO orders VALUES ('theirs')",)))

        begun = Begun(caller, level, first)
        result = await transacted(begun, Body(value="mine"))
        assert (result.value, result.replayed, begun.tries) == ("done", True, 2)
        assert (orders(), caller.ran) == (["theirs"], 1)  # what the first try did is gone

    run_scenario_mainly(scenario)


@every_level
def test_i1_a_conflict_on_a_row_of_the_body_makes_the_transaction_retry(
    run_scenario_mainly: RunScenario, level: str
) -> None:
    async def scenario(caller: Caller) -> None:
        query("INSERT INTO orders VALUES ('one')")
        begun = Begun(caller, level, lambda: query("UPDATE orders SET item = 'two'"))
        result = await transacted(begun, Body(("UPDATE orders SET item = item || '!'",)))
        assert (result.replayed, begun.tries, caller.ran, orders()) == (False, 2, 2, ["two!"])

    run_scenario_mainly(scenario)


def test_a_refused_commit_makes_the_transaction_retry(run_scenario_mainly: RunScenario) -> None:
    """Two transactions read what the other one writes, so one of them is refused."""

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
            result = await run_transaction_async(begun.asyncio, work)
        else:
            result = run_transaction(begun.blocking, work)
        assert (result.replayed, begun.tries, orders()) == (False, 2, ["milk", "tea"])

    run_scenario_mainly(scenario)


def test_run_transaction_tries_three_times_and_then_raises(
    run_scenario_on_drivers: RunScenario,
) -> None:
    async def scenario(caller: Caller) -> None:
        query("INSERT INTO orders VALUES ('one')")
        change = lambda: query("UPDATE orders SET item = item || 'x'")  # noqa: E731
        for tries in (1, 3):
            begun = Begun(caller, "REPEATABLE READ", *[change] * 9)
            with pytest.raises(Exception, match="could not serialize") as raised:
                await transacted(
                    begun, Body(("UPDATE orders SET item = item || '!'",)), tries=tries
                )
            assert is_conflict(raised.value)
            assert (begun.tries, await caller.state("k")) == (tries, None)

    run_scenario_on_drivers(scenario)


def test_run_transaction_raises_other_errors_at_once(run_scenario_mainly: RunScenario) -> None:
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
def test_run_transaction_checks_the_number_of_tries(tries: Any) -> None:
    with pytest.raises(ConfigurationError, match="1 or more"):
        run_transaction(lambda: None, lambda connection: None, tries=tries)  # type: ignore[arg-type, return-value]


def test_i1_concurrent_serializable_transactions_run_a_key_once(
    run_scenario_on_drivers: RunScenario,
) -> None:
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
def test_the_ring_accepts_only_read_committed_transactions(
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


def test_the_ring_refuses_a_transactions_claim_that_is_too_long(
    run_scenario_on_drivers: RunScenario,
) -> None:
    async def scenario(caller: Caller) -> None:
        async with caller.transaction():
            with pytest.raises(ConfigurationError, match="longer than the ring holds"):
                await caller.run_inside("k", MUST_NOT_RUN, keep="30d")

    run_scenario_on_drivers(scenario, **RING)
