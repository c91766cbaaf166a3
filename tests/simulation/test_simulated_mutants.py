"""The simulation finds every seeded bug of the core, for the invariant that it breaks.

The table of all tools and all mutants is made by `make mutants`.
"""

from __future__ import annotations

import pytest
from tests.support.explorer.mutation import mutated
from tests.support.mutants.core_mutants import MUTANTS, Mutant
from tests.support.mutants.explorer_tool import code_of
from tests.support.simulation.drawn_plan import draw
from tests.support.simulation.seed_search import broken_by

from oncekey.stores.sqlite import program

SEEDS = 1_000
IN_CORE = [mutant for mutant in MUTANTS if mutant.module is not program]


@pytest.mark.parametrize("mutant", IN_CORE, ids=lambda mutant: f"{mutant.number} {mutant.name}")
def test_a_mutant_of_the_core_is_found_for_what_it_breaks(mutant: Mutant) -> None:
    code = code_of(mutant, mutated(mutant.module, *mutant.edits))
    broken = next(filter(None, (broken_by(draw(seed), code) for seed in range(SEEDS))), None)
    assert broken is not None, "it survived"
    assert broken.invariant == mutant.breaks, broken.what


def test_nine_of_the_twelve_are_in_the_core() -> None:
    numbers = {mutant.number for mutant in IN_CORE}
    assert numbers == {"m1", "m2", "m4", "m6", "m7", "m8", "m9", "m10", "m12"}
