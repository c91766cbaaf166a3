"""Every interleaving and crash point of the real flow on the real machine."""

from __future__ import annotations

import ast
import inspect
import random
from collections import Counter
from dataclasses import replace
from functools import cache
from types import ModuleType

import pytest
from tests.support.explorer.code_under_test import REAL
from tests.support.explorer.generator_states import AnyFlow, GeneratorState, asked
from tests.support.explorer.process import Process
from tests.support.explorer.scenario import Actor, Scenario
from tests.support.explorer.scenarios import MUST_MEET, SCENARIOS
from tests.support.explorer.search import Report, explore
from tests.support.explorer.world import World

from oncekey.core import attempt_flow, heartbeat_flow

STATES_MIN = 100_000


@cache
def explored(name: str) -> Report:
    return explore(next(scenario for scenario in SCENARIOS if scenario.name == name))


@pytest.mark.parametrize("name", [scenario.name for scenario in SCENARIOS])
def test_no_promise_is_broken(name: str, said: list[str]) -> None:
    report = explored(name)
    said.append(str(report))
    assert report.violation is None, f"\n{report.violation}"


def test_it_goes_through_enough_states(said: list[str]) -> None:
    reports = [explored(scenario.name) for scenario in SCENARIOS]
    total = Report(
        "in all",
        sum(report.states for report in reports),
        sum(report.transitions for report in reports),
        sum(report.seconds for report in reports),
        Counter(),
        None,
    )
    said.append(str(total))
    assert total.states >= STATES_MIN


def test_it_meets_every_kind_of_action() -> None:
    met: Counter[str] = Counter()
    for scenario in SCENARIOS:
        met += explored(scenario.name).kinds
    assert MUST_MEET - met.keys() == set()


def test_three_attempts_at_least_and_each_with_calls_that_take_time() -> None:
    three = [s for s in SCENARIOS if len(s.actors) >= 3]
    assert len(three) >= len(SCENARIOS) - 1
    assert any(not any(actor.quick for actor in scenario.actors) for scenario in three)


# --- the explorer itself -------------------------------------------------------------------------


def test_equal_frames_behave_alike() -> None:
    """Walk generators beside the places they were merged into: they must effect for the same."""
    scenario = Scenario(
        "walk",
        (Actor("A", recoverable=True, wait=1, beats=2), Actor("B", retry_safe=True, quick=True)),
        ticks=2,
        losses=3,
    )
    world = World(scenario, REAL)
    first = _visit(world, 60_000)
    walks = random.Random(1)
    transitions = 0
    for _ in range(3_000):
        actor = scenario.actors[0]
        assert first.main is not None
        transitions += _walk(walks, REAL.attempt(actor.task), first.main.state)
    assert transitions > 15_000


def _visit(world: World, limit: int) -> Process:
    """Go through some states, so that the interned of places fills; the first process as it began."""
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
    """A random way through the places, with a real generator alongside; how many transitions."""
    effect = next(live)
    transitions = 0
    while True:
        assert asked(effect) == asked(state.effect)
        edges = state.edges()
        if not edges:
            return transitions
        further = [edge for edge in edges if edge[1].effect is not None]
        answer, state = walks.choice(further if further and walks.random() < 0.9 else edges)
        transitions += 1
        try:
            effect = live.send(answer)
        except StopIteration as stop:
            returned = repr(stop.value)
        else:
            continue
        assert state.effect is None
        assert returned == repr(state.value)
        return transitions


@pytest.mark.parametrize("module", [attempt_flow, heartbeat_flow])
def test_the_flow_keeps_nothing_on_the_stack_while_it_waits(module: ModuleType) -> None:
    """What a frame holds is read off its variables, so a yield must stand alone (liveness.py)."""
    tree = ast.parse(inspect.getsource(module))
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    yields = [node for node in ast.walk(tree) if isinstance(node, (ast.Yield, ast.YieldFrom))]
    assert yields
    for node in yields:
        parent = parents[node]
        if isinstance(parent, ast.BoolOp):  # its first operand is off the stack by then
            assert parent.values[-1] is node
            parent = parents[parent]
        assert isinstance(parent, (ast.Expr, ast.Assign, ast.Return)), ast.unparse(parent)


def test_a_counter_example_is_told_in_words() -> None:
    greedy = replace(REAL, is_garbage=lambda record, now: True)
    report = explore(Scenario("said", (Actor("A"),), ticks=1), greedy)
    assert report.violation is not None
    said = str(report.violation)
    assert said.startswith("I12 is broken: swept a live claim: A holds fence 100 until 120")
    assert "  1. A sends claim\n  2. store, on A's claim: claimed, fence 100;" in said
    assert said.endswith("  3. the sweeper removes: A holds fence 100 until 120")
