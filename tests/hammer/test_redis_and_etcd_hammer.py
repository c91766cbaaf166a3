"""The hammer on Valkey, a Valkey Cluster, Redis and etcd (I1-I7, I9, I12).

It runs for seconds; with ONCEKEY_SOAK=1 (`make hammer-stores`) for a minute with 32 processes. The
lease is that of the store: etcd's are whole seconds, two at the least, so that a short run sees few
takeovers. It fails if too little happened to prove anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.hammer.hammer_runs import SOAK, caught_at, run_until_enough
from tests.hammer.test_sqlite_hammer import CAUGHT_AT
from tests.support import redis_stores
from tests.support.etcd_stores import etcd
from tests.support.hammer import HammerPlan

LONG_SECONDS = 60.0
LONG_PROCESSES = 32


@dataclass(frozen=True)
class Hammered:
    """A store, the plan of a short run, and the least that must happen in it."""

    url: Callable[[str], str]
    plan: dict[str, Any]
    least: dict[str, int]
    least_long: dict[str, int]


# Leases of 30 ms, as on the other stores.
QUICK = {
    "claims": 700,
    "grants": 100,
    "takeovers": 8,
    "give-ups": 10,
    "fenced zombies": 10,
    "lost replies": 30,
    "replays": 60,
    "mismatches": 20,
    "renewals": 8,
    "releases": 4,
    "generations": 50,
    "swept": 20,
}
SOME = {"claims": 300, "takeovers": 5, "fenced zombies": 3, "generations": 30, "replays": 30}
QUICK_LONG = {
    "claims": 30_000,
    "takeovers": 1_000,
    "fenced zombies": 500,
    "lost replies": 100,
    "generations": 3_000,
    "crashes": 20,
}
# Leases of 2 s: keys are held for long, so there are more keys.
SLOW: dict[str, Any] = {"lease": 2_000_000, "keep": 1_000_000, "audit": 500_000, "keys": 60}
SLOW_LEAST = {"claims": 300, "grants": 60, "takeovers": 2, "replays": 30, "generations": 20}
SLOW_LEAST_LONG = {"claims": 10_000, "takeovers": 100, "fenced zombies": 20, "generations": 500}


def _with_prefix(server: Callable[[], Any]) -> Callable[[str], str]:
    return lambda name: f"{server().url()}?prefix={name}"


STORES = {
    "valkey": Hammered(
        _with_prefix(redis_stores.valkey), {"seconds": 2, "processes": 10}, QUICK, QUICK_LONG
    ),
    "valkey-cluster": Hammered(
        _with_prefix(redis_stores.valkey_cluster), {"seconds": 2, "processes": 8}, SOME, QUICK_LONG
    ),
    "redis": Hammered(
        _with_prefix(redis_stores.redis), {"seconds": 1.5, "processes": 8}, SOME, QUICK_LONG
    ),
    "etcd": Hammered(
        lambda name: etcd().url(name),
        {"seconds": 5, "processes": 10, **SLOW},
        SLOW_LEAST,
        SLOW_LEAST_LONG,
    ),
}


def plan_of(name: str, run: int, **changes: Any) -> HammerPlan:
    store = STORES[name]
    plan = HammerPlan(store.url(f"hammer-{run}"), seed=run, **store.plan)
    if SOAK:
        plan = replace(plan, seconds=LONG_SECONDS, processes=LONG_PROCESSES)
    return replace(plan, **changes)


@pytest.mark.parametrize("name", STORES)
def test_the_hammer_finds_no_violation_on(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = STORES[name]
    least = store.least_long if SOAK else store.least
    counts = run_until_enough(name, lambda run: plan_of(name, run), least, capsys)
    assert counts["store errors"] == 0


@pytest.mark.parametrize("sabotage", CAUGHT_AT if SOAK else ["StealsLeases"])
@pytest.mark.parametrize("name", ["valkey", "etcd"] if SOAK else ["valkey"])
def test_the_hammer_finds_a_broken_store_on(name: str, sabotage: str) -> None:
    def plan(run: int) -> HammerPlan:
        broken = plan_of(name, run, processes=8, keys=12, sabotage=sabotage)
        broken = replace(broken, store=STORES[name].url(f"{sabotage}-{run}"))
        if name == "etcd":
            return replace(broken, seconds=20.0)
        # A lease that lasts longer than a busy machine takes for a command.
        return replace(broken, seconds=1.5, lease=100_000, audit=30_000)

    assert caught_at(CAUGHT_AT[sabotage], plan)
