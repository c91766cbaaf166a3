"""The essentials on other servers: behind PgBouncer in transaction mode, and on PostgreSQL 15."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.postgres.conftest import Play
from tests.support.caller_connections import NEVER, RING, Order, RolledBack, Shop, done, locks, rows

from oncekey import InFlight, OperationFailed, Terminal

MILK = "INSERT INTO orders VALUES ('milk')"
OLD = 15

plain_or_ring = pytest.mark.parametrize("options", [{}, RING], ids=["plain", "ring"])


async def essentials(shop: Shop, other: Shop) -> None:
    """Commit, rollback, failures kept and not kept, duplicates, savepoints, many in one."""
    major = shop.major
    async with shop.transaction():
        await shop.inside("k")
        await other.begin()
        with pytest.raises(InFlight):
            await other.inside("k", NEVER)
        with pytest.raises(InFlight):
            await other.outside("k", NEVER)
        await other.rollback()
    assert (await other.outside("k", NEVER)).value == "done"

    await shop.begin()
    await shop.inside("rolled back")
    await shop.rollback()
    assert locks(major) == []

    async with shop.transaction():
        with pytest.raises(ValueError):
            await shop.inside("k2", Order(error=ValueError()))
        with pytest.raises(Terminal):
            await shop.inside("k3", Order(error=Terminal("for good")))
        assert (await shop.inside("k4", Order(undo=True))).value == "done"
        async with shop.savepoint():
            await shop.inside("k5")
            raise RolledBack
        assert not (await shop.inside("k5", Order((MILK,)))).replayed
        for number in range(10):
            await shop.inside(f"many{number}", Order(()))
    with pytest.raises(OperationFailed, match="for good"):
        await other.outside("k3", NEVER)
    states = [await shop.state(key) for key in ("k", "rolled back", "k2", "k3", "k4", "k5")]
    assert states == ["succeeded", None, None, "failed", "succeeded", "succeeded"]
    assert (rows(major), locks(major)) == (["milk", "tea"], [])


@plain_or_ring
def test_behind_pgbouncer(play_on_driver: Play, options: dict[str, Any]) -> None:
    play_on_driver(essentials, bouncer=True, **options)


@plain_or_ring
def test_on_postgresql_15(play_on_driver: Play, options: dict[str, Any]) -> None:
    play_on_driver(essentials, major=OLD, **options)


def test_i1_one_session_serves_many_callers_of_a_pooler(play_on_driver: Play) -> None:
    """What a transaction has set must not be met by the next one on the same session."""

    async def scene(shop: Shop, other: Shop) -> None:
        for number in range(6):
            first, second = (shop, other) if number % 2 else (other, shop)
            await first.begin()
            await first.inside(f"k{number}")
            await (first.commit() if number % 3 else first.rollback())
            async with second.transaction():
                again = await second.inside(f"k{number}", Order(()))
                assert again.replayed is (number % 3 > 0)
                asked = await done(second.once.in_transaction(second.subject).get("order", "-"))
                assert asked is None
        assert (rows(), locks()) == (["tea"] * 4, [])

    play_on_driver(scene, bouncer=True)
