"""Whether the simulation catches a mutant: the first seed whose world breaks an invariant."""

from __future__ import annotations

from tests.support.explorer.mutation import mutated
from tests.support.mutants.core_mutants import Mutant
from tests.support.mutants.explorer_tool import code_of
from tests.support.mutants.sql_mutants import SQLMutant
from tests.support.simulation.drawn_plan import draw
from tests.support.simulation.judge import Broken
from tests.support.simulation.seed_search import broken_by

from oncekey.stores.sqlite import program

SEEDS = 3_000


def is_simulated(mutant: Mutant | SQLMutant) -> bool:
    """True if the bug is in the code that the simulation runs: it has no statements of a store."""
    return isinstance(mutant, Mutant) and mutant.module is not program


def simulate_mutant(mutant: Mutant, seeds: int = SEEDS) -> tuple[int, Broken] | None:
    """The first seed whose world breaks an invariant, and what it breaks."""
    code = code_of(mutant, mutated(mutant.module, *mutant.edits))
    for seed in range(seeds):
        broken = broken_by(draw(seed), code)
        if broken is not None:
            return seed, broken
    return None
