"""Processor time per lifecycle of both sides: this process, and a server's processes.

It counts the work and not the waiting, so that it says more than a rate on a machine that others
use too, and it can be added up toward a machine with more cores.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.figures import MICROSECONDS, Ratio
from bench.postgres import load
from bench.postgres.oncekey_runs import POLICY, REQUEST, body
from oncekey import AsyncOnce

CALLERS = 64
SLICES = 5
RUNS = 6_400
_TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")


Slice = Callable[[int], float]


class Spent(NamedTuple):
    """Microseconds of processor time per lifecycle, and how many lifecycles there were a second."""

    client: float
    server: float
    per_second: float


def cpu_us(pids: Sequence[int]) -> float:
    """How long all threads of these processes were on a processor, in microseconds."""
    tasks = [task for pid in pids for task in Path("/proc").glob(f"{pid}/task/*")]
    return sum(map(_thread_us, tasks))


def _thread_us(task: Path) -> float:
    """Exactly if the kernel says so, or else by its ticks; 0 for a thread that has just ended."""
    try:
        return int((task / "schedstat").read_text().split()[0]) / 1_000
    except (FileNotFoundError, ProcessLookupError):
        pass
    try:
        fields = (task / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return float((int(fields[11]) + int(fields[12])) * _TICK_US)


class Meter:
    """Measures the processor time of slices: of this process, and of a server's."""

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self._pids = pids
        self._spent: dict[str, list[Spent]] = {}

    def watched(self, contestants: dict[str, Slice]) -> dict[str, Slice]:
        """The same contestants, whose slices are measured."""
        return {name: self._watched(name, run) for name, run in contestants.items()}

    def _watched(self, name: str, run: Slice) -> Slice:
        def slice(turn: int) -> float:
            calls, client, server = load.Calls.made, time.process_time(), cpu_us(self._pids())
            us = run(turn)
            made = load.Calls.made - calls
            mine = (time.process_time() - client) * 1_000_000 / made
            theirs = (cpu_us(self._pids()) - server) / made
            self._spent.setdefault(name, []).append(Spent(mine, theirs, 1_000_000 / us))
            return us

        return slice

    def spent(self, name: str) -> Spent:
        """The medians of a contestant's slices."""
        return Spent(*(statistics.median(each) for each in zip(*self._spent[name], strict=True)))

    def ratios(self) -> list[Ratio]:
        """Both sides of every contestant, as figures of a report."""
        return [
            Ratio(
                f"{name}: processor time of the {side}",
                getattr(self.spent(name), side),
                unit=MICROSECONDS,
            )
            for name in self._spent
            for side in ("client", "server")
        ]

    def against(self, mine: str, theirs: str) -> Ratio:
        """How many times the processor time of one contestant another one takes, both sides
        together: it stays the same where others use the machine too."""
        ours, other = self.spent(mine), self.spent(theirs)
        times = (other.client + other.server) / (ours.client + ours.server)
        return Ratio(f"{mine} against {theirs}, in processor time", times)


def of_first_runs(url: str, pids: Callable[[], Sequence[int]], runs: int = RUNS) -> Spent:
    """First runs by 64 tasks. `pids`: the server's processes as they are now; none if the store is
    embedded."""

    async def measure() -> list[Spent]:
        async with AsyncOnce(url, policy=POLICY) as once:

            async def work() -> None:
                for _ in range(runs // CALLERS):
                    await once.run("charge", load.fresh_key(), body, request=REQUEST)

            found = []
            for _ in range(SLICES + 1):
                server, client = cpu_us(pids()), time.process_time()
                start = time.perf_counter()
                await asyncio.gather(*(work() for _ in range(CALLERS)))
                seconds = time.perf_counter() - start
                mine = (time.process_time() - client) * 1_000_000
                theirs = cpu_us(pids()) - server
                found.append(Spent(mine / runs, theirs / runs, runs / seconds))
            return found[1:]  # the first one warms up

    slices = asyncio.run(measure())
    return Spent(*(statistics.median(values) for values in zip(*slices, strict=True)))
