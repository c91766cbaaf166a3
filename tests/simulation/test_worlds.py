"""Five thousand simulated worlds break no invariant, and those that once did are run for ever.

With ONCEKEY_SOAK=1: a hundred thousand. ONCEKEY_SEEDS sets another number.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.simulation.found_worlds import FOUND_SEEDS, FOUND_WORLDS
from tests.support.explorer.code_under_test import REAL
from tests.support.explorer.mutation import Edit, mutated
from tests.support.simulation import background_tasks
from tests.support.simulation.__main__ import main
from tests.support.simulation.drawn_plan import draw
from tests.support.simulation.plan import FaultKind, Plan
from tests.support.simulation.seed_search import (
    broken_by,
    explain,
    find_violation,
    met_in,
    trace_hash,
)

from oncekey.core import recovery
from oncekey.core.commands import Busy, Claim, Command
from oncekey.core.record import Record, State
from oncekey.core.state_machine import Decision

SOAK = os.environ.get("ONCEKEY_SOAK") == "1"
SEEDS = int(os.environ.get("ONCEKEY_SEEDS", "100000" if SOAK else "5000"))
BLOCK = 500
ROOT = Path(__file__).parents[2]

MUST_MEET = {
    "claim", "claim again", "claim of a freed key", "expiry", "takeover", "give-up", "unknown",
    "replay", "mismatch", "in flight", "renew", "renew refused", "finish", "finish again",
    "finish refused", "finish of an unknown key", "release", "release again", "release refused",
    "resolve", "resolve refused", "sweep", "effect", "late effect", "late start", "overtaken",
    "heartbeat ends", "body finds its claim lost", "recover", "completion", "deferred write",
    "no answer", "outcome lost", "outcome unavailable", "outcome unknown", "outcome wait_timeout",
    *(kind.name for kind in FaultKind),
}  # fmt: skip


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_no_world_breaks_an_invariant(first: int) -> None:
    violation = find_violation(REAL, range(first, min(first + BLOCK, SEEDS)))
    assert violation is None, f"\n{violation}"


def test_no_large_world_breaks_an_invariant() -> None:
    """Five times as many callers, faults and processes, for five times as long."""
    violation = find_violation(REAL, range(SEEDS // 100), partial(draw, scale=5))
    assert violation is None, f"\n{violation}"


@pytest.mark.parametrize("plan", FOUND_WORLDS.values(), ids=FOUND_WORLDS)
def test_a_world_that_once_broke_an_invariant_does_not_any_more(plan: Plan) -> None:
    broken = broken_by(plan)
    assert broken is None, f"\n{explain(plan, broken)}"


@pytest.mark.parametrize("seed", FOUND_SEEDS.values(), ids=FOUND_SEEDS)
def test_a_seed_that_once_broke_an_invariant_does_not_any_more(seed: int) -> None:
    violation = find_violation(REAL, [seed])
    assert violation is None, f"\n{violation}"


def test_the_fault_that_the_simulation_found_is_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I1: a completer must not decide a key whose silent owner came back meanwhile."""
    forgets = mutated(recovery, Edit("lease_until=record.lease_until", "lease_until=0"))
    monkeypatch.setattr(background_tasks, "recover", forgets.recover)
    for plan in FOUND_WORLDS.values():
        broken = broken_by(plan)
        assert broken is not None
        assert broken.invariant == "I1"


def test_worlds_meet_every_kind_of_event_and_fault() -> None:
    assert MUST_MEET - met_in(range(700)).keys() == set()


# --- the simulation itself -----------------------------------------------------------------------


def test_a_seed_gives_the_same_world_in_every_process() -> None:
    seeds = range(40)
    here = [trace_hash(seed) for seed in seeds]
    assert here == [trace_hash(seed) for seed in seeds]
    assert len(set(here)) == len(seeds)
    code = (
        "from tests.support.simulation.seed_search import trace_hash\n"
        f"print(' '.join(trace_hash(seed) for seed in range({len(seeds)})))"
    )
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": _python_path()}
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == here


def _python_path() -> str:
    return os.pathsep.join((str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))


def test_a_store_that_forgets_acknowledged_writes_is_noticed() -> None:
    violation = find_violation(REAL, range(2_000), partial(draw, durable=False))
    assert violation is not None
    text = str(violation)
    assert "the store has forgotten its last writes" in text
    assert [fault.kind for fault in violation.plan.faults] == [FaultKind.STORE_CRASH]


def test_a_violation_is_told_by_the_smallest_world_that_shows_it() -> None:
    def is_garbage(record: Record, now: int) -> bool:
        return record.state is State.PENDING or REAL.is_garbage(record, now)

    greedy = replace(REAL, is_garbage=is_garbage)
    violation = find_violation(greedy, range(1_000))
    assert violation is not None
    assert violation.invariant == "I12"
    assert len(violation.plan.calls) == 1
    assert [fault.kind for fault in violation.plan.faults] == [FaultKind.SWEEP]
    text = str(violation)
    assert text.startswith("I12 is broken: swept a ")
    assert f"seed {violation.seed}; the smallest world that shows it:" in text
    assert "the sweeper runs" in text
    assert text.count("\n") < 25


def test_a_key_that_nobody_can_ever_claim_is_a_violation() -> None:
    """I11, when the world has come to rest: no single decision shows it."""

    def decide(record: Record | None, command: Command, now: int, floor: int = 0) -> Decision:
        if isinstance(command, Claim) and record is None:
            return Decision(Busy(1))
        return REAL.decide(record, command, now, floor)

    broken = broken_by(draw(0), replace(REAL, decide=decide))
    assert broken is not None
    assert broken.what.startswith("at rest a new claim gets in_flight")


# --- the command ----------------------------------------------------------------------------------


def _command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["simulation", *arguments])
    return main()


def test_the_command_counts_worlds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _command(monkeypatch, "--seeds", "3", "--first", "7") == 0
    assert capsys.readouterr().out.startswith("3 worlds from seed 7, ")


def test_the_command_tells_the_story_of_a_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _command(monkeypatch, "--seed", "17", "-v") == 0
    out = capsys.readouterr().out
    assert out.startswith("The settings are ")
    assert "comes to process" in out


def test_the_command_fails_with_the_story_and_the_way_to_repeat_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _command(monkeypatch, "--seeds", "2000", "--forgetful") == 1
    out = capsys.readouterr().out
    assert "is broken: " in out
    assert "again: python -m tests.support.simulation --seed " in out
    assert out.endswith(" -v --forgetful\n")
