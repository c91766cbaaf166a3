"""A run of the hammer: a parent process forks the workers and a sweeper, then checks the logs.

    python -m tests.support.hammer --store sqlite:////tmp/keys.db --seconds 60

The parent is a new process with one thread, so that forking is safe. A worker that crashes, on
purpose, is replaced at once. Works with any store whose URL several processes can open.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.support.hammer.checker import HammerReport, check
from tests.support.hammer.command_log import Log, read_logs
from tests.support.hammer.recorder import CRASHED
from tests.support.hammer.saboteurs import SABOTEURS
from tests.support.hammer.worker import Load, Worker
from tests.support.store_drivers import import_driver

from oncekey.core.errors import StoreUnavailable
from oncekey.core.store import Store
from oncekey.engine.store_urls import blocking_store

SWEEP_PAUSE_SECONDS = 0.02
SWEEP_LIMIT = 50
STORE_TRIES = 200
OVER = "over"  # the file that tells the sweeper that all workers have ended


@dataclass(frozen=True, slots=True)
class HammerPlan:
    """What to run: `store` is a URL, durations are in microseconds.

    A run ends after `seconds`, or when every worker has done its rounds, if there are any. So a
    short run does the same work on a busy machine, and takes longer.
    """

    store: str
    seconds: float = 8.0
    rounds: int = 0
    processes: int = 16
    keys: int = 40
    lease: int = 30_000
    keep: int = 150_000
    audit: int = 100_000
    crashes: bool = True
    sabotage: str = ""
    seed: int = 0
    through_once: float = 0.15  # the share of the work that is done through Once

    @property
    def load(self) -> Load:
        times = (self.lease, self.keep, self.audit)
        return Load(self.keys, *times, self.crashes, self.through_once)


def run_hammer(plan: HammerPlan, environment: dict[str, str] | None = None) -> HammerReport:
    """Run the plan in a process of its own, with this environment."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.hammer", "--plan", json.dumps(asdict(plan))],
        cwd=Path(__file__).parents[3],
        env=environment,
        capture_output=True,
        text=True,
        timeout=plan.seconds * 4 + 120,
        check=False,
    )
    if done.returncode not in (0, 1) or not done.stdout.strip():
        raise AssertionError(f"the hammer itself failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return HammerReport(**found)


def run_here(plan: HammerPlan) -> HammerReport:
    """Run the plan in this process, which must have no other threads."""
    with tempfile.TemporaryDirectory(prefix="oncekey-hammer-") as name:
        logs = Path(name)
        import_driver(plan.store)
        _run_in_child(lambda: make_tables(plan))
        end = time.monotonic() + plan.seconds
        living: dict[int, int] = {}
        started = 0
        for _ in range(plan.processes):
            living[_start(plan, logs, started, end)] = started
            started += 1
        sweeper = _start(plan, logs, -1, end)
        failures = []

        def why(number: int) -> str:
            error = _error_file(logs, number)
            return f":\n{error.read_text('utf-8')}" if error.exists() else ""

        while living:
            pid, status = os.wait()
            code = os.waitstatus_to_exitcode(status)
            if pid == sweeper:
                sweeper = 0
                if code:
                    failures.append(f"the sweeper ended with {code}{why(-1)}")
                continue
            number = living.pop(pid)
            is_over = time.monotonic() >= end or (plan.rounds and started >= plan.processes * 2)
            if code == CRASHED and not is_over:
                living[_start(plan, logs, started, end)] = started
                started += 1
            elif code not in (0, CRASHED):
                failures.append(f"a worker ended with {code}{why(number)}")
        (logs / OVER).touch()
        if sweeper and os.waitstatus_to_exitcode(os.waitpid(sweeper, 0)[1]):
            failures.append(f"the sweeper failed{why(-1)}")
        entries, counts = read_logs(logs.glob("*.jsonl"))
        report = check(entries, counts, plan.keep)
        return HammerReport(report.counts, failures + report.violations)


def _open(plan: HammerPlan) -> Store:
    store = blocking_store(plan.store)
    return SABOTEURS[plan.sabotage](store) if plan.sabotage else store


def make_tables(plan: HammerPlan) -> None:
    """Create the tables before the workers start; the connection may fail."""
    store = _open(plan)
    for left in reversed(range(STORE_TRIES)):
        try:
            store.sweep(0)  # a lazy store creates them on first use
            break
        except StoreUnavailable:
            if not left:
                raise
    store.close()


def _run_in_child(work: Callable[[], None]) -> None:
    """Run something in a process of its own: a store may leave threads behind, which forks lack."""
    code = os.waitstatus_to_exitcode(os.waitpid(_fork(work), 0)[1])
    if code:
        raise AssertionError(f"the store was not set up: its process ended with {code}")


def _error_file(logs: Path, number: int) -> Path:
    """Where a worker, or the sweeper, leaves the error that it ended with."""
    return logs / f"{number}.error"


def _fork(work: Callable[[], None], error: Path | None = None) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        if error is not None:
            error.write_text(traceback.format_exc(), "utf-8")
    finally:
        sys.stderr.flush()
        os._exit(code)


def _start(plan: HammerPlan, logs: Path, number: int, end: float) -> int:
    """Start a worker, or the sweeper, whose number is negative."""

    def work() -> None:
        log = Log(logs / f"{number}.jsonl")
        if number < 0:
            _sweep(plan, log, lambda: time.monotonic() >= end or (logs / OVER).exists())
        else:
            worker = Worker(_open(plan), log, plan.load, plan.seed * 10_000 + number)
            worker.run_until(end, plan.rounds)

    return _fork(work, _error_file(logs, number))


def _sweep(plan: HammerPlan, log: Log, is_over: Callable[[], bool]) -> None:
    store = _open(plan)
    while not is_over():
        try:
            log.count("swept", store.sweep(SWEEP_LIMIT))
            log.count("sweeps")
        except StoreUnavailable:
            log.count("sweeps that failed")
        time.sleep(SWEEP_PAUSE_SECONDS)
