"""What kill -9 at each store call of an attempt leaves behind, and what a retry then finds.

killed_store_worker.py does the kills, on the store of a URL. Owns the scenarios, and what a retry
must find after each kill (I1, I4, I5, I10). It must not know any store: a test says how the lease
of a killed owner comes to its end.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from oncekey.core.errors import InFlight, OperationFailed, OutcomeUnknown
from oncekey.engine.once import Once

ROOT = Path(__file__).parents[2]
WORKER = "tests.fault.killed_store_worker"
SECONDS = 200

FLAGS = ("retry_safe", "steps", "raises")
SCENARIOS = [
    dict(zip(FLAGS, values, strict=True)) for values in itertools.product([False, True], repeat=3)
]
NAMES = ["-".join(name for name in FLAGS if one[name]) or "plain" for one in SCENARIOS]
# These call a store in every way, and end in every way; the other ones are combinations.
FEW = [NAMES.index(name) for name in ("plain", "retry_safe-steps", "retry_safe-raises")]
SOAK = bool(os.environ.get("ONCEKEY_SOAK"))
CHOSEN = list(range(len(SCENARIOS))) if SOAK else FEW
STEPS = ["SaveStep", "SaveStep", "Renew", "SaveStep", "SaveStep"]


def expected_calls(scenario: dict[str, bool]) -> list[str]:
    ending = "Release" if scenario["raises"] and scenario["retry_safe"] else "Finish"
    return ["bind", "Claim", *(STEPS if scenario["steps"] else []), ending]


class Kills(NamedTuple):
    """What the worker did: by scenario its calls, and the points at which a child was killed."""

    kind: str
    directory: Path
    results: dict[str, dict[str, Any]]


def kill_everywhere(
    url: str,
    kind: str,
    directory: Path,
    lease: str = "1h",
    chosen: Sequence[int] = range(len(SCENARIOS)),
) -> Kills:
    """Kill a client before and after each store call of the scenarios; `kind` is sync or async."""
    scenarios = {number: SCENARIOS[number] for number in chosen}
    done = subprocess.run(
        [sys.executable, "-m", WORKER, url, kind, lease, directory, json.dumps(scenarios)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return Kills(kind, directory, json.loads(done.stdout))


class Retries(Protocol):
    """An engine on the same store, and the time of its store."""

    once: Once

    def check_lease(self, point: KillPoint) -> object:
        """Check that nobody takes over while the killed owner's lease lasts (I5), and return what a
        retry gets after it."""


class KillPoint:
    """The state that one kill left behind, and a retry of the same operation."""

    def __init__(
        self, retries: Retries, kills: Kills, number: int, name: str, scenario: dict[str, bool]
    ) -> None:
        self.retries = retries
        self.key = f"{kills.kind} {number} {name}"
        self.effects = kills.directory / str(number) / f"{name}.effects"
        self.claimed = kills.directory / str(number) / f"{name}.claimed"
        self.scenario = scenario

    def retry(self) -> object:
        """Run the operation without a kill or an error; return its value or oncekey's error."""

        def body(attempt: Any) -> str:
            if self.scenario["steps"]:
                attempt.step("reserve", lambda key: self.effect(f"reserve {key}"))
                attempt.step("pay", lambda key: self.effect(f"pay {key}"))
            else:
                self.effect(f"pay {attempt.child_key('pay')}")
            return "paid"

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
            outcome = self.retries.check_lease(self)  # I5, I10: a takeover right after the lease
            assert outcome == "paid" if safe else isinstance(outcome, OutcomeUnknown)
        lines = self.lines()
        if safe:
            # I1: a service that deduplicates by child keys has done each step once.
            assert len(set(lines)) == (2 if self.scenario["steps"] else 1)
        else:
            assert len(lines) == len(set(lines))
            assert len({line.split()[0] for line in lines}) == len(lines)


def check_kills(retries: Retries, kills: Kills, number: int) -> None:
    """Check a retry after each kill of one scenario."""
    scenario, found = SCENARIOS[number], kills.results[str(number)]
    calls = found["calls"]
    assert calls == expected_calls(scenario)
    assert len(found["points"]) == 2 * len(calls)  # there is a kill before and after every call
    for call, side in found["points"]:
        applied = calls[: call if side == "after" else call - 1]
        KillPoint(retries, kills, number, f"{call}-{side}", scenario).check(applied)


def is_held(outcome: object) -> bool:
    return isinstance(outcome, InFlight)
