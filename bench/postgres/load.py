"""Load for one slice of time: a bounded number of threads or tasks that use fresh keys."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

WARM_UP_SECONDS = 0.4
SECONDS = 2.0

_numbers = itertools.count()
_run = os.urandom(4).hex()


class Calls:
    """How many calls were made so far, warm-ups included, for who divides something else by it."""

    made = 0


def fresh_key() -> str:
    """A key nobody had before, in this run or in an earlier one."""
    return f"order-{_run}-{next(_numbers)}"


def threads(
    callers: int, call: Callable[[str], object], key: Callable[[], str] = fresh_key
) -> float:
    """Microseconds per call over all threads, after a warm-up."""
    with ThreadPoolExecutor(callers) as pool:

        def during(seconds: float) -> float:
            gate = threading.Barrier(callers + 1)

            def work(_: int) -> int:
                gate.wait()
                done = 0
                while time.perf_counter() < ends:
                    call(key())
                    done += 1
                return done

            counts = pool.map(work, range(callers))
            start = time.perf_counter()
            ends = start + seconds
            gate.wait()
            done = sum(counts)
            Calls.made += done
            return (time.perf_counter() - start) / done * 1_000_000

        during(WARM_UP_SECONDS)
        return during(SECONDS)


async def tasks(
    callers: int, call: Callable[[str], Awaitable[object]], key: Callable[[], str] = fresh_key
) -> float:
    """Microseconds per call over all tasks of one event loop, after a warm-up."""

    async def during(seconds: float) -> float:
        start = time.perf_counter()
        ends = start + seconds

        async def work() -> int:
            done = 0
            while time.perf_counter() < ends:
                await call(key())
                done += 1
            return done

        done = sum(await asyncio.gather(*(work() for _ in range(callers))))
        Calls.made += done
        return (time.perf_counter() - start) / done * 1_000_000

    await during(WARM_UP_SECONDS)
    return await during(SECONDS)
