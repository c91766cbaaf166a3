"""The sets of cases that `make test` runs cover what they say, and name tests that exist."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.covering_sets import SERVER_TESTS, THINNED, covering

ROOT = Path(__file__).parents[2]
PRODUCT = [(values, values) for values in itertools.product("abc", "12", "xyz")]


def combinations(cases: Sequence[tuple[str, ...]], strength: int) -> set[object]:
    return {
        chosen for case in cases for chosen in itertools.combinations(enumerate(case), strength)
    }


@pytest.mark.parametrize(("strength", "most"), [(1, 3), (2, 9), (3, 18)])
def test_a_covering_set_has_every_combination_and_few_cases(strength: int, most: int) -> None:
    chosen = covering(PRODUCT, strength)
    whole = [case for case, _ in PRODUCT]
    assert combinations(chosen, strength) == combinations(whole, strength)
    assert len(chosen) <= most


@pytest.mark.parametrize("name", [*THINNED, *SERVER_TESTS, *sorted(set(SERVER_TESTS.values()))])
def test_a_test_that_is_named_exists(name: str) -> None:
    file, _, test = name.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    if not test:
        return
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert test.rpartition("::")[2] in functions
