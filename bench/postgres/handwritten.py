"""What a Python program reaches with pgbench's two statements: asyncpg, a connection per caller.

For context: the distance from here to pgbench is the interpreter and the driver, the distance from
here to oncekey is the batching, less what the attempt itself costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import asyncpg
from tests.support.servers.postgres import Postgres

from bench.postgres import load
from bench.postgres.pgbench import SQL

CALLERS = (1, 64)


def by_hand(server: Postgres) -> dict[str, Callable[[int], float]]:
    """Uses the table of the raw limit."""
    url = server.url("raw")

    def slice(callers: int) -> Callable[[int], float]:
        return lambda _: asyncio.run(_lifecycles(url, callers))

    return {
        f"asyncpg by hand, {callers} task{'s' if callers > 1 else ''}": slice(callers)
        for callers in CALLERS
    }


async def _lifecycles(url: str, callers: int) -> float:
    finish = SQL["finish"].replace(":id", "$1").replace(":owner", "$2").replace(":fence", "$3")
    free = [await asyncpg.connect(url) for _ in range(callers)]

    async def lifecycle(_: str) -> None:
        db = free.pop()  # there is one for each caller
        id, owner, fence = await db.fetchrow(SQL["claim"])
        done = await db.execute(finish, id, owner, fence)
        assert done == "UPDATE 1"
        free.append(db)

    try:
        return await load.tasks(callers, lifecycle)
    finally:
        for db in free:
            await db.close()
