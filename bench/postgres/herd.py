"""A herd on one key, and what it costs everybody else. One server, one run, asyncio and threads.

bystander   p50 of first runs of other keys while 500 callers wait for one key
owner       5,000 callers wait for one key whose lease is short: all must get its answer
refused     2,000 duplicates that do not wait, beside 2,000 first runs of different keys
heavy       256 results of 1,000 KiB end together with 20 small ones: all must be stored
overload    20,000 keys are queued for longer than a lease: no body may begin too late
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.figures import Ratio, Report
from bench.postgres.server import started
from oncekey import AsyncOnce, InFlight, Once, Policy

WAITERS = 500
HERD = 5_000
HERD_LEASE = "2s"
HERD_RUNS_SECONDS = 5.0
REFUSED = 2_000
HEAVY, HEAVY_BYTES, LIGHT = 256, 1_000 * 1024, 20
OVERLOAD, OVERLOAD_LEASE = 20_000, "1s"
SAMPLES = 100

_numbers = itertools.count()


def fresh(name: str) -> str:
    return f"{name}-{time.time_ns()}-{next(_numbers)}"


async def quick(attempt: Any) -> str:
    return "done"


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    start = time.perf_counter()
    await work()
    return time.perf_counter() - start


async def kinds(work: Sequence[Awaitable[Any]]) -> Counter[str]:
    """How many ended how."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    return Counter(type(one).__name__ for one in outcomes)


class Held:
    """One key that is being run until `end`."""

    def __init__(self, once: AsyncOnce, **options: Any) -> None:
        self.key = fresh("held")
        self.once, self.options = once, options
        self._begun, self._end = asyncio.Event(), asyncio.Event()

    async def __aenter__(self) -> Held:
        async def body(attempt: Any) -> str:
            self._begun.set()
            await self._end.wait()
            return "answer"

        self.task = asyncio.ensure_future(self.once.run("held", self.key, body, **self.options))
        await self._begun.wait()
        return self

    def wait(self) -> Awaitable[Any]:
        return self.once.run("held", self.key, quick, wait="60s", **self.options)

    async def __aexit__(self, *_: object) -> None:
        self._end.set()
        await asyncio.wait([self.task])


async def bystander_p50(once: AsyncOnce) -> float:
    await once.run("bystander", fresh("b"), quick)
    return statistics.median(
        [await timed(lambda: once.run("bystander", fresh("b"), quick)) for _ in range(SAMPLES)]
    )


async def bystander(url: str) -> list[Ratio]:
    found = []
    async with AsyncOnce(url, cache=0) as once, AsyncOnce(url) as elsewhere:
        alone = await bystander_p50(once)
        for where, holder in (("in this process", once), ("in another", elsewhere)):
            async with Held(holder) as held:
                held.once = once
                waiting = [asyncio.ensure_future(held.wait()) for _ in range(WAITERS)]
                await asyncio.sleep(1.0)
                beside = await bystander_p50(once)
                held.once = holder
            told = await kinds(waiting)
            found.append(
                Ratio(f"p50 of a bystander beside {WAITERS} waiters, owner {where}: over quiet",
                      beside / alone, 3.0, at_most=True)
            )  # fmt: skip
            print(
                f"  bystander {alone * 1e3:.1f} -> {beside * 1e3:.1f} ms ({where}), {dict(told)}",
                flush=True,
            )
    return found


async def owner(url: str) -> list[Ratio]:
    async with AsyncOnce(url, policy=Policy(lease=HERD_LEASE)) as once:
        async with Held(once) as held:
            waiting = [asyncio.ensure_future(held.wait()) for _ in range(HERD)]
            await asyncio.sleep(HERD_RUNS_SECONDS)
            start = time.perf_counter()
        told = await kinds(waiting)
        print(f"  {dict(told)}, told within {time.perf_counter() - start:.2f} s", flush=True)
    return [Ratio(f"of {HERD} waiters, told the answer", told["Result"], HERD, unit="")]


