"""An etcd cluster loses its leader, a member or its majority under load (I1, I3, I4).

Nothing that was acknowledged is lost, no body runs twice, and the callers go on by themselves. A
partition is made by the proxies between the members, so the minority is alive and its clients
reach it, but it can commit nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.fault.effect_load import EffectLoad
from tests.fault.store_load import LEASE, StoreLoad, lost
from tests.support.servers import EtcdCluster, require

from oncekey.core.commands import Claim
from oncekey.core.errors import StoreUnavailable
from oncekey.core.guarantees import Level
from oncekey.engine.store_urls import blocking_store

KILL_EVERY_SECONDS = 5.0
KEYS = 60


def report(line: str) -> None:
    """Print a line, which `pytest -s` shows."""
    sys.stdout.write(f"\n{line}\n")


@pytest.fixture(scope="module")
def cluster() -> Iterator[EtcdCluster]:
    with require(EtcdCluster) as running:
        yield running


class Loads:
    """Callers of the store and callers of the engine on one cluster."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.commands = StoreLoad(url, url, threads=2, tasks=2)
        self.effects = EffectLoad(url, pairs=2, prefix=name)

    def wait_for(self, more: int) -> None:
        self.commands.wait_for(more)
        self.effects.wait_for(more)

    def check(self, name: str) -> None:
        """Check everything that was acknowledged, when the loads are over."""
        assert self.commands.wrong_replies == []
        store = blocking_store(self.url)
        assert lost(store, self.commands.acknowledged) == []
        store.close()
        finishes = len(self.commands.finished)
        report(f"{name}: {finishes} finishes acknowledged, 0 lost; {self.effects.summary()}")
        assert self.effects.violations() == []
        assert finishes > KEYS // 2


@contextmanager
def under_load(cluster: EtcdCluster, name: str) -> Iterator[Loads]:
    loads = Loads(cluster.url(name.replace(" ", "-")), name)
    with loads.commands, loads.effects:
        loads.wait_for(KEYS)
        yield loads
        loads.wait_for(KEYS)  # the callers go on by themselves
    loads.check(name)
    assert loads.commands.sync_store.guarantee.level is not Level.BEST_EFFORT


@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=pytest.mark.soak)])
def test_i4_killed_leaders_lose_nothing_acknowledged_and_no_body_runs_twice(
    kills: int, cluster: EtcdCluster
) -> None:
    with under_load(cluster, f"{kills} killed leaders") as loads:
        for number in range(kills):
            if number:
                time.sleep(KILL_EVERY_SECONDS)
            leader = cluster.leader()
            leader.kill()
            loads.wait_for(KEYS // 3)  # the others have a leader
            leader.start()
    report(f"{kills} leaders killed")


@pytest.mark.parametrize("role", ["leader", pytest.param("follower", marks=pytest.mark.soak)])
def test_i4_a_paused_member_loses_nothing_and_no_body_runs_twice(
    role: str, cluster: EtcdCluster
) -> None:
    member = cluster.leader() if role == "leader" else cluster.follower()
    with under_load(cluster, f"paused {role}") as loads:
        member.pause()
        try:
            loads.wait_for(KEYS // 3)
        finally:
            member.resume()
    cluster.wait_until_whole()


def test_i4_a_leader_in_the_minority_acknowledges_nothing(cluster: EtcdCluster) -> None:
    cluster.wait_until_whole()
    leader = cluster.leader()
    with under_load(cluster, "minority") as loads:
        cluster.isolate(leader)
        try:
            minority = blocking_store(f"etcd://{leader.address}/minority")
            with pytest.raises(StoreUnavailable):
                minority.apply([claim()])
            loads.wait_for(KEYS // 3)  # the majority serves
        finally:
            cluster.heal()
        minority.close()
    cluster.wait_until_whole()


def claim() -> Claim:
    return Claim(os.urandom(16), os.urandom(16), b"\x01f", LEASE, LEASE, 0, retry_safe=False)
