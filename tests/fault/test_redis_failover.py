"""A master of a Cluster or under Sentinels is killed under load, and a replica takes its place.

Replicas follow asynchronously, so what a replica had not received is lost, though it was
acknowledged: the tests count it, and the guarantee had said "best effort" before. The callers find
the new master by themselves. A replica that lags is paused, and what lies between it and the master
is filled up first, so that nothing more reaches it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator

import pytest
from tests.fault.store_load import StoreLoad, lost
from tests.support.servers import RedisCluster, RedisSentinel, RedisServer, require
from tests.support.servers.redis_server import DURABLE

from oncekey.core.guarantees import Level
from oncekey.engine.store_urls import blocking_store

KEYS = 300
FILLER_BYTES = 1_000_000
FILLERS = 24  # more than the kernel holds back for a receiver that does not read


def report(line: str) -> None:
    """Print a line, which `pytest -s` shows."""
    sys.stdout.write(f"\n{line}\n")


def fill(master: RedisServer, is_here: Callable[[str], bool]) -> None:
    """Fill the connection to a paused replica by writes of a key that this master has."""
    key = next(name for name in map(str, range(10_000)) if is_here(name))
    with master.client() as client:
        for _ in range(FILLERS):
            client.set(key, bytes(FILLER_BYTES))
        client.delete(key)


def check_after_failover(load: StoreLoad, url: str, name: str) -> list[str]:
    """Print and return what the new master lacks."""
    store = blocking_store(url)
    missing = lost(store, dict(load.acknowledged))
    store.close()
    report(
        f"{name}: {len(missing)} of {len(load.acknowledged)} acknowledged are lost, "
        f"{len(load.wrong_replies)} owners were refused"
    )
    return missing


@pytest.fixture
def tidy() -> Iterator[None]:
    yield
    gc.collect()


LAG = [True, pytest.param(False, marks=pytest.mark.soak)]


@pytest.mark.parametrize("lags", LAG)
def test_a_killed_master_of_a_cluster_loses_what_its_replica_lacks(lags: bool) -> None:
    with require(lambda: RedisCluster(3, replicas=1, settings=DURABLE)) as cluster:
        with StoreLoad(cluster.url(), cluster.url()) as load:
            load.wait_for(KEYS)
            levels = load.sync_store.guarantee.level, load.async_store.guarantee.level
            assert levels == (Level.BEST_EFFORT, Level.BEST_EFFORT)
            master = cluster.masters()[0]
            (replica,) = cluster.replicas_of(master)
            if lags:
                replica.pause()
                fill(master, lambda key: cluster.master_of(key) is master)
                load.wait_for(KEYS)
            master.kill()
            if lags:
                replica.resume()
            assert cluster.wait_for_replacement(master) is replica
            load.wait_for(KEYS)  # the callers have found the new master by themselves
        missing = check_after_failover(load, cluster.url(), "Cluster")
    assert bool(missing) or not lags


# A store that is closed closes its connections to Sentinels too. `tidy` collects garbage, so that
# the warning about one that it forgets is this test's and not another one's.
@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("lags", LAG)
def test_a_killed_master_under_sentinels_loses_what_its_replica_lacks(lags: bool) -> None:
    with require(lambda: RedisSentinel(settings=DURABLE)) as watched:
        with StoreLoad(watched.url(), watched.url()) as load:
            load.wait_for(KEYS)
            levels = load.sync_store.guarantee.level, load.async_store.guarantee.level
            assert levels == (Level.BEST_EFFORT, Level.BEST_EFFORT)
            master = watched.master()
            (replica,) = (node for node in watched.nodes if node is not master)
            if lags:
                replica.pause()
                fill(master, lambda key: True)
                load.wait_for(KEYS)
            master.kill()
            if lags:
                replica.resume()
            assert watched.wait_for_replacement(master) is replica
            load.wait_for(KEYS)
        missing = check_after_failover(load, watched.url(), "Sentinel")
    assert bool(missing) or not lags
