"""`python -m bench postgres-processes`: 1, 2 and 4 application processes on one PostgreSQL.

Each process has an engine of its own and the same number of tasks, whatever the number of
processes. All of them begin together, and a slice lasts a fixed time. Besides the rate, the
processor time per lifecycle is measured: if that stays the same, processes do not get into each
other's way, and what limits the rate is the number of cores.

What one process takes of the machine, its server's share included, is known from its own slices. So
`given` is how many times that the machine has for more processes, and a rate is compared with that
many times the rate of one.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from bench.figures import MICROSECONDS, Ratio, Report, in_turns
from bench.postgres import load
from bench.postgres import server as servers
from bench.postgres.cpu_per_lifecycle import Meter
from bench.postgres.oncekey_runs import POLICY, REQUEST, body
from oncekey import AsyncOnce

PROCESSES = (1, 2, 4)
TASKS = 64
ROUNDS = 5
WARM_UP_SECONDS = 1.0
SECONDS = 4.0
REPLY_SECONDS = 60.0
WANTED = 0.9
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
ROOT = Path(__file__).parents[2]


class Slice(NamedTuple):
    """One slice: lifecycles per second, and microseconds of processor time per lifecycle."""

    rate: float
    client: float
    server: float

    @property
    def cores(self) -> float:
        """How many cores both sides together have kept busy."""
        return self.rate * (self.client + self.server) / 1_000_000


def run() -> list[Report]:
    slices: dict[int, list[Slice]] = {count: [] for count in PROCESSES}
    with servers.started() as server:
        url = server.create_database("oncekey")
        meter = Meter(server)

        def measure(count: int) -> float:
            slices[count].append(_slice(url, count, meter))
            return 1_000_000 / slices[count][-1].rate

        timings = in_turns(
            {_name(count): lambda _, count=count: measure(count) for count in PROCESSES},  # type: ignore[misc]
            ROUNDS,
            lines=True,
        )
        title = f"PostgreSQL {servers.version(server)}, {CORES} cores: processes of {TASKS} tasks"
    ratios = []
    rates = {count: timings[_name(count)].per_second for count in PROCESSES}
    for count in PROCESSES:
        if count > 1:
            given = _given(count, slices[1])
            ratios.append(
                Ratio(
                    f"{count} processes: of {given:.2f} times one",
                    rates[count] / (rates[1] * given),
                    WANTED,
                )
            )
        for side in ("client", "server"):
            spent = statistics.median(getattr(one, side) for one in slices[count])
            what = f"{_name(count)}: processor time of the {side} per lifecycle"
            ratios.append(Ratio(what, spent, unit=MICROSECONDS))
    return [Report(title, list(timings.values()), ratios)]


def _given(count: int, alone: list[Slice]) -> float:
    """How many times the cores that one process and its server use there are for `count`."""
    used = statistics.median(one.cores for one in alone)
    return min(float(count), max(1.0, CORES / used))


def _name(count: int) -> str:
    return f"oncekey, {count} process{'es' if count > 1 else ''}"


def _slice(url: str, count: int, meter: Meter) -> Slice:
    """Let this many processes run for one slice."""
    command = [sys.executable, "-m", "bench.postgres.processes", url]
    workers = [
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(count)
    ]
    try:
        for worker in workers:
            _read(worker)  # it is warm
        meter.start()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("begin\n")
            worker.stdin.flush()
        replies = [json.loads(_read(worker)) for worker in workers]
        runs = sum(reply["runs"] for reply in replies)
        server = meter.stop(runs)
        seconds = max(reply["seconds"] for reply in replies)
        client = sum(reply["cpu"] for reply in replies) / runs * 1_000_000
        return Slice(runs / seconds, client, server.server + server.shared)
    finally:
        for worker in workers:
            worker.communicate("end\n", timeout=REPLY_SECONDS)


def _read(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"a process has ended: {worker.wait(REPLY_SECONDS)}")
    return line


# --- one process --------------------------------------------------------------------------------


async def _work(url: str) -> None:
    """Warm up, wait for a line, run for a while and report; the engine stays open until the next
    line, so that its sessions can be read."""
    async with AsyncOnce(url, policy=POLICY) as once:

        async def during(seconds: float) -> int:
            ends = time.perf_counter() + seconds

            async def task() -> int:
                done = 0
                while time.perf_counter() < ends:
                    await once.run("charge", load.fresh_key(), body, request=REQUEST)
                    done += 1
                return done

            return sum(await asyncio.gather(*(task() for _ in range(TASKS))))

        await during(WARM_UP_SECONDS)
        print("warm", flush=True)
        sys.stdin.readline()
        cpu, start = time.process_time(), time.perf_counter()
        runs = await during(SECONDS)
        seconds = time.perf_counter() - start
        spent = time.process_time() - cpu
        print(json.dumps({"runs": runs, "seconds": seconds, "cpu": spent}), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1]))
