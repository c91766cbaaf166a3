"""kill -9 at every store call of an attempt, SIGSTOP past the lease, and racing processes.

The killed processes are real, on a real SQLite file. No test waits for a lease to end: the store is
opened again with a clock that is ahead of the host's (I1, I2, I10).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from oncekey.core.errors import InFlight, OperationFailed, OutcomeUnknown
from oncekey.core.policy import Policy
from oncekey.core.recovery import Recovery
from oncekey.engine.once import Once
from oncekey.stores.sqlite import SQLiteStore
from oncekey.stores.store_rules import wall_clock

WORKER = Path(__file__).with_name("killed_sqlite_worker.py")
LEASE_US = 3_600_000_000
MARGIN_US = 1_000_000
EARLY_US = 60_000_000

FLAGS = ("retry_safe", "steps", "raises")
SCENARIOS = [dict(zip(FLAGS, values, strict=True)) for values in
             itertools.product([False, True], repeat=3)]  # fmt: skip
STEPS = ["SaveStep", "SaveStep", "Renew", "SaveStep", "SaveStep"]


def expected_calls(scenario: dict[str, bool]) -> list[str]:
    ending = "Release" if scenario["raises"] and scenario["retry_safe"] else "Finish"
    return ["bind", "Claim", *(STEPS if scenario["steps"] else []), ending]


@contextmanager
def engine(path: Path, ahead_us: int = 0) -> Iterator[Once]:
    """Open an engine on the file; its store's clock is ahead of the host's by `ahead_us`."""
    store = SQLiteStore(path, clock=lambda: wall_clock() + ahead_us)
    with closing(Once(store, policy=Policy(lease="1h"), cache=0)) as once:
        yield once


class KillPoint:
    """The state that one kill left behind, and a retry of the same operation."""

    def __init__(self, directory: Path, scenario: dict[str, bool], name: str) -> None:
        self.path = directory / f"{name}.db"
        self.effects = directory / f"{name}.effects"
        self.scenario = scenario

    def retry(self, ahead_us: int = 0) -> object:
        """Run the operation without a kill or an error; return its value or oncekey's error."""

        def body(attempt: Any) -> str:
            if self.scenario["steps"]:
                attempt.step("reserve", lambda key: self.effect(f"reserve {key}"))
                attempt.step("pay", lambda key: self.effect(f"pay {key}"))
            else:
                self.effect(f"pay {attempt.child_key('pay')}")
            return "paid"

        with engine(self.path, ahead_us) as once:
            try:
                return once.run("op", "k", body, retry_safe=self.scenario["retry_safe"]).value
            except Exception as error:
                return error

    def effect(self, line: str) -> str:
        with self.effects.open("a") as file:
            file.write(line + "\n")
        return line

    def lines(self) -> list[str]:
        return self.effects.read_text().splitlines() if self.effects.exists() else []

    def check(self, applied: list[str]) -> None:
        """Check a retry; `applied` are the store calls that took effect before the kill."""
        safe = self.scenario["retry_safe"]
        if "Claim" not in applied or "Release" in applied:
            assert self.retry() == "paid"  # I10: the key is free at once
        elif "Finish" in applied:
            outcome = self.retry()
            if self.scenario["raises"]:
                assert isinstance(outcome, OperationFailed)
            else:
                assert outcome == "paid"
        else:
            assert isinstance(self.retry(), InFlight)  # I5: no takeover before the lease has ended
            assert isinstance(self.retry(LEASE_US - EARLY_US), InFlight)
            outcome = self.retry(LEASE_US + MARGIN_US)  # I10: a takeover right after it
            assert outcome == "paid" if safe else isinstance(outcome, OutcomeUnknown)
        lines = self.lines()
        if safe:
            # A service that deduplicates by child keys has done each step once.
            assert len(set(lines)) == (2 if self.scenario["steps"] else 1)
        else:
            assert len(lines) == len(set(lines))
            assert len({line.split()[0] for line in lines}) == len(lines)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: "-".join(n for n in s if s[n]) or "-")
