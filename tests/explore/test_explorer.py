"""Every interleaving and every crash of the real flows on the real state machine."""

from __future__ import annotations

import ast
import inspect
import os
import random
from collections import Counter
from dataclasses import replace
from functools import cache
from types import ModuleType

import pytest
from tests.support.explorer.code_under_test import REAL
from tests.support.explorer.generator_states import AnyFlow, GeneratorState, effect_text
from tests.support.explorer.process import Process
from tests.support.explorer.scenario import Actor, Scenario
from tests.support.explorer.scenarios import LONG_SCENARIOS, MUST_MEET
from tests.support.explorer.scenarios import SCENARIOS as SHORT_SCENARIOS
from tests.support.explorer.search import Report, explore
from tests.support.explorer.world import World

from oncekey.core import attempt_flow, heartbeat_flow, late_owner, recovery, step_flow

SCENARIOS = SHORT_SCENARIOS + (LONG_SCENARIOS if os.environ.get("ONCEKEY_SOAK") else ())
STATES_MIN = 100_000
FLOWS = [attempt_flow, heartbeat_flow, late_owner, recovery, step_flow]


@cache
def explored(name: str) -> Report:
    return explore(next(scenario for scenario in SCENARIOS if scenario.name == name))


@pytest.mark.parametrize("name", [scenario.name for scenario in SCENARIOS])
def test_no_state_of_a_scenario_breaks_an_invariant(name: str, summary: list[str]) -> None:
    report = explored(name)
    summary.append(str(report))
    assert report.violation is None, f"\n{report.violation}"


def test_the_scenarios_have_enough_states(summary: list[str]) -> None:
    reports = [explored(scenario.name) for scenario in SCENARIOS]
    total = Report(
        "in all",
        sum(report.states for report in reports),
        sum(report.transitions for report in reports),
        sum(report.seconds for report in reports),
        Counter(),
        None,
    )
    summary.append(str(total))
    assert total.states >= STATES_MIN


def test_the_scenarios_meet_every_kind_of_action() -> None:
    met: Counter[str] = Counter()
    for scenario in SCENARIOS:
        met += explored(scenario.name).kinds
    assert MUST_MEET - met.keys() == set()


def test_scenarios_have_three_attempts_and_some_have_only_slow_calls() -> None:
    three = [s for s in SCENARIOS if len(s.actors) >= 3]
    assert len(three) >= len(SCENARIOS) - 1
    assert any(not any(actor.quick for actor in scenario.actors) for scenario in three)


# --- the explorer itself -------------------------------------------------------------------------


def test_generators_in_equal_states_behave_alike() -> None:
    """Drive generators beside the states they were merged into: both must yield the same."""
    scenario = Scenario(
        "walk",
        (Actor("A", recoverable=True, wait=1, beats=2), Actor("B", retry_safe=True, quick=True)),
        ticks=2,
        losses=3,
    )
    world = World(scenario, REAL)
    first = _visit(world, 60_000)
    walks = random.Random(1)
    steps = 0
    for _ in range(3_000):
        actor = scenario.actors[0]
        assert first.main is not None
        steps += _walk(
            walks, REAL.attempt(actor.claim, actor.times, actor.recoverable), first.main.state
        )
    assert steps > 15_000


def _visit(world: World, limit: int) -> Process:
    """Visit some states, which finds generator states; returns the first process at its start."""
    start = world.start()
    seen = {start}
    queue = [start]
    for state in queue:
        for step in world.transitions(state):
            if step.after not in seen and len(seen) < limit:
                seen.add(step.after)
                queue.append(step.after)
    return start.processes[0]


def _walk(walks: random.Random, live: AnyFlow, state: GeneratorState) -> int:
    """A random way through the states, with a real generator alongside; how many steps."""
    effect = next(live)
    steps = 0
    while True:
        assert effect_text(effect) == effect_text(state.effect)
        edges = state.edges()
        if not edges:
            return steps
        further = [edge for edge in edges if edge[1].effect is not None]
        result, state = walks.choice(further if further and walks.random() < 0.9 else edges)
        steps += 1
        try:
            effect = live.send(result)
        except StopIteration as stop:
            returned = repr(stop.value)
        else:
            continue
        assert state.effect is None
        assert returned == repr(state.value)
        return steps


@pytest.mark.parametrize("module", FLOWS)
def test_a_flow_keeps_nothing_on_the_stack_while_it_waits(module: ModuleType) -> None:
    """What a frame holds is read from its variables, so a yield must stand alone, see
    live_variables.py."""
    tree = ast.parse(inspect.getsource(module))
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    yields = [node for node in ast.walk(tree) if isinstance(node, (ast.Yield, ast.YieldFrom))]
    assert yields
    for node in yields:
        parent = parents[node]
        if isinstance(parent, ast.BoolOp):  # its first operand has left the stack
            assert parent.values[-1] is node
            parent = parents[parent]
        statements = (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return)
        assert isinstance(parent, statements), ast.unparse(parent)


def test_a_violation_prints_the_way_to_it() -> None:
    greedy = replace(REAL, is_garbage=lambda record, now: True)
    report = explore(Scenario("greedy sweeper", (Actor("A"),), ticks=1), greedy)
    assert report.violation is not None
    text = str(report.violation)
    assert text.startswith("I12 is broken: swept a live claim: A holds fence 100 until 120")
    assert "  1. A sends claim\n  2. store, on A's claim: claimed, fence 100;" in text
    assert text.endswith("  3. the sweeper removes: A holds fence 100 until 120")
