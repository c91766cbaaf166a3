"""A Valkey Cluster of 1, 2 and 3 masters: how many lifecycles a second, and what bounds them.

The same number of client processes runs against each Cluster, so that only the servers differ. On a
machine whose cores the clients share, the rate says little about more masters: it is bounded by
the cores. So the processor time per lifecycle of both sides is measured too. If the server's stays
the same with more masters, the work divides, and a master on a core of its own gives one second
over it.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

from tests.support.servers.redis_cluster import RedisCluster
from tests.support.servers.redis_server import DURABLE

from bench.figures import MICROSECONDS, Ratio, Report, in_turns
from bench.postgres import load
from bench.postgres.oncekey_runs import POLICY, REQUEST, body
from bench.postgres.processes import CORES, ROOT
from bench.stores.processor_time import cpu_us
from oncekey import AsyncOnce

MASTERS = (1, 2, 3)
PROCESSES = 2
TASKS = 64
ROUNDS = 3
WARM_UP_SECONDS = 1.0
SECONDS = 3.0
REPLY_SECONDS = 60.0
TARGET_PER_SECOND = 1_000_000


class Slice(NamedTuple):
    """Lifecycles per second, microseconds of processor time per lifecycle, and the largest part of
    the lifecycles that one master had."""

    rate: float
    client: float
    server: float
    largest_part: float


def report() -> Report:
    slices: dict[int, list[Slice]] = {count: [] for count in MASTERS}
    clusters = {count: RedisCluster(count, settings=DURABLE) for count in MASTERS}
    try:
        for cluster in clusters.values():
            cluster.start()

        def measure(count: int) -> float:
            slices[count].append(_slice(clusters[count]))
            return 1_000_000 / slices[count][-1].rate

        timings = in_turns(
            {_name(count): lambda _, count=count: measure(count) for count in MASTERS},  # type: ignore[misc]
            ROUNDS,
            lines=True,
        )
    finally:
        for cluster in clusters.values():
            cluster.close()
    title = f"Valkey Cluster and {PROCESSES} processes of {TASKS} tasks, all on {CORES} cores"
    ratios = [ratio for count in MASTERS for ratio in _ratios(count, slices[count])]
    most = max(MASTERS)
    cost = statistics.median(one.server for one in slices[most])
    masters = TARGET_PER_SECOND * cost / 1_000_000
    client = statistics.median(one.client for one in slices[most])
    ratios += [
        Ratio(f"cores of masters for {TARGET_PER_SECOND:,} lifecycles/s", masters, unit=" cores"),
        Ratio(
            f"cores of clients for {TARGET_PER_SECOND:,} lifecycles/s",
            TARGET_PER_SECOND * client / 1_000_000,
            unit=" cores",
        ),
    ]
    return Report(title, list(timings.values()), ratios)


def _ratios(count: int, slices: list[Slice]) -> list[Ratio]:
    name = _name(count)
    found = [
        Ratio(
            f"{name}: processor time of the {side} per lifecycle",
            statistics.median(getattr(one, side) for one in slices),
            unit=MICROSECONDS,
        )
        for side in ("client", "server")
    ]
    part = statistics.median(one.largest_part for one in slices)
    found.append(Ratio(f"{name}: largest part of one master, even is {1 / count:.2f}", part))
    return found


def _name(count: int) -> str:
    return f"oncekey, {count} master{'s' if count > 1 else ''}"


def _slice(cluster: RedisCluster) -> Slice:
    command = [sys.executable, "-m", "bench.stores.cluster", cluster.url()]
    workers = [
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(PROCESSES)
    ]
    pids = {server.pid: server for server in cluster.servers()}
    try:
        for worker in workers:
            _read(worker)  # it is warm
        before = {pid: cpu_us([pid]) for pid in pids}
        sizes = {pid: int(server.execute("DBSIZE")) for pid, server in pids.items()}
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("begin\n")
            worker.stdin.flush()
        replies = [json.loads(_read(worker)) for worker in workers]
        server = sum(cpu_us([pid]) - before[pid] for pid in pids)
        grown = [int(one.execute("DBSIZE")) - sizes[pid] for pid, one in pids.items()]
    finally:
        for worker in workers:
            worker.communicate("end\n", timeout=REPLY_SECONDS)
    runs = sum(reply["runs"] for reply in replies)
    seconds = max(reply["seconds"] for reply in replies)
    client = sum(reply["cpu"] for reply in replies) / runs * 1_000_000
    return Slice(runs / seconds, client, server / runs, max(grown) / sum(grown))


def _read(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"a process has ended: {worker.wait(REPLY_SECONDS)}")
    return line


# --- one process --------------------------------------------------------------------------------


async def _work(url: str) -> None:
    """Warm up, wait for a line, run for a while, report, and stay until the next line."""
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
