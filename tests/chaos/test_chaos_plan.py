"""The plan of a chaos run depends on its seed and options alone, and has what was asked for."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.support.chaos.chaos_plan import FAULTS, LEVELS, ChaosOptions, make_plan


def test_the_same_seed_gives_the_same_plan() -> None:
    assert make_plan(ChaosOptions(7)) == make_plan(ChaosOptions(7))
    assert make_plan(ChaosOptions(7)) != make_plan(ChaosOptions(8))


def test_more_faults_leave_the_operations_as_they_are() -> None:
    few, many = (make_plan(ChaosOptions(7, faults=count)) for count in (10, 90))
    assert few.operations == many.operations
    assert len(many.faults) == 90


def test_a_plan_has_every_level_and_every_kind_of_fault() -> None:
    plan = make_plan(ChaosOptions(7, seconds=60, faults=len(FAULTS)))
    assert Counter(fault.kind for fault in plan.faults) == dict.fromkeys(
        (kind.name for kind in FAULTS), 1
    )
    assert {operation.level for operation in plan.operations} == set(LEVELS)
    assert len({operation.key for operation in plan.operations}) == len(plan.operations)


def test_operations_and_faults_happen_within_the_run() -> None:
    plan = make_plan(ChaosOptions(7, seconds=30, faults=20))
    times = [operation.at for operation in plan.operations]
    assert times == sorted(times)
    assert times[-1] <= 30
    assert all(2 <= fault.at <= 30 for fault in plan.faults)


@pytest.mark.parametrize("kinds", [("worker killed",), ("disk full", "standby promoted")])
def test_only_the_chosen_kinds_of_faults_are_planned(kinds: tuple[str, ...]) -> None:
    plan = make_plan(ChaosOptions(7, faults=12, kinds=kinds))
    assert {fault.kind for fault in plan.faults} == set(kinds)
