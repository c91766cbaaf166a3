"""Moving a key between two stores: every order of the processes' commands, and every crash."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import pytest
from tests.support.explorer.move_scenarios import (
    ALWAYS,
    BEHIND,
    SOAK,
    beside_new,
    beside_old,
    whole_move,
)
from tests.support.explorer.move_world import MoveScenario, explore_move
from tests.support.explorer.mutation import Edit, mutated

from oncekey.stores.move import dual_program

SCENARIOS = SOAK if os.environ.get("ONCEKEY_SOAK") else ALWAYS


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_no_order_of_commands_breaks_a_promise(scenario: MoveScenario, summary: list[str]) -> None:
    report = explore_move(scenario)
    summary.append(str(report))
    assert report.violation is None, f"\n{report.violation}"


@dataclass(frozen=True)
class Mutant:
    """A seeded bug in the rules of dual mode, where it is caught, and what it breaks."""

    name: str
    old: str
    new: str
    scenario: MoveScenario
    breaks: str


MUTANTS = (
    Mutant(
        "a finish is acknowledged after one store",
        "    second = yield Ask(NEW, command)\n    if isinstance(second, StoreUnavailable):",
        "    return first\n    second = yield Ask(NEW, command)\n"
        "    if isinstance(second, StoreUnavailable):",
        beside_new(False, 0), "I4",
    ),
    Mutant(
        "a claim asks the old store only",
        "            return (yield from _claim_in_new(command, first))",
        "            return first",
        replace(beside_new(False, 0), seen_by=()), "I1",
    ),
    Mutant(
        "a refusal asks the old store only",
        "        answer = yield from _compare_refusal(command, first)",
        "        answer = first",
        beside_new(False, 0), "I4",
    ),
    Mutant(
        "the fence is raised in the new store first",
        "    raised = yield Ask(OLD, RaiseFence(command.id, command.owner, fence, above + 1))\n",
        "    second = yield Ask(NEW, ClaimAlso(command, above + 1))\n"
        "    raised = yield Ask(OLD, RaiseFence(command.id, command.owner, fence, above + 1))\n",
        beside_old(True, BEHIND, "E"), "I4",
    ),
    Mutant(
        "an outcome is replayed that the new store did not take",
        "    return None if is_shared or side is OLD else first",
        "    return None if is_shared else first",
        beside_new(True, BEHIND, "E"), "I4",
    ),
    Mutant(
        "a late finish gives the new store somebody else's claim",
        "    if not is_mine or leading(old, new) is not OLD:",
        "    if leading(old, new) is not OLD:",
        beside_new(True, BEHIND, "E"), "I4",
    ),
)  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_seeded_bug_is_caught(mutant: Mutant) -> None:
    rules = mutated(dual_program, Edit(mutant.old, mutant.new))
    report = explore_move(mutant.scenario, rules)
    assert report.violation is not None
    assert report.violation.invariant == mutant.breaks


def test_i1_a_process_that_leaves_early_is_caught() -> None:
    """One process begins with the new store alone while another still knows the old one only."""
    scenario = whole_move(False, 0)
    early = [replace(one, after=()) if one.knows == "new" else one for one in scenario.actors]
    report = explore_move(replace(scenario, actors=tuple(early), seen_by=()))
    assert report.violation is not None
    assert report.violation.invariant == "I1"


def test_i1_a_process_that_does_not_wait_for_the_copy_is_caught() -> None:
    scenario = whole_move(False, 0)
    early = [replace(one, after=("X",)) if one.knows == "new" else one for one in scenario.actors]
    report = explore_move(replace(scenario, actors=tuple(early), seen_by=()))
    assert report.violation is not None
    assert report.violation.invariant == "I1"
