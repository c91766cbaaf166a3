"""`python -m bench.postgres.cpu_per_lifecycle`: processor time per first run, of both sides.

On a machine that others use too, rates say little. The time that a process was on a processor says
more: it counts the work, not the waiting. `client` is this process, `server` are the sessions of
its connections, `shared` are the server's processes that work for all sessions (the WAL writer, the
checkpointer and so on). Each figure is the median of several slices.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.servers.postgres import Postgres

from bench.postgres import load
from bench.postgres import server as servers
from bench.postgres.oncekey_runs import OUTCOME, POLICY, REQUEST, body
from oncekey import AsyncOnce, Once

TASKS = (1, 64, 256)
THREADS = 64
SLICES = 7
RUNS = {1: 1_000, 64: 6_000, 256: 6_000}
_TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")
_SESSION = "client backend"
_PROCESSES = "SELECT pid, backend_type FROM pg_stat_activity WHERE pid <> pg_backend_pid()"


class Cpu(NamedTuple):
    """Microseconds of processor time per lifecycle, and how many lifecycles there were a second."""

    client: float
    server: float
    shared: float
    per_second: float


class Meter:
    """Reads how long the processes of one server were on a processor."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._start: dict[int, float] = {}
        self._client = self._clock = 0.0

    def start(self) -> None:
        self._start = {pid: _cpu_us(pid) for pid, _ in self._processes()}
        self._clock = time.perf_counter()
        self._client = time.process_time()

    def stop(self, lifecycles: int) -> Cpu:
        client = (time.process_time() - self._client) * 1_000_000
        seconds = time.perf_counter() - self._clock
        used = {"server": 0.0, "shared": 0.0}
        for pid, kind in self._processes():
            spent = _cpu_us(pid) - self._start.get(pid, 0.0)
            used["server" if kind == _SESSION else "shared"] += spent
        server, shared = used["server"] / lifecycles, used["shared"] / lifecycles
        return Cpu(client / lifecycles, server, shared, lifecycles / seconds)

    def _processes(self) -> list[tuple[Any, ...]]:
        return self._server.execute(_PROCESSES)


def _cpu_us(pid: int) -> float:
    """How long a process was on a processor, in microseconds: exactly if the kernel says so, or
    else by its ticks."""
    folder = Path(f"/proc/{pid}")
    try:
        return int((folder / "schedstat").read_text().split()[0]) / 1_000
    except FileNotFoundError:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        return float((int(fields[11]) + int(fields[12])) * _TICK_US)


def in_tasks(url: str, callers: int, meter: Meter) -> list[Cpu]:
    async def measure() -> list[Cpu]:
        async with AsyncOnce(url, policy=POLICY) as once:

            async def work(runs: int) -> None:
                for _ in range(runs):
                    await once.run("charge", load.fresh_key(), body, request=REQUEST)

            async def all_tasks(runs: int) -> None:
                await asyncio.gather(*(work(runs // callers) for _ in range(callers)))

            found = []
            for number in range(SLICES + 1):
                meter.start()
                await all_tasks(RUNS[callers])
                cpu = meter.stop(RUNS[callers] // callers * callers)
                if number:  # the first one warms up
                    found.append(cpu)
            return found

    return asyncio.run(measure())


def in_threads(url: str, callers: int, meter: Meter) -> list[Cpu]:
    runs = RUNS[callers] // callers
    with Once(url, policy=POLICY) as once, ThreadPoolExecutor(callers) as pool:

        def work(gate: threading.Barrier) -> None:
            gate.wait()
            for _ in range(runs):
                once.run("charge", load.fresh_key(), lambda attempt: OUTCOME, request=REQUEST)

        found = []
        for number in range(SLICES + 1):
            gate = threading.Barrier(callers)
            meter.start()
            list(pool.map(work, [gate] * callers))
            cpu = meter.stop(runs * callers)
            if number:
                found.append(cpu)
        return found


def main() -> int:
    with servers.started() as server:
        url = server.create_database("oncekey")
        meter = Meter(server)
        contests: dict[str, Callable[[], list[Cpu]]] = {
            f"{callers} task{'s' if callers > 1 else ''}": lambda callers=callers: in_tasks(  # type: ignore[misc]
                url, callers, meter
            )
            for callers in TASKS
        }
        contests[f"{THREADS} threads"] = lambda: in_threads(url, THREADS, meter)
        chosen = sys.argv[1:]
        print("µs of processor time per lifecycle, median (lowest)")
        for name, measure in contests.items():
            if chosen and name not in chosen:
                continue
            found = measure()
            columns = [
                f"{field} {statistics.median(values):6.1f} ({min(values):.1f})"
                for field, values in zip(
                    Cpu._fields[:3], list(zip(*found, strict=True)), strict=False
                )
            ]
            rate = statistics.median(cpu.per_second for cpu in found)
            print(f"{name:>11}  {'  '.join(columns)}  {rate:,.0f} per second", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
