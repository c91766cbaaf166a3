"""Runs the worlds of many seeds, and tells the story of the first that breaks an invariant."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.support.explorer.code_under_test import REAL, CodeUnderTest
from tests.support.simulation.drawn_plan import draw
from tests.support.simulation.judge import Broken
from tests.support.simulation.plan import Plan
from tests.support.simulation.plan_text import describe_plan
from tests.support.simulation.simulation import Simulation
from tests.support.simulation.smaller_plan import smaller

Draw = Callable[[int], Plan]


@dataclass(frozen=True)
class Violation:
    """A broken invariant: the seed that found it, and the smallest world that still shows it."""

    seed: int
    invariant: str
    what: str
    plan: Plan
    story: tuple[str, ...]

    def __str__(self) -> str:
        lines = (
            f"{self.invariant} is broken: {self.what}",
            f"seed {self.seed}; the smallest world that shows it:",
            *(f"  {line}" for line in describe_plan(self.plan)),
            "what happens in it:",
            *(f"  {line}" for line in self.story),
        )
        return "\n".join(lines)


def broken_by(plan: Plan, code: CodeUnderTest = REAL) -> Broken | None:
    """Run one world; what it breaks, if anything."""
    try:
        Simulation(plan, code).run()
    except Broken as broken:
        return broken
    return None


def find_violation(
    code: CodeUnderTest, seeds: Iterable[int], drawn: Draw = draw
) -> Violation | None:
    """Run the worlds of these seeds until one breaks an invariant; its story, made small."""
    for seed in seeds:
        plan = drawn(seed)
        broken = broken_by(plan, code)
        if broken is not None:
            return explain(plan, broken, code)
    return None


def explain(plan: Plan, broken: Broken, code: CodeUnderTest = REAL) -> Violation:
    """The violation with the smallest world that breaks the same invariant."""
    number = broken.invariant

    def still_broken(simpler: Plan) -> bool:
        found = broken_by(simpler, code)
        return found is not None and found.invariant == number

    small = smaller(plan, still_broken)
    found, story = told(small, code)
    what = found.what if found is not None else broken.what
    return Violation(plan.seed, number, what, small, tuple(story))


def told(plan: Plan, code: CodeUnderTest = REAL) -> tuple[Broken | None, list[str]]:
    """Run one world and tell its story."""
    story: list[str] = []
    try:
        Simulation(plan, code, story).run()
    except Broken as broken:
        return broken, story
    return None, story


def trace_hash(seed: int) -> str:
    """A digest of everything that happens in the world of this seed."""
    broken, story = told(draw(seed))
    text = "\n".join((*story, str(broken)))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def met_in(seeds: Iterable[int]) -> Counter[str]:
    """What happens in the worlds of these seeds, counted."""
    met: Counter[str] = Counter()
    for seed in seeds:
        Simulation(draw(seed), met=met).run()
    return met
