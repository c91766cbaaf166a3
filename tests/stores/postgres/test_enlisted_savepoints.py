"""Savepoints of the caller's own, around operations and inside of them (I1, I10).

What is rolled back to before an operation takes its record, its lock and its claim along, so the
key is free: for others at once, and for the same transaction too.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.postgres.conftest import Play
from tests.support.caller_connections import (
    INSERT,
    NEVER,
    Order,
    RolledBack,
    Shop,
    done,
    locks,
    rows,
)

from oncekey import InFlight
from oncekey.stores.postgres.caller_transaction import OPEN_SAVEPOINTS_MAX

MILK = Order(("INSERT INTO orders VALUES ('milk')",))
COUNT = 3 * OPEN_SAVEPOINTS_MAX


def test_i1_an_operation_in_a_nested_block_goes_the_way_of_the_block(play_mainly: Play) -> None:
    async def scene(shop: Shop, other: Shop) -> None:
        tx = shop.once.in_transaction(shop.subject)
        async with shop.transaction():
            async with shop.savepoint():
                await shop.run_in(tx, "kept", MILK)
            async with shop.savepoint():
                await shop.run_in(tx, "k")
                with pytest.raises(InFlight):
                    await other.outside("k", NEVER)
                raise RolledBack
            # Free for everybody, although the transaction goes on.
            async with other.transaction():
                assert not (await other.inside("k", Order((), value="theirs"))).replayed
            assert (await shop.run_in(tx, "k", NEVER)).value == "theirs"
            assert (await shop.run_in(tx, "kept", NEVER)).replayed
        assert (rows(), locks()) == (["milk"], [])

    play_mainly(scene)


@pytest.mark.parametrize("same", [True, False], ids=["the-same-tx", "another-tx"])
def test_a_key_that_was_rolled_back_runs_again_in_the_same_transaction(
    play_mainly: Play, same: bool
) -> None:
    async def scene(shop: Shop) -> None:
        tx = shop.once.in_transaction(shop.subject)
        async with shop.transaction():
            for _ in range(3):
                async with shop.savepoint():
                    await shop.run_in(tx, "k")
                    raise RolledBack
            again = await shop.run_in(tx if same else shop.once.in_transaction(shop.db), "k", MILK)
            assert (again.replayed, again.attempt) == (False, 1)
        assert (rows(), await shop.state("k")) == (["milk"], "succeeded")

    play_mainly(scene)


def test_an_operation_that_fails_in_a_nested_block(play_mainly: Play) -> None:
    async def scene(shop: Shop) -> None:
        async with shop.transaction():
            await shop.execute(MILK.statements[0])
            with pytest.raises(ValueError, match="mine"):
                async with shop.savepoint():
                    await shop.inside("k", Order(error=ValueError("mine")))
            async with shop.savepoint():
                with pytest.raises(ValueError, match="mine"):
                    await shop.inside("k", Order(error=ValueError("mine")))
                await shop.inside("k")
        assert (rows(), await shop.state("k")) == (["milk", "tea"], "succeeded")

    play_mainly(scene)


@pytest.mark.parametrize("fails", [False, True])
def test_nested_blocks_of_the_bodys_own(play_mainly: Play, fails: bool) -> None:
    async def scene(shop: Shop) -> None:
        def blocking(attempt: Any) -> None:
            with shop.nested():
                shop.send(INSERT)
            try:
                with shop.nested():
                    shop.send("INSERT INTO orders VALUES ('undone')")
                    raise RolledBack
            except RolledBack:
                shop.send(MILK.statements[0])
            if fails:
                raise ValueError("mine")

        async def awaited(attempt: Any) -> None:
            async with shop.savepoint():
                await shop.send(INSERT)
            async with shop.savepoint():
                await shop.send("INSERT INTO orders VALUES ('undone')")
                raise RolledBack
            await shop.send(MILK.statements[0])
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
        assert rows() == ([] if fails else ["milk", "tea"])
        assert await shop.state("k") == (None if fails else "succeeded")

    play_mainly(scene)


def test_many_operations_in_one_transaction(play_mainly: Play) -> None:
    """More than may leave their savepoints open; some of them in blocks that are rolled back."""

    async def scene(shop: Shop) -> None:
        tx = shop.once.in_transaction(shop.subject)
        kept = 0
        async with shop.transaction():
            for number in range(COUNT):
                async with shop.savepoint():
                    await shop.run_in(tx, f"k{number}")
                    if number % 3 == 0:
                        raise RolledBack
                    kept += 1
                if number % 5 == 0:
                    with pytest.raises(ValueError):
                        await shop.run_in(tx, f"fails{number}", Order(error=ValueError()))
            async with shop.savepoint():
                for number in range(COUNT):
                    await shop.run_in(tx, f"gone{number}")
                raise RolledBack
        assert rows() == ["tea"] * kept
        assert locks() == []
        async with shop.transaction():
            for number in range(COUNT):
                assert (await shop.run_in(tx, f"k{number}", Order(()))).replayed is (number % 3 > 0)

    play_mainly(scene)


def test_savepoints_of_plain_sql(play_on_driver: Play) -> None:
    async def scene(shop: Shop) -> None:
        async with shop.transaction():
            await shop.execute("SAVEPOINT mine")
            await shop.inside("k", MILK)
            with pytest.raises(ValueError):
                await shop.inside("k2", Order((INSERT, "SAVEPOINT mine"), error=ValueError()))
            await shop.execute("ROLLBACK TO SAVEPOINT mine")
            await shop.inside("k", Order((INSERT, "SAVEPOINT mine", *MILK.statements)))
        assert (rows(), await shop.state("k")) == (["milk", "tea"], "succeeded")

    play_on_driver(scene)
