"""Which migrations are planned for a database, from those that were applied."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from oncekey.core.errors import ConfigurationError
from oncekey.stores.sql_files import Migration, plan

ONE, TWO, THREE = (Migration(n, f"m{n}", "") for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("applied", "compatible", "missing"),
    [
        ([], 0, [ONE, TWO, THREE]),
        ([1], 0, [TWO, THREE]),
        ([2, 1], 0, [THREE]),
        ([1, 2, 3], 0, []),
        ([1, 2, 3, 4], 3, []),
        ([1, 2, 3, 4, 5], 1, []),
    ],
)
def test_plan_returns_the_missing_migrations(
    applied: list[int], compatible: int, missing: Sequence[Migration]
) -> None:
    assert plan(applied, [ONE, TWO, THREE], compatible) == missing


@pytest.mark.parametrize(
    ("applied", "compatible", "said"),
    [
        ([1, 2, 3, 4], 0, "has oncekey's schema 4, this release knows up to 3"),
        ([1, 2, 3, 4], 4, "has oncekey's schema 4, this release knows up to 3"),
        ([1, 3], 0, "changed by hand"),
        ([2, 3], 0, "changed by hand"),
        ([1, 2, 4], 2, "changed by hand"),
    ],
)
def test_a_plan_for_mismatching_migrations_is_refused(
    applied: list[int], compatible: int, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        plan(applied, [ONE, TWO, THREE], compatible)
