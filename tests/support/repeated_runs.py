"""`make test-repeat`: the suite again and again, with other seeds and orders, and a table of what
failed how often.

Each run is a line in `build/test-repeat/runs.jsonl`, so that the table goes on over several calls;
its log and its JUnit file are beside it. With `--load` a neighbour keeps one core busy meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from tests.support import run_order, run_seed

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "build" / "test-repeat"
HISTORY: Final = FOLDER / "runs.jsonl"
RUN_LIMIT_S: Final = 3600
# What `make test` says, so that this runs the same.
PARALLEL: Final = ("-n", "6", "--dist", "loadfile", "--no-loadscope-reorder")
# It ends with its parent.
NEIGHBOUR: Final = """
import os
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the suite. `failed` names the tests that failed."""

    began: str
    commit: str
    seed: int
    load: bool
    seconds: float
    status: int
    tests: int
    skipped: int
    failed: list[str]
    python: str

    @property
    def is_green(self) -> bool:
        return self.status == 0 and not self.failed and self.tests > 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    FOLDER.mkdir(parents=True, exist_ok=True)
    first = options.seed if options.seed is not None else random.randrange(10**6)
    runs = []
    with _busy_neighbour() if options.load else nullcontext():
        for number in range(options.times):
            run = _run(first + number, options.load, options.pytest)
            runs.append(run)
            with HISTORY.open("a", encoding="utf-8") as history:
                history.write(json.dumps(asdict(run)) + "\n")
            say(f"run {number + 1} of {options.times}: {_line(run)}")
    say("")
    for line in table(runs if not options.all else read_history()):
        say(line)
    return 0 if all(run.is_green for run in runs) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("make test-repeat", description=__doc__)
    parser.add_argument("--times", type=int, default=10, metavar="N", help="how many runs (10)")
    parser.add_argument("--load", action="store_true", help="keep one core busy meanwhile")
    parser.add_argument("--seed", type=int, help="the first seed; the next runs count on from it")
    parser.add_argument("--all", action="store_true", help="the table has earlier calls' runs too")
    parser.add_argument("pytest", nargs="*", help="what pytest runs, if not everything")
    return parser.parse_args(arguments)


def _run(seed: int, load: bool, selection: Sequence[str]) -> Run:
    log, junit = FOLDER / f"{seed}.log", FOLDER / f"{seed}.xml"
    junit.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *PARALLEL, f"--hypothesis-seed={seed}"]
    environment = {**os.environ, run_seed.VARIABLE: str(seed), run_order.VARIABLE: "1"}
    began, clock = datetime.now().isoformat(" ", "seconds"), time.monotonic()
    status = run_logged([*command, f"--junitxml={junit}", *selection], log, environment)
    seconds = round(time.monotonic() - clock, 1)
    tests, skipped, failed = counts(junit)
    python = platform.python_version()
    return Run(began, _commit(), seed, load, seconds, status, tests, skipped, failed, python)


def run_logged(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> int:
    """Run a command of this project to its end, and return its exit code."""
    with log.open("wb") as output:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=RUN_LIMIT_S,
            check=False,
        ).returncode


def counts(junit: Path) -> tuple[int, int, list[str]]:
    """Return how many tests a JUnit file has, how many were skipped, and which failed."""
    if not junit.exists():
        return 0, 0, []
    cases = list(ElementTree.parse(junit).getroot().iter("testcase"))
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return len(cases), sum(case.find("skipped") is not None for case in cases), failed


def table(runs: Sequence[Run]) -> list[str]:
    """Return the runs, a line each, and then what failed, with how often."""
    lines = [f"{'began':19}  {'commit':12}  {'python':6}  {'seed':>7}  load  {'took':>9}  result"]
    lines += [_line(run) for run in runs]
    green = 0
    for run in reversed(runs):
        if not run.is_green:
            break
        green += 1
    lines.append(f"{sum(run.is_green for run in runs)} of {len(runs)} green, the last {green}")
    often = Counter(name for run in runs for name in run.failed)
    for name, count in often.most_common():
        seeds = ", ".join(str(run.seed) for run in runs if name in run.failed)
        lines.append(f"{count:4d} x  {name} (seed {seeds})")
    return lines


def read_history() -> list[Run]:
    """Return the runs of all calls so far."""
    return [Run(**json.loads(line)) for line in HISTORY.read_text(encoding="utf-8").splitlines()]


def _line(run: Run) -> str:
    passed = run.tests - run.skipped - len(run.failed)
    result = f"{passed} passed, {len(run.failed)} failed, {run.skipped} skipped"
    if run.status and not run.failed:
        result += f" (pytest ended with {run.status})"
    load, took = "yes" if run.load else "no", minutes(run.seconds)
    what = f"{run.began:19}  {run.commit:12}  {run.python:6}  {run.seed:7d}"
    return f"{what}  {load:4}  {took:>9}  {result}"


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    return git("rev-parse", "--short=7", "HEAD") + ("+work" if git("status", "--porcelain") else "")


@contextmanager
def _busy_neighbour() -> Iterator[None]:
    neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.wait()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
