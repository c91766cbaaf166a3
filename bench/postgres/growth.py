"""`python -m bench postgres-growth`: what a full table costs, and the sweeping of it.

Ten million rows take minutes to load. First runs are then measured beside those of a store with
ten thousand; then two of the millions, which have expired, are swept by another process: one
million beside a steady trickle of claims, whose waits are looked at, and one beside callers that
insert as fast as they can. At last a ring is rotated under the same trickle.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

from tests.support.servers.postgres import Postgres

from bench.figures import Ratio, Report, in_turns, progress
from bench.postgres import large_table, load, oncekey_runs
from bench.postgres import server as servers
from oncekey import AsyncOnce, Policy

ROUNDS = 5
SMALL = 10_000
LARGE = 10_000_000
EXPIRED = 1_000_000  # swept twice
CALLERS = 64
LARGE_WANTED = 1.3
SWEEP_WANTED = 2.0
P99_WANTED = 2.0

TRICKLE_CALLERS = 8
TRICKLE_PAUSE = 0.02
TRICKLE_SECONDS = 15.0
ROTATION_WANTED_MS = 100.0
RING = "retention=ring&ring_slots=8&ring_period=500ms"
RING_POLICY = Policy(lease="1s", keep="1s", audit="0s")
RING_SWEEP_PAUSE = 0.05
ROTATION_SECONDS = 40.0


def run() -> list[Report]:
    with servers.started() as server:
        small = large_table.make(server, "small", live=SMALL)
        large = large_table.make(server, "large", live=LARGE - 2 * EXPIRED, expired=2 * EXPIRED)
        return [
            _cost(small, large),
            asyncio.run(_waits(large)),
            asyncio.run(_rates(large)),
            asyncio.run(_ring(server)),
        ]


def _cost(small: str, large: str) -> Report:
    names = (f"oncekey with {SMALL:,} rows", f"oncekey with {LARGE:,} rows")
    timings = in_turns(
        {
            names[0]: lambda _: oncekey_runs.in_tasks(small, CALLERS),
            names[1]: lambda _: oncekey_runs.in_tasks(large, CALLERS),
        },
        ROUNDS,
        lines=True,
    )
    ratio = timings[names[1]].us / timings[names[0]].us
    return Report(
        f"PostgreSQL, a claim and a finish with {CALLERS} callers",
        list(timings.values()),
        [Ratio("cost with many rows over few", ratio, LARGE_WANTED, at_most=True)],
    )


# --- claims beside a sweep ------------------------------------------------------------------------


async def _trickle(
    once: AsyncOnce, going_on: Callable[[], bool], begins: list[float] | None = None
) -> list[float]:
    """How long claims took, in milliseconds: from the call to the begin of the body. Their begins
    are appended to `begins`."""
    waits: list[float] = []

    async def caller() -> None:
        while going_on():
            await asyncio.sleep(TRICKLE_PAUSE)
            start = time.perf_counter()

            async def begun(attempt: Any, start: float = start) -> None:
                waits.append((time.perf_counter() - start) * 1_000)
                if begins is not None:
                    begins.append(start)

            await once.run("charge", load.fresh_key(), begun)

    await asyncio.gather(*(caller() for _ in range(TRICKLE_CALLERS)))
    return waits


def _during(seconds: float) -> Callable[[], bool]:
    ends = time.perf_counter() + seconds
    return lambda: time.perf_counter() < ends


def _p(waits: list[float], percent: int) -> float:
    return statistics.quantiles(waits, n=100, method="inclusive")[percent - 1]


def _told(what: str, waits: list[float]) -> list[Ratio]:
    progress(f"{what}: {len(waits):,} claims, p99 {_p(waits, 99):.2f} ms")
    return [
        Ratio(f"claim p50, {what}", _p(waits, 50), unit=" ms"),
        Ratio(f"claim p99, {what}", _p(waits, 99), unit=" ms"),
        Ratio(f"claim longest, {what}", max(waits), unit=" ms"),
    ]


async def _waits(url: str) -> Report:
    async with AsyncOnce(url, policy=oncekey_runs.POLICY) as once:
        await _trickle(once, _during(1))
        quiet = await _trickle(once, _during(TRICKLE_SECONDS))
        with large_table.sweeping(url, most=EXPIRED) as sweeper:
            swept_beside = await _trickle(once, lambda: sweeper.is_running)
            swept = sweeper.result()
    _all_swept(swept)
    return Report(
        f"PostgreSQL, claims beside a sweep of {swept.removed:,} rows ({swept.seconds:.0f} s)",
        [],
        [
            *_told("quiet", quiet),
            *_told("during the sweep", swept_beside),
            Ratio(
                "p99 during the sweep over quiet",
                _p(swept_beside, 99) / _p(quiet, 99),
                P99_WANTED,
                at_most=True,
            ),
        ],
    )


async def _rates(url: str) -> Report:
    """Both as fast as they can, at the same time, on the same cores."""
    done = 0

    async def body(attempt: Any) -> dict[str, str]:
        nonlocal done
        done += 1
        return oncekey_runs.OUTCOME

    async with AsyncOnce(url, policy=oncekey_runs.POLICY) as once:
        with large_table.sweeping(url, most=EXPIRED) as sweeper:

            async def caller() -> None:
                while sweeper.is_running:
                    await once.run("charge", load.fresh_key(), body)

            start = time.perf_counter()
            await asyncio.gather(*(caller() for _ in range(CALLERS)))
            inserted = done / (time.perf_counter() - start)
            swept = sweeper.result()
    _all_swept(swept)
    progress(f"{inserted:,.0f} lifecycles and {swept.per_second:,.0f} rows swept per second")
    return Report(
        "PostgreSQL, sweeping against inserting, both at full speed at once",
        [],
        [
            Ratio("lifecycles", inserted, unit=" per second"),
            Ratio("rows swept", swept.per_second, unit=" per second"),
            Ratio("rows swept over rows inserted", swept.per_second / inserted, SWEEP_WANTED),
        ],
    )


def _all_swept(swept: large_table.Swept) -> None:
    if swept.removed < EXPIRED:
        raise RuntimeError(f"only {swept.removed:,} rows were swept")


# --- the ring -------------------------------------------------------------------------------------


async def _ring(server: Postgres) -> Report:
    url = f"{server.create_database('ring')}?{RING}"
    begins: list[float] = []
    async with AsyncOnce(url, policy=RING_POLICY) as once:
        await _trickle(once, _during(1))
        quiet = await _trickle(once, _during(TRICKLE_SECONDS))
        with large_table.sweeping(
            url, most=10 * LARGE, pause=RING_SWEEP_PAUSE, seconds=ROTATION_SECONDS
        ) as sweeper:
            rotated = await _trickle(once, lambda: sweeper.is_running, begins)
            swept = sweeper.result()
    # A slow disk makes slow claims with or without us: of interest are those a rotation met.
    met = [
        wait
        for begin, wait in zip(begins, rotated, strict=True)
        if any(begin < end and start < begin + wait / 1_000 for start, end in swept.bites)
    ]
    if not met:
        raise RuntimeError("no claim met a rotation")
    longest = Ratio(
        f"the longest of {len(met)} claims that met one of {len(swept.bites)} rotations",
        max(met),
        ROTATION_WANTED_MS,
        at_most=True,
        unit=" ms",
    )
    return Report(
        f"PostgreSQL, a ring with {swept.removed:,} rows rotated out",
        [],
        [*_told("ring, quiet", quiet), *_told("ring, rotating", rotated), longest],
    )
