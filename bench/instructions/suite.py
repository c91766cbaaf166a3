"""`python -m bench instructions`, or `instructions=WORD` for some of it: counted by callgrind.

Each workload runs twice, with few and with many operations; the difference, divided by the number
of operations between them, is what one operation takes, without Python's start and the imports. The
counts of two runs differ by less than one percent whatever else the machine does, so a change of
the code can be seen that no clock would show.

The table is written to bench/results/instructions.json and .md, which are committed: `git diff`
shows what a change has cost or saved.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.servers.debian_packages import fetch

from bench.figures import progress

FEW, MANY = 100, 600
WORKERS: Final = 2
SECONDS: Final = 900
ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "bench" / "results"


class Row(NamedTuple):
    """One line of the table: a workload, less another one, and the figure to reach."""

    title: str
    workload: str
    less: str = ""
    wanted: int | None = None
    stretch: int | None = None


ROWS: Final = (
    Row("straight-line Python, first run", "straight_line"),
    Row("`Once.run`, first run", "once_first", wanted=130_000, stretch=100_000),
    Row("`Once.run`, first run, added by Prometheus", "once_first_prometheus", "once_first"),
    Row("`Once.run`, replay", "once_replay"),
    Row("`AsyncOnce.run`, 16 tasks, first run", "async_once_first", "", 160_000, 120_000),
    Row("`AsyncOnce.run`, 16 tasks, replay", "async_once_replay"),
    Row("idemkit sync, first run", "idemkit_sync_first"),
    Row("idemkit sync, replay", "idemkit_sync_replay"),
    Row("idemkit async, 16 tasks, first run", "idemkit_async_first"),
    Row("idemkit async, 16 tasks, replay", "idemkit_async_replay"),
    Row("FastAPI POST, bare", "asgi_bare"),
    Row("ASGI middleware, first run, added to bare", "asgi_first", "asgi_bare", 340_000, 250_000),
    Row("ASGI middleware, replay, whole request", "asgi_replay", "", 200_000, 150_000),
    Row("FastAPI guard, first run, added to bare", "fastapi_guard_first", "asgi_bare"),
    Row("idemkit ASGI, first run, added to bare", "asgi_idemkit_first", "asgi_bare"),
    Row("idemkit ASGI, replay, whole request", "asgi_idemkit_replay"),
)


def show(words: Sequence[str] = ()) -> None:
    """Count, print the table, and write it if every row was counted."""
    rows = [row for row in ROWS if not words or any(word in row.workload for word in words)]
    workloads = dict.fromkeys(name for row in rows for name in (row.workload, row.less) if name)
    counts = count_all(list(workloads))
    table = markdown(rows, counts)
    print(table)
    if rows == list(ROWS):
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "instructions.json").write_text(json.dumps(counts, indent=2) + "\n")
        (RESULTS / "instructions.md").write_text(table)


def count_all(workloads: Sequence[str]) -> dict[str, int]:
    """Instructions per operation of each workload. Two processes at a time: counts do not mind."""
    with ThreadPoolExecutor(WORKERS) as pool:
        return dict(zip(workloads, pool.map(per_operation, workloads), strict=True))


def per_operation(workload: str) -> int:
    few, many = instructions(workload, FEW), instructions(workload, MANY)
    each = round((many - few) / (MANY - FEW))
    progress(f"{workload}: {each:,} instructions per operation")
    return each


def instructions(workload: str, times: int) -> int:
    """The instructions of a whole process that runs the workload so many times."""
    command = [
        *(*_valgrind(), "--tool=callgrind", "--callgrind-out-file=/dev/null"),
        *(sys.executable, "-m", "bench.instructions.workloads", workload, str(times)),
    ]
    # A fixed hash seed: the order of sets, and with it the work on them, is then the same.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        command,
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or found is None:
        raise RuntimeError(f"{workload}: {done.stderr[-2_000:]}")
    return int(found[1])


def _valgrind() -> list[str]:
    """The command; unpacked from Debian's archive into the user's cache if it is not installed."""
    if any((Path(folder) / "valgrind").exists() for folder in os.get_exec_path()):
        return ["valgrind"]
    folder = fetch("valgrind")
    (libraries,) = folder.glob("usr/lib*/**/valgrind")
    return ["env", f"VALGRIND_LIB={libraries}", str(folder / "usr" / "bin" / "valgrind")]


def markdown(rows: Sequence[Row], counts: dict[str, int]) -> str:
    lines = [
        "| per operation, in memory | instructions | wanted | stretch |",
        "|---|---|---|---|",
    ]
    for row in rows:
        count = counts[row.workload] - (counts[row.less] if row.less else 0)
        sign = "+" if row.less else ""
        goals = [f"≤ {_thousands(goal)}" if goal else "" for goal in (row.wanted, row.stretch)]
        lines.append(f"| {row.title} | {sign}{_thousands(count)} | {goals[0]} | {goals[1]} |")
    return "\n".join(lines) + "\n"


def _thousands(count: int) -> str:
    return f"{count / 1_000:,.0f} k"
