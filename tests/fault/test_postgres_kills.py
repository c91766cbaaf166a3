"""kill -9 of a client at every store call of an attempt, on PostgreSQL (I1, I4, I5, I10).

The victims are real processes. Nobody sleeps until a lease is over: a store with a clock ahead of
the server's looks at what they left.
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

VICTIM = Path(__file__).with_name("killed_postgres_worker.py")
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


class Retrying:
    """An engine whose store's clock can be set ahead."""

    def __init__(self) -> None:
        self.ahead = 0
        self.url = f"{server().url()}?schema={SCHEMA}"
        store = PostgresStore(
            server().url(), schema=SCHEMA, clock=lambda: wall_clock() + self.ahead
        )
        self.once = Once(store, policy=Policy(lease="1h"), cache=0)


@pytest.fixture(scope="module")
def retrying() -> Iterator[Retrying]:
    retrying = Retrying()
    with retrying.once:
        yield retrying


class Point:
    """What a kill left behind, and a retry of the same operation."""

    def __init__(
        self, retrying: Retrying, key: str, effects: Path, scenario: dict[str, bool]
    ) -> None:
        self.retrying = retrying
        self.key = key
        self.effects = effects
        self.scenario = scenario

    def retry(self, ahead_us: int = 0) -> object:
        """What the retry gives: a value or an error. This time nothing raises or dies."""

        def body(attempt: Any) -> str:
            if self.scenario["steps"]:
                attempt.step("reserve", lambda key: self.effect(f"reserve {key}"))
                attempt.step("pay", lambda key: self.effect(f"pay {key}"))
            else:
                self.effect(f"pay {attempt.child_key('pay')}")
            return "paid"

        self.retrying.ahead = ahead_us
        try:
            safe = self.scenario["retry_safe"]
            return self.retrying.once.run("op", self.key, body, retry_safe=safe).value
        except Exception as error:
            return error

    def effect(self, line: str) -> str:
        with self.effects.open("a") as file:
            file.write(line + "\n")
        return line

    def lines(self) -> list[str]:
        return self.effects.read_text().splitlines() if self.effects.exists() else []

    def check(self, applied: list[str]) -> None:
        """`applied` are the calls that took effect before the kill."""
        safe = self.scenario["retry_safe"]
        if "Claim" not in applied or "Release" in applied:
            assert self.retry() == "paid"  # I10: free at once
        elif "Finish" in applied:
            outcome = self.retry()  # I4
            if self.scenario["raises"]:
                assert isinstance(outcome, OperationFailed)
            else:
                assert outcome == "paid"
        else:
            assert isinstance(self.retry(), InFlight)  # I5: never before the lease is over
            assert isinstance(self.retry(LEASE_US - EARLY_US), InFlight)
            outcome = self.retry(LEASE_US + MARGIN_US)  # I10: and right after it
            assert outcome == "paid" if safe else isinstance(outcome, OutcomeUnknown)
        lines = self.lines()
        if safe:
            # I1: a downstream that dedups on child keys has done each thing once.
            assert len(set(lines)) == (2 if self.scenario["steps"] else 1)
        else:
            assert len(lines) == len(set(lines))
            assert len({line.split()[0] for line in lines}) == len(lines)


@pytest.fixture(scope="module", params=STORE_DRIVERS)
def killed(
    request: pytest.FixtureRequest, retrying: Retrying, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, list[dict[str, Any]]]:
    """All the kills of one driver: where they left their effects, and what each scenario called."""
    directory = tmp_path_factory.mktemp(request.param)
    done = subprocess.run(
        [sys.executable, VICTIM, retrying.url, request.param, directory, json.dumps(SCENARIOS)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return request.param, directory, json.loads(done.stdout)


@pytest.mark.parametrize("number", range(len(SCENARIOS)), ids=NAMES)
def test_i1_kill_nine_at_every_store_call(
    retrying: Retrying, killed: tuple[str, Path, list[dict[str, Any]]], number: int
) -> None:
    driver, directory, told = killed
    scenario, found = SCENARIOS[number], told[number]
    calls = found["calls"]
    assert calls == expected_calls(scenario)
    assert len(found["points"]) == 2 * len(calls)  # every call, before and after
    for call, side in found["points"]:
        applied = calls[: call if side == "after" else call - 1]
        name = f"{call}-{side}"
        effects = directory / str(number) / f"{name}.effects"
        Point(retrying, f"{driver} {number} {name}", effects, scenario).check(applied)
