"""The judge of simulated worlds finds what the explorer cannot meet: steps, late bodies, grace.

Each test breaks one thing, and the judge must say what.
"""

from __future__ import annotations

import pytest
from tests.support.explorer.code_under_test import REAL, CodeUnderTest
from tests.support.explorer.mutation import Edit, mutated
from tests.support.explorer.scenario import BodyEnding
from tests.support.mutants.core_mutants import Mutant
from tests.support.mutants.explorer_tool import code_of
from tests.support.simulation import attempt_task, step_task
from tests.support.simulation.drawn_plan import draw
from tests.support.simulation.judge import Broken
from tests.support.simulation.plan import (
    MILLISECOND,
    SECOND,
    BodyPlan,
    Call,
    Fault,
    FaultKind,
    Plan,
    ProcessPlan,
    Settings,
    Try,
)
from tests.support.simulation.seed_search import broken_by

from oncekey.core import attempt_flow, state_machine, step_flow
from oncekey.core.policy import PolicyTimes

SEEDS = 1_000
LEASE = 200 * MILLISECOND


def first_broken(code: CodeUnderTest = REAL) -> Broken:
    """What the first world breaks that breaks anything."""
    found = next(filter(None, (broken_by(draw(seed), code) for seed in range(SEEDS))), None)
    assert found is not None, "it survived"
    return found


def test_a_late_intent_that_undoes_a_finished_step_is_found() -> None:
    edit = Edit(
        "if any(step.name == command.name and step.done for step in record.steps):", "if 0:"
    )
    copy = mutated(state_machine, edit)
    mutant = Mutant("", "", state_machine, (edit,), "", "")
    broken = first_broken(code_of(mutant, copy))
    assert broken.invariant == "I4"
    assert "undoes its result" in broken.what


def test_a_step_that_is_called_without_its_intent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    forgets = mutated(
        step_flow, Edit("refused = yield from save(intended, deadline)", "refused = None")
    )
    monkeypatch.setattr(step_task, "step", forgets.step)
    broken = first_broken()
    assert broken.invariant == "I1"
    assert "whose intent is not stored" in broken.what


def test_a_body_that_begins_after_its_deadline_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_task, "starts_too_late", lambda grant, now: False)
    broken = first_broken()
    assert broken.invariant == "I5"
    assert "begins after its own deadline" in broken.what


# --- grace --------------------------------------------------------------------------------------


def _owner_wakes_within_the_grace() -> Plan:
    """An owner that does not look at its claim is silent for longer than its lease. Another caller
    asks `recover`, which sees no effect; then the owner wakes, and acts within the grace."""
    times = PolicyTimes(LEASE, 60 * SECOND, 0, 0, retry_safe=False, recover_grace=LEASE)
    settings = Settings(times, recoverable=True, registered=False)
    careless = BodyPlan(LEASE // 2, 0, True, MILLISECOND, BodyEnding.RETURNED, careful=False)
    retries = tuple(Try(20 * MILLISECOND, 1) for _ in range(8))
    return Plan(
        seed=1,
        settings=(settings, settings),
        processes=(ProcessPlan(0, 0, False), ProcessPlan(0, 0, False)),
        calls=(
            Call(0, 0, 0, 0, careless, (Try(0, 0),)),
            Call(1, LEASE + 20 * MILLISECOND, 0, 0, careless, retries),
        ),
        faults=(Fault(0, FaultKind.PAUSE, 20 * MILLISECOND, lasts=2 * LEASE - 40 * MILLISECOND),),
        patience=100 * MILLISECOND,
        spread=MILLISECOND,
    )


def test_nothing_happened_is_not_believed_while_the_silent_owner_may_act() -> None:
    assert broken_by(_owner_wakes_within_the_grace()) is None


def test_a_grace_that_is_ignored_is_found() -> None:
    edit = Edit("grace = times.recover_grace", "grace = 0")
    mutant = Mutant("", "", attempt_flow, (edit,), "", "")
    broken = broken_by(
        _owner_wakes_within_the_grace(), code_of(mutant, mutated(attempt_flow, edit))
    )
    assert broken is not None
    assert broken.invariant == "I1"
