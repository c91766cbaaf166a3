"""kill -9 of a client at every store call of an attempt, on PostgreSQL (I1, I4, I5, I10).

The killed clients are real processes. No test waits for a lease to end: the retry uses a store
whose clock is ahead of the server's.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.postgres_adapters import STORE_DRIVERS
from tests.support.postgres_stores import server

from oncekey.core.errors import InFlight, OperationFailed, OutcomeUnknown
from oncekey.core.policy import Policy
from oncekey.engine.blocking.once import Once
from oncekey.stores.postgres import PostgresStore
from oncekey.stores.store_rules import wall_clock

WORKER = Path(__file__).with_name("killed_postgres_worker.py")
SCHEMA = "kills"
LEASE_US = 3_600_000_000
MARGIN_US = 1_000_000
EARLY_US = 60_000_000

FLAGS = ("retry_safe", "steps", "raises")
SCENARIOS = [
    dict(zip(FLAGS, values, strict=True)) for values in itertools.product([False, True], repeat=3)
]
NAMES = ["-".join(name for name in FLAGS if one[name]) or "plain" for one in SCENARIOS]
STEPS = ["SaveStep", "SaveStep", "Renew", "SaveStep", "SaveStep"]


def expected_calls(scenario: dict[str, bool]) -> list[str]:
    ending = "Release" if scenario["raises"] and scenario["retry_safe"] else "Finish"
    return ["bind", "Claim", *(STEPS if scenario["steps"] else []), ending]


class RetryEngine:
    """An engine whose store's clock can be set ahead."""

    def __init__(self) -> None:
        self.ahead = 0
        self.url = f"{server().url()}?schema={SCHEMA}"
        store = PostgresStore(
            server().url(), schema=SCHEMA, clock=lambda: wall_clock() + self.ahead
        )
        self.once = Once(store, policy=Policy(lease="1h"), cache=0)


@pytest.fixture(scope="module")
def retries() -> Iterator[RetryEngine]:
    retries = RetryEngine()
    with retries.once:
        yield retries


class KillPoint:
    """The state that one kill left behind, and a retry of the same operation."""

    def __init__(
        self, retries: RetryEngine, key: str, effects: Path, scenario: dict[str, bool]
    ) -> None:
        self.retries = retries
        self.key = key
        self.effects = effects
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

        self.retries.ahead = ahead_us
        try:
            safe = self.scenario["retry_safe"]
            return self.retries.once.run("op", self.key, body, retry_safe=safe).value
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
            outcome = self.retry()  # I4
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
            # I1: a service that deduplicates by child keys has done each step once.
            assert len(set(lines)) == (2 if self.scenario["steps"] else 1)
        else:
            assert len(lines) == len(set(lines))
            assert len({line.split()[0] for line in lines}) == len(lines)


@pytest.fixture(scope="module", params=STORE_DRIVERS)
def killed(
    request: pytest.FixtureRequest, retries: RetryEngine, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, list[dict[str, Any]]]:
    """Kill at every point on one driver; return it, the folder, and the calls by scenario."""
    directory = tmp_path_factory.mktemp(request.param)
    done = subprocess.run(
        [sys.executable, WORKER, retries.url, request.param, directory, json.dumps(SCENARIOS)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return request.param, directory, json.loads(done.stdout)


@pytest.mark.parametrize("number", range(len(SCENARIOS)), ids=NAMES)
def test_i1_a_retry_after_a_kill_at_any_store_call_runs_once(
    retries: RetryEngine, killed: tuple[str, Path, list[dict[str, Any]]], number: int
) -> None:
    driver, directory, results = killed
    scenario, found = SCENARIOS[number], results[number]
    calls = found["calls"]
    assert calls == expected_calls(scenario)
    assert len(found["points"]) == 2 * len(calls)  # there is a kill before and after every call
    for call, side in found["points"]:
        applied = calls[: call if side == "after" else call - 1]
        name = f"{call}-{side}"
        effects = directory / str(number) / f"{name}.effects"
        KillPoint(retries, f"{driver} {number} {name}", effects, scenario).check(applied)