async def refused(url: str) -> list[Ratio]:
    async with AsyncOnce(url) as once, AsyncOnce(url) as elsewhere:
        runs = [once.run("distinct", fresh("d"), quick) for _ in range(REFUSED)]
        distinct = await timed(lambda: kinds(runs))
        found = []
        for where, holder in (("in this process", once), ("in another", elsewhere)):
            async with Held(holder) as held:
                duplicates = [once.run("held", held.key, quick) for _ in range(REFUSED)]
                start = time.perf_counter()
                told = await kinds(duplicates)
                took = time.perf_counter() - start
            assert told == {InFlight.__name__: REFUSED}, told
            what = f"{REFUSED} duplicates, owner {where}: over {REFUSED} first runs"
            found.append(Ratio(what, took / distinct, 1.0, at_most=True))
            print(f"  {what}: {took:.2f} s over {distinct:.2f} s", flush=True)
    return found


async def heavy_async(url: str) -> int:
    async with AsyncOnce(url) as once:
        gate = asyncio.Event()
        sizes = [HEAVY_BYTES] * HEAVY + [10] * LIGHT

        async def one(size: int) -> Any:
            async def body(attempt: Any) -> str:
                await gate.wait()
                return "x" * size

            return await once.run("heavy", fresh("h"), body, max_bytes=2 * HEAVY_BYTES)

        work = [asyncio.ensure_future(one(size)) for size in sizes]
        await asyncio.sleep(2.0)
        gate.set()
        return (await kinds(work))["Result"]


def heavy_threads(url: str) -> int:
    import threading

    sizes = [HEAVY_BYTES] * HEAVY + [10] * LIGHT
    gate = threading.Barrier(len(sizes))
    told: Counter[str] = Counter()
    with Once(url) as once, ThreadPoolExecutor(len(sizes)) as pool:

        def one(size: int) -> None:
            def body(attempt: Any) -> str:
                gate.wait(60)
                return "x" * size

            try:
                once.run("heavy", fresh("h"), body, max_bytes=2 * HEAVY_BYTES)
                told["Result"] += 1
            except Exception as error:
                told[type(error).__name__] += 1

        list(pool.map(one, sizes))
    print(f"  threads: {dict(told)}", flush=True)
    return told["Result"]


def heavy(url: str) -> list[Ratio]:
    count = HEAVY + LIGHT
    return [
        Ratio(f"of {count} results that end together, stored: tasks",
              asyncio.run(heavy_async(url)), count, unit=""),
        Ratio(f"of {count} results that end together, stored: threads",
              heavy_threads(url), count, unit=""),
    ]  # fmt: skip


async def overload(url: str) -> list[Ratio]:
    late = 0

    async def body(attempt: Any) -> str:
        nonlocal late
        late += attempt.lost
        return "done"

    async with AsyncOnce(url, policy=Policy(lease=OVERLOAD_LEASE)) as once:
        keys = [once.run("overload", fresh("o"), body) for _ in range(OVERLOAD)]
        start = time.perf_counter()
        told = await kinds(keys)
        took = time.perf_counter() - start
    print(f"  {dict(told)} in {took:.1f} s, {late} began too late", flush=True)
    return [
        Ratio(f"of {OVERLOAD} keys queued longer than a lease, answered", told["Result"], OVERLOAD,
              unit=""),
        Ratio("bodies among them that began too late", late, 0, at_most=True, unit=""),
    ]  # fmt: skip


PARTS: dict[str, Callable[[str], Any]] = {
    "bystander": bystander,
    "owner": owner,
    "refused": refused,
    "heavy": heavy,
    "overload": overload,
}


def run(chosen: list[str] | None = None) -> list[Report]:
    ratios: list[Ratio] = []
    with started() as server:
        for name in chosen or list(PARTS):
            print(name, file=sys.stderr, flush=True)
            made = PARTS[name](server.url())
            ratios += asyncio.run(made) if asyncio.iscoroutine(made) else made
    return [Report("A herd on one key, heavy results, and overload", [], ratios)]


if __name__ == "__main__":
    from bench.figures import show

    show(run(sys.argv[1:]))
