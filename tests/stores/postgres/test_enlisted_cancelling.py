"""A task that is cancelled in its own transaction: rows and record stay together (I1, I14).

Whenever the cancellation comes, and although the caller goes on to commit.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.stores.postgres.conftest import Stage
from tests.support.caller_connections import Order, Shop, locks, rows

KINDS = [
    "psycopg-async",
    "asyncpg",
    "sqlalchemy-async-session",
    "sqlalchemy-async-connection-psycopg",
]
every_kind = pytest.mark.parametrize("kind", KINDS)
POINTS = 10


@every_kind
def test_i1_cancelled_in_the_body(stage: Stage, kind: str) -> None:
    async def scene(shop: Shop) -> None:
        written = asyncio.Event()

        async def body(attempt: Any) -> None:
            await shop.send("INSERT INTO orders VALUES ('undone')")
            written.set()
            await asyncio.Event().wait()

        async with shop.transaction():
            tx = shop.once.in_transaction(shop.subject)
            task = asyncio.ensure_future(tx.run("order", "k", body))
            await written.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not (await shop.run_in(tx, "k")).replayed  # free, in this very transaction
        assert (rows(), await shop.state("k"), locks()) == (["tea"], "succeeded", [])

    stage.play(kind, scene, {})


@every_kind
def test_i1_cancelled_at_any_turn_of_the_loop(stage: Stage, kind: str) -> None:
    async def after(shop: Shop, turns: int, key: str) -> int:
        """An order that is cancelled after some turns; how many turns it took."""
        order = Order((f"INSERT INTO orders VALUES ('{key}')",))  # noqa: S608
        await shop.begin()
        task = asyncio.ensure_future(shop.inside(key, order))
        taken = 0
        while taken < turns and not task.done():
            await asyncio.sleep(0)
            taken += 1
        task.cancel()
        await asyncio.wait([task])
        try:
            task.cancelled() or task.exception()
            await shop.commit()
        except Exception:  # the driver has given up the transaction, or the connection
            await shop.rollback()
        return taken

    async def scene(shop: Shop) -> None:
        whole = 0
        for key in ("cold", "warm"):
            whole = await after(shop, 1_000_000, key)
        keys = [f"k{point:02}" for point in range(POINTS)]
        for point, key in enumerate(keys):
            async with type(shop)() as mine:
                await after(mine, 1_000_000, f"warm {key}")
                await after(mine, whole * point // (POINTS - 3), key)
        finished = [key for key in keys if await shop.state(key) == "succeeded"]
        assert [row for row in rows() if row in keys] == finished
        assert keys[0] not in finished
        for key in keys:  # and nothing is left to be waited for
            async with shop.transaction():
                told = await shop.inside(key, Order(()))
                assert told.replayed is (key in finished)
        assert locks() == []

    stage.play(kind, scene, {})
