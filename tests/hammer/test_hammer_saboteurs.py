"""The hammer finds what is wrong with stores that are broken on purpose.

Otherwise its silence would prove nothing.

Two workers do by turns, on a clock that the test owns, what shows the fault; the rest is as in a
run: the recorder that logs, the logs of two processes, the checker. `make soak` lets the hammer
find the same faults by itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from tests.support.hammer import HammerPlan, recorder, run_hammer
from tests.support.hammer.checker import check
from tests.support.hammer.command_log import Log, read_logs
from tests.support.hammer.recorder import Recorder
from tests.support.hammer.saboteurs import CAUGHT_AT, SABOTEURS
from tests.support.store_table import STORES

from oncekey.core.commands import Claim, Command, Finish, Reply
from oncekey.core.record import State
from oncekey.core.store import Store
from oncekey.testing import FakeClock

LEASE, KEEP = 10_000_000, 60_000_000
SYNC_STORES = [
    "memory-sync",
    "sqlite-sync",
    "postgres-psycopg",
    "postgres-psycopg-ring",
    "redis-sync",
]


class NeverLoses(random.Random):
    """Dice with which a recorder loses nothing and does not crash."""

    def random(self) -> float:
        return 0.5


class TwoWorkers:
    """Two workers on one store, each with a recorder and a log of its own."""

    def __init__(self, folder: Path, store: str, sabotage: str) -> None:
        self.clock = FakeClock()
        self.folder = folder
        opened = cast(Store, STORES[store](folder, self.clock.wall))
        broken = SABOTEURS[sabotage](opened) if sabotage else opened
        self.recorders = [
            Recorder(broken, Log(folder / f"{number}.jsonl"), NeverLoses(), crashes=False)
            for number in range(2)
        ]
        self.close = opened.close

    def send(self, worker: int, command: Command) -> Reply:
        (reply,) = self.recorders[worker].apply([command])
        return reply

    def claim(self, worker: int, *, request: str = "usual", retry_safe: bool = True) -> Reply:
        owner = f"worker {worker}".encode().ljust(16, b".")
        words = (b"k" * 16, owner, f"\x01{request}".encode(), LEASE, KEEP, 0, retry_safe)
        return self.send(worker, Claim(*words))

    def finish(self, worker: int, fence: int) -> Reply:
        owner = f"worker {worker}".encode().ljust(16, b".")
        body = f"by {worker}".encode()
        return self.send(worker, Finish(b"k" * 16, owner, fence, State.SUCCEEDED, body))

    def violations(self) -> list[str]:
        entries, counts = read_logs(self.folder.glob("*.jsonl"))
        assert {entry.verb for entry in entries} >= {"Claim"}
        return check(entries, counts, KEEP).violations


def overtaken_owner_finishes(workers: TwoWorkers) -> None:
    first = workers.claim(0)
    workers.clock.advance(LEASE)
    workers.claim(1)
    workers.finish(0, first.fence)  # type: ignore[union-attr]


def two_claim(workers: TwoWorkers) -> None:
    workers.claim(0)
    workers.clock.advance(LEASE // 2)
    workers.claim(1)


def claimed_before_its_outcome_ends(workers: TwoWorkers) -> None:
    workers.finish(0, workers.claim(0).fence)  # type: ignore[union-attr]
    workers.clock.advance(KEEP // 2)
    workers.claim(1)


def another_request_claims(workers: TwoWorkers) -> None:
    workers.claim(0)
    workers.claim(1, request="other")


def dead_owner_was_not_retry_safe(workers: TwoWorkers) -> None:
    workers.claim(0, retry_safe=False)
    workers.clock.advance(LEASE)
    workers.claim(1)


STORIES: dict[str, Callable[[TwoWorkers], None]] = {
    "FinishWithoutOwner": overtaken_owner_finishes,
    "StealsLeases": two_claim,
    "ForgetsEarly": claimed_before_its_outcome_ends,
    "BlindToRequests": another_request_claims,
    "EveryoneIsRetrySafe": dead_owner_was_not_retry_safe,
}


def found(
    folder: Path, store: str, story: str, monkeypatch: pytest.MonkeyPatch, *, sabotaged: bool
) -> list[str]:
    """Play the story of a saboteur, with it or without it; what the checker finds."""
    workers = TwoWorkers(folder, store, story if sabotaged else "")
    monkeypatch.setattr(recorder, "monotonic_us", workers.clock.wall)
    try:
        STORIES[story](workers)
    finally:
        workers.close()
    return workers.violations()


@pytest.mark.parametrize("store", SYNC_STORES)
@pytest.mark.parametrize("sabotage", CAUGHT_AT)
def test_the_checker_finds_a_store_that_is_broken_on_purpose(
    sabotage: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    violations = found(tmp_path, store, sabotage, monkeypatch, sabotaged=True)
    assert any(words.startswith(CAUGHT_AT[sabotage]) for words in violations)


@pytest.mark.parametrize("store", SYNC_STORES)
@pytest.mark.parametrize("story", STORIES)
def test_the_checker_is_silent_on_the_same_story_of_a_right_store(
    story: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(tmp_path, store, story, monkeypatch, sabotaged=False) == []


def test_a_run_reports_what_its_workers_have_logged(tmp_path: Path) -> None:
    """One worker on one key claims for two requests, whatever the machine does meanwhile."""
    plan = HammerPlan(
        f"sqlite:///{tmp_path}/keys.db?busy_timeout=120s",
        seconds=120,
        rounds=100,
        processes=1,
        keys=1,
        keep=600_000_000,
        crashes=False,
        through_once=0.0,
        sabotage="BlindToRequests",
    )
    rules = {words.split()[0] for words in run_hammer(plan).violations}
    assert rules & {CAUGHT_AT[plan.sabotage], "i3_replays_are_what_was_stored"}


def test_a_worker_that_dies_is_shown_with_its_traceback_and_blames_nobody_else(
    tmp_path: Path,
) -> None:
    """What a dying worker has sent is in its log: else the checker would miss the reason of what
    others find, and report faults that are none."""
    url = f"sqlite:///{tmp_path}/keys.db"
    plan = HammerPlan(url, rounds=5, processes=2, crashes=False, sabotage="Breaks", seed=1)
    violations = run_hammer(plan).violations
    assert len(violations) == 2
    for words in violations:
        assert words.startswith("a worker ended with 1:\nTraceback")
        assert words.rstrip().endswith("TypeError: this reply cannot be read")
