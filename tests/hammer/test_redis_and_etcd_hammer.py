"""The hammer on Valkey, a Valkey Cluster, Redis and etcd (I1-I7, I9, I12).

It runs some rounds; `make hammer-stores` runs a minute with 32 processes. The lease is that of the
store: etcd's are whole seconds, two at the least, so that a short run sees few takeovers. It judges
safety alone, and prints what it did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.hammer.hammer_runs import LONG, ROUNDS_SECONDS_MAX, SHORT, caught_at, run_safely
from tests.support import redis_stores
from tests.support.etcd_stores import etcd
from tests.support.hammer import HammerPlan
from tests.support.hammer.saboteurs import CAUGHT_AT

LONG_SECONDS = 60.0
LONG_PROCESSES = 32


@dataclass(frozen=True)
class Hammered:
    """A store, and the plan of a short run."""

    url: Callable[[str], str]
    plan: dict[str, Any]


# Leases of 2 s: keys are held for long, so there are more keys.
SLOW: dict[str, Any] = {"lease": 2_000_000, "keep": 1_000_000, "audit": 500_000, "keys": 60}


def _with_prefix(server: Callable[[], Any]) -> Callable[[str], str]:
    return lambda name: f"{server().url()}?prefix={name}"


STORES = {
    "valkey": Hammered(_with_prefix(redis_stores.valkey), {"rounds": 40, "processes": 8}),
    "valkey-cluster": Hammered(
        _with_prefix(redis_stores.valkey_cluster), {"rounds": 25, "processes": 6}
    ),
    "redis": Hammered(_with_prefix(redis_stores.redis), {"rounds": 25, "processes": 6}),
    "etcd": Hammered(lambda name: etcd().url(name), {"rounds": 10, "processes": 8, **SLOW}),
}


def plan_of(name: str, prefix: str, seed: int, **changes: Any) -> HammerPlan:
    store = STORES[name]
    plan = HammerPlan(store.url(prefix), seconds=ROUNDS_SECONDS_MAX, seed=seed, **store.plan)
    return replace(plan, **changes)


@pytest.mark.seeded
@pytest.mark.parametrize("is_long", [SHORT, LONG])
@pytest.mark.parametrize("name", STORES)
def test_the_hammer_finds_no_violation_on(
    name: str, is_long: bool, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(name, f"hammer-{'long' if is_long else 'short'}", seed)
    if is_long:
        plan = replace(plan, seconds=LONG_SECONDS, processes=LONG_PROCESSES, rounds=0)
    assert run_safely(name, plan, capsys)["claims"]


@pytest.mark.soak
@pytest.mark.seeded
@pytest.mark.parametrize("sabotage", CAUGHT_AT)
@pytest.mark.parametrize("name", ["valkey", "etcd"])
def test_the_hammer_finds_a_broken_store_on(name: str, sabotage: str, seed: int) -> None:
    def plan(run: int) -> HammerPlan:
        prefix, some = f"{sabotage}-{run}", {"processes": 8, "keys": 12, "rounds": 0}
        broken = plan_of(name, prefix, seed + run, sabotage=sabotage, **some)
        if name == "etcd":
            return replace(broken, seconds=20.0)
        # A lease that lasts longer than a busy machine takes for a command.
        return replace(broken, seconds=1.5, lease=100_000, audit=30_000)

    assert caught_at(CAUGHT_AT[sabotage], plan)
