"""The search through every state that a scenario can reach, breadth first.

So the first violation found is one with the shortest way to it. Owns the search, the counts and the
counter-example; what can happen is in world.py.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.explorer.code_under_test import REAL, CodeUnderTest
from tests.support.explorer.scenario import Scenario
from tests.support.explorer.world import BrokenInvariant, Transition, World, WorldState

STATES_MAX = 1_000_000
PROGRESS_EVERY = 20_000
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Violation:
    """A broken invariant and the way to it."""

    invariant: str
    what: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        transitions = "\n".join(f"{n:3}. {words}" for n, words in enumerate(self.trace, 1))
        return f"{self.invariant} is broken: {self.what}\n{transitions}"


@dataclass(frozen=True)
class Report:
    """What an exploration saw."""

    scenario: str
    states: int
    transitions: int
    seconds: float
    kinds: Counter[str]
    violation: Violation | None

    def __str__(self) -> str:
        pace = self.states / self.seconds if self.seconds else 0
        return (
            f"{self.scenario:<34} {self.states:>9,} states {self.transitions:>10,} transitions "
            f"{self.seconds:6.1f} s {pace:>8,.0f}/s"
        )


def explore(
    scenario: Scenario, code: CodeUnderTest = REAL, progress: Progress | None = None
) -> Report:
    """Visit every reachable state, or stop at the first violation."""
    began = time.perf_counter()
    world = World(scenario, code)
    start = world.start()
    came_from: dict[WorldState, WorldState | None] = {start: None}
    queue = deque([start])
    kinds: Counter[str] = Counter()
    transitions = reported = 0
    violation = None
    while queue and violation is None:
        state = queue.popleft()
        for step in world.transitions(state):
            transitions += 1
            kinds[step.kind] += 1
            broken = step.broken
            if broken is None and step.after not in came_from:
                came_from[step.after] = state
                queue.append(step.after)
                broken = world.check(step.after)
            if broken is not None:
                violation = _violation(world, came_from, state, step, broken)
                break
        if len(came_from) > STATES_MAX:
            raise RuntimeError(f"{scenario.name}: more than {STATES_MAX:,} states; bound it more")
        if progress is not None and len(came_from) >= reported + PROGRESS_EVERY:
            reported = len(came_from)
            progress(reported)
    seconds = time.perf_counter() - began
    return Report(scenario.name, len(came_from), transitions, seconds, kinds, violation)


def _violation(
    world: World,
    came_from: dict[WorldState, WorldState | None],
    state: WorldState,
    last: Transition,
    broken: BrokenInvariant,
) -> Violation:
    """A violation with the way to it from the start, as text."""
    words = [last.words]
    child = state
    parent = came_from[child]
    while parent is not None:
        words.append(next(step.words for step in world.transitions(parent) if step.after == child))
        child, parent = parent, came_from[parent]
    return Violation(broken.invariant, broken.what, tuple(reversed(words)))