def test_i1_a_retry_after_a_kill_at_any_store_call_runs_once(
    tmp_path: Path, scenario: dict[str, bool]
) -> None:
    done = subprocess.run(
        [sys.executable, WORKER, "kill", tmp_path, json.dumps(scenario)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    calls = found["calls"]
    assert calls == expected_calls(scenario)
    assert len(found["points"]) == 2 * len(calls)  # there is a kill before and after every call
    for number, side in found["points"]:
        applied = calls[: number if side == "after" else number - 1]
        KillPoint(tmp_path, scenario, f"{number}-{side}").check(applied)


class Worker:
    """A process of killed_sqlite_worker.py, which prints lines of JSON."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, WORKER, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        return message

    def resume_body(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def pause(self) -> None:
        """Send SIGSTOP, and wait until the process is stopped."""
        self.process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.communicate(timeout=60)


@pytest.fixture
def start_worker() -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def start(*arguments: object) -> Worker:
        workers.append(Worker(*arguments))
        return workers[-1]

    yield start
    for worker in workers:
        worker.end()


@pytest.mark.parametrize("retry_safe", [True, False])
def test_i2_the_outcome_of_a_process_stopped_past_its_lease_is_refused(
    tmp_path: Path, start_worker: Callable[..., Worker], retry_safe: bool
) -> None:
    """Another process has decided the key meanwhile, by a takeover or by recovery."""
    zombie = start_worker("stop", tmp_path, json.dumps(retry_safe))
    fence = zombie.read()["inside"]
    zombie.pause()
    with engine(tmp_path / "keys.db", LEASE_US + MARGIN_US) as once:
        if retry_safe:
            result = once.run("op", "k", lambda attempt: "winner", retry_safe=True)
            assert (result.value, result.replayed, result.fence > fence) == ("winner", False, True)
        else:
            result = once.run("op", "k", never, recover=lambda key: Recovery.succeeded("winner"))
            assert (result.value, result.replayed) == ("winner", True)
        before = once.get("op", "k")
        assert before is not None
        note = (
            before.note if retry_safe else f"{before.note}; its late owner then reported: succeeded"
        )
        zombie.process.send_signal(signal.SIGCONT)
        zombie.resume_body()
        assert zombie.read() == {"value": "winner", "replayed": True}
        assert once.get("op", "k") == dataclasses.replace(before, note=note)


def test_i14_the_outcome_of_a_process_stopped_past_its_lease_decides_an_unknown_key(
    tmp_path: Path, start_worker: Callable[..., Worker]
) -> None:
    """At most once: nobody else has decided the key, and only its owner knows the outcome."""
    zombie = start_worker("stop", tmp_path, json.dumps(False))
    fence = zombie.read()["inside"]
    zombie.pause()
    with engine(tmp_path / "keys.db", LEASE_US + MARGIN_US) as once:
        with pytest.raises(OutcomeUnknown):
            once.run("op", "k", never)
        zombie.process.send_signal(signal.SIGCONT)
        zombie.resume_body()
        assert zombie.read() == {"value": "zombie", "replayed": False}
        again = once.run("op", "k", never)
        assert (again.value, again.replayed, again.fence) == ("zombie", True, fence)


def never(attempt: Any) -> str:
    raise AssertionError("must not run")


def test_i1_two_processes_with_eight_threads_run_an_operation_once(
    tmp_path: Path, start_worker: Callable[..., Worker]
) -> None:
    pair = [start_worker("crowd", tmp_path) for _ in range(2)]
    for one in pair:
        assert one.read() == {"ready": True}
    for one in pair:
        one.resume_body()
    values = [value for one in pair for value in one.read()["values"]]
    effects = (tmp_path / "effects").read_text().split()
    assert len(effects) == 1
    assert values == effects * 16
