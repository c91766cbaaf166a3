"""A task cancelled in the caller's own transaction keeps rows and record together (I1, I14).

This holds whenever the cancellation comes, even if the caller then commits.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.stores.postgres.conftest import OpenCallers
from tests.support.caller_connections import Body, Caller, advisory_locks, orders

KINDS = [
    "psycopg-async",
    "asyncpg",
    "sqlalchemy-async-session",
    "sqlalchemy-async-connection-psycopg",
]
every_kind = pytest.mark.parametrize("kind", KINDS)
POINTS = 10


@every_kind
def test_i1_a_task_cancelled_in_its_body_leaves_no_rows(
    open_callers: OpenCallers, kind: str
) -> None:
    async def scenario(caller: Caller) -> None:
        written = asyncio.Event()

        async def body(attempt: Any) -> None:
            await caller.send("INSERT INTO orders VALUES ('undone')")
            written.set()
            await asyncio.Event().wait()

        async with caller.transaction():
            tx = caller.once.in_transaction(caller.subject)
            task = asyncio.ensure_future(tx.run("order", "k", body))
            await written.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not (await caller.run_on(tx, "k")).replayed  # free, in this very transaction
        assert (orders(), await caller.state("k"), advisory_locks()) == (["tea"], "succeeded", [])

    open_callers.run_scenario(kind, scenario, {})


@every_kind
def test_i1_a_task_cancelled_at_any_loop_iteration_keeps_rows_and_record_together(
    open_callers: OpenCallers, kind: str
) -> None:
    async def after(caller: Caller, turns: int, key: str) -> int:
        """Cancel a run after some loop iterations; returns how many it took."""
        order = Body((f"INSERT INTO orders VALUES ('{key}')",))  # noqa: S608
        await caller.begin()
        task = asyncio.ensure_future(caller.run_inside(key, order))
        taken = 0
        while taken < turns and not task.done():
            await asyncio.sleep(0)
            taken += 1
        task.cancel()
        await asyncio.wait([task])
        try:
            task.cancelled() or task.exception()
            await caller.commit()
        except Exception:  # the driver has given up the transaction, or the connection
            await caller.rollback()
        return taken

    async def scenario(caller: Caller) -> None:
        whole = 0
        for key in ("cold", "warm"):
            whole = await after(caller, 1_000_000, key)
        keys = [f"k{point:02}" for point in range(POINTS)]
        for point, key in enumerate(keys):
            async with type(caller)() as mine:
                await after(mine, 1_000_000, f"warm {key}")
                await after(mine, whole * point // (POINTS - 3), key)
        finished = [key for key in keys if await caller.state(key) == "succeeded"]
        assert [row for row in orders() if row in keys] == finished
        assert keys[0] not in finished
        for key in keys:  # and nothing is left that would make it wait
            async with caller.transaction():
                result = await caller.run_inside(key, Body(()))
                assert result.replayed is (key in finished)
        assert advisory_locks() == []

    open_callers.run_scenario(kind, scenario, {})
