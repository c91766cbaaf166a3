"""What replays and rejections leave behind in the write-ahead log: nothing, it should be.

Autovacuum is off, and everything was vacuumed and checkpointed before. (A row that was never
vacuumed may have its hint bits set by its first reader; with checksums PostgreSQL logs that page
once, whoever reads.) The background writer may put a record of its own in between, so each count is
taken a few times and the least one stands: what the calls write, they write every time. First runs
are counted the same way, to show that what is written is seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.servers.postgres import Postgres

from bench.figures import Ratio, Report, progress
from bench.postgres import load
from bench.postgres.oncekey_runs import POLICY, REQUEST, body, never
from bench.postgres.server import wal_position
from oncekey import AsyncOnce, InFlight, Mismatch

CALLS = 2_000
TASKS = 64
TIMES = 3
HOT_WANTED = 98.0
OTHER_REQUEST = {"cents": 999}
FIRST_RUNS = "first runs"

Call = Callable[[], Awaitable[None]]


def report(server: Postgres, database: str) -> Report:
    """`database` is one that the first runs were measured in."""
    server.configure({"autovacuum": False})
    hot = _hot_updates(server, database)
    written = asyncio.run(_all(server, database))
    server.configure({"autovacuum": True})
    seen = written.pop(FIRST_RUNS)
    if not seen:
        raise RuntimeError("first runs must write WAL; the counting is wrong")
    control = Ratio(f"WAL of {CALLS:,} {FIRST_RUNS}", seen, unit=" bytes")
    ratios = [
        Ratio(f"WAL of {CALLS:,} {name}", bytes_, 0, at_most=True, unit=" bytes")
        for name, bytes_ in written.items()
    ]
    heap_only = Ratio("finishes that touched no index", hot, HOT_WANTED, unit=" %")
    return Report("PostgreSQL, what is written", [], [control, *ratios, heap_only])


async def _all(server: Postgres, database: str) -> dict[str, int]:
    url = server.url(database)
    key, held = load.fresh_key(), load.fresh_key()
    begun, going_on = asyncio.Event(), asyncio.Event()

    async def hold(attempt: Any) -> None:
        begun.set()
        await going_on.wait()

    async with AsyncOnce(url, policy=POLICY, cache=0) as once, AsyncOnce(url) as other:
        first = await once.run("charge", key, body, request=REQUEST)
        assert not first.replayed
        # A lease so long that no heartbeat falls into the measuring.
        holder = asyncio.create_task(other.run("charge", held, hold, lease="1h"))
        await begun.wait()

        async def first_run() -> None:
            await once.run("charge", load.fresh_key(), body, request=REQUEST)

        async def replay() -> None:
            assert (await once.run("charge", key, never, request=REQUEST)).replayed

        async def mismatch() -> None:
            await _refused(Mismatch, once.run("charge", key, never, request=OTHER_REQUEST))

        async def in_flight() -> None:
            await _refused(InFlight, once.run("charge", held, never))

        calls = {
            FIRST_RUNS: first_run,
            "replays": replay,
            "mismatches": mismatch,
            "calls of a key in flight": in_flight,
        }
        written = {name: await _written(server, database, call) for name, call in calls.items()}
        going_on.set()
        await holder
    for name, bytes_ in written.items():
        progress(f"{CALLS:,} {name}: {bytes_} bytes of WAL")
    return written


async def _written(server: Postgres, database: str, call: Call) -> int:
    await _many(call)
    server.execute("VACUUM", database=database)
    server.execute("CHECKPOINT")
    counts = []
    for _ in range(TIMES):
        before = wal_position(server)
        await _many(call)
        counts.append(wal_position(server) - before)
    return min(counts)


async def _many(call: Call) -> None:
    left = iter(range(CALLS))

    async def work() -> None:
        for _ in left:
            await call()

    await asyncio.gather(*(work() for _ in range(TASKS)))


async def _refused(error: type[Exception], running: Awaitable[object]) -> None:
    try:
        await running
    except error:
        return
    raise AssertionError(f"{error.__name__} was to be raised")


def _hot_updates(server: Postgres, database: str) -> float:
    """Per cent of all updates of the records that were heap-only."""
    ((hot, all_),) = server.execute(
        "SELECT sum(n_tup_hot_upd), sum(n_tup_upd) FROM pg_stat_user_tables "
        "WHERE relname LIKE 'records%'",
        database=database,
    )
    return float(100 * hot / all_) if all_ else 0.0
