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
from tests.stores.postgres.conftest import Play
from tests.support.caller_connections import (
    INSERT,
    NEVER,
    RING,
    TEA,
    Order,
    Shop,
    done,
    rows,
    watch,
)

from oncekey.core.errors import ConfigurationError
from oncekey.stores.postgres import run_transaction, run_transaction_async
from oncekey.stores.postgres.transaction_retry import is_conflict

LEVELS = ["REPEATABLE READ", "SERIALIZABLE"]
every_level = pytest.mark.parametrize("level", LEVELS)


class Begun:
    """What `run_transaction` calls to begin; counts the tries, and something happens in each."""

    def __init__(self, shop: Shop, level: str, *before: Callable[[], Any]) -> None:
        self.shop = shop
        self.level = f"SET TRANSACTION ISOLATION LEVEL {level}"
        self.before = list(before)
        self.tries = 0

    @contextmanager
    def blocking(self) -> Iterator[Shop]:
        transaction = self.asyncio()
        shop = finished(transaction.__aenter__())
        try:
            yield shop
        except BaseException as error:
            finished(transaction.__aexit__(type(error), error, error.__traceback__))
            raise
        finished(transaction.__aexit__(None, None, None))

    @asynccontextmanager
    async def asyncio(self) -> AsyncIterator[Shop]:
        self.tries += 1
        async with self.shop.transaction():
            await self.shop.execute(self.level)
            await self.shop.execute("SELECT count(*) FROM orders")  # from here on it looks back
            if self.before:
                await done(self.before.pop(0)())
            yield self.shop


def finished(work: Any) -> Any:
    """What a coroutine gives that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


async def transacted(begun: Begun, order: Order = TEA, **options: Any) -> Any:
    """An order in a transaction that is done again where that helps."""
    shop = begun.shop

    def work(shop: Shop) -> Any:
        return shop.once.in_transaction(shop.subject).run("order", "k", shop.body(order))

    if shop.is_async:
        return await run_transaction_async(begun.asyncio, work, **options)
    return run_transaction(begun.blocking, work, **options)


@every_level
def test_i1_a_record_that_the_snapshot_missed(play_mainly: Play, level: str) -> None:
    """The key's own insert is refused, because another transaction was first; then it replays."""

    async def scene(shop: Shop, other: Shop) -> None:
        async def first() -> None:
            async with other.transaction():
                await other.inside("k", Order(("INSERT INTO orders VALUES ('theirs')",)))

        begun = Begun(shop, level, first)
        told = await transacted(begun, Order(value="mine"))
        assert (told.value, told.replayed, begun.tries) == ("done", True, 2)
        assert (rows(), shop.ran) == (["theirs"], 1)  # what the first try did is gone

    play_mainly(scene)


@every_level
def test_i1_a_row_of_the_bodys_that_another_transaction_has_changed(
    play_mainly: Play, level: str
) -> None:
    async def scene(shop: Shop) -> None:
        watch("INSERT INTO orders VALUES ('one')")
        begun = Begun(shop, level, lambda: watch("UPDATE orders SET item = 'two'"))
        told = await transacted(begun, Order(("UPDATE orders SET item = item || '!'",)))
        assert (told.replayed, begun.tries, shop.ran, rows()) == (False, 2, 2, ["two!"])

    play_mainly(scene)


def test_a_commit_that_is_refused(play_mainly: Play) -> None:
    """Two transactions read what the other one writes: one of them cannot be."""

    async def scene(shop: Shop, other: Shop) -> None:
        looks = "SELECT count(*) FROM orders"

        async def crosses() -> None:
            async with other.transaction("SERIALIZABLE"):
                await other.execute(looks)
                await other.inside("theirs", Order(("INSERT INTO orders VALUES ('milk')",)))

        def work(shop: Shop) -> Any:
            tx = shop.once.in_transaction(shop.subject)
            return tx.run("order", "k", shop.body(Order((looks, INSERT))))

        begun = Begun(shop, "SERIALIZABLE", crosses)
        if shop.is_async:
            told = await run_transaction_async(begun.asyncio, work)
        else:
            told = run_transaction(begun.blocking, work)
        assert (told.replayed, begun.tries, rows()) == (False, 2, ["milk", "tea"])

    play_mainly(scene)


def test_it_is_tried_three_times_and_then_told(play_on_driver: Play) -> None:
    async def scene(shop: Shop) -> None:
        watch("INSERT INTO orders VALUES ('one')")
        change = lambda: watch("UPDATE orders SET item = item || 'x'")  # noqa: E731
        for tries in (1, 3):
            begun = Begun(shop, "REPEATABLE READ", *[change] * 9)
            with pytest.raises(Exception, match="could not serialize") as told:
                await transacted(
                    begun, Order(("UPDATE orders SET item = item || '!'",)), tries=tries
                )
            assert is_conflict(told.value)
            assert (begun.tries, await shop.state("k")) == (tries, None)

    play_on_driver(scene)


def test_other_errors_are_raised_at_once(play_mainly: Play) -> None:
    async def scene(shop: Shop) -> None:
        for order, error in (
            (Order(error=ValueError("mine")), "mine"),
            (Order(("SELECT * FROM nowhere",)), "nowhere"),
        ):
            begun = Begun(shop, "SERIALIZABLE")
            with pytest.raises(Exception, match=error):
                await transacted(begun, order)
            assert begun.tries == 1

    play_mainly(scene)


@pytest.mark.parametrize("tries", [0, -1, "3", 1.5])
def test_the_number_of_tries_is_checked(tries: Any) -> None:
    with pytest.raises(ConfigurationError, match="1 or more"):
        run_transaction(lambda: None, lambda connection: None, tries=tries)  # type: ignore[arg-type, return-value]


def test_i1_a_rush_at_serializable_runs_a_key_once(play_on_driver: Play) -> None:
    async def scene(shop: Shop) -> None:
        if not shop.is_async:
            return

        async def one(number: int) -> Any:
            async with type(shop)() as mine:
                while True:
                    try:
                        begun = Begun(mine, "SERIALIZABLE")
                        return (await transacted(begun, Order(value=number), tries=20)).value
                    except Exception as error:
                        if type(error).__name__ != "InFlight":
                            raise

        answers = await asyncio.gather(*(one(number) for number in range(6)))
        assert (len(set(answers)), rows()) == (1, ["tea"])

    play_on_driver(scene)


@every_level
def test_the_ring_takes_part_at_read_committed_only(play_mainly: Play, level: str) -> None:
    async def scene(shop: Shop) -> None:
        with pytest.raises(ConfigurationError, match="must be READ COMMITTED"):
            async with shop.transaction(level):
                await shop.inside("k", NEVER)
        async with shop.transaction():
            await shop.inside("k")
        assert (rows(), shop.ran) == (["tea"], 1)

    play_mainly(scene, **RING)


def test_the_ring_refuses_what_it_would_not_hold(play_on_driver: Play) -> None:
    async def scene(shop: Shop) -> None:
        async with shop.transaction():
            with pytest.raises(ConfigurationError, match="longer than the ring holds"):
                await shop.inside("k", NEVER, keep="30d")

    play_on_driver(scene, **RING)
