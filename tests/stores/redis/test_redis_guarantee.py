"""The label of a Redis or Valkey server follows from what the server says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from oncekey.core.guarantees import ClockClass, Level
from oncekey.stores.redis.durability import (
    CLUSTER,
    SENTINEL,
    Server,
    guarantee,
    parse_config,
    parse_info,
    parse_server,
    refusal,
    weakest,
)

INFO = """\
# Server
redis_version:7.2.4
server_name:valkey
valkey_version:9.1.2
server_mode:standalone

# Memory
maxmemory:0
maxmemory_policy:noeviction

# Persistence
aof_enabled:1
aof_last_write_status:ok

# Stats
evicted_keys:0

# Replication
role:master
connected_slaves:0

# Cluster
cluster_enabled:0
"""
CONFIG = {"appendfsync": "always", "no-appendfsync-on-rewrite": "no"}


def server(mode: str = "", config: dict[str, str] | None = CONFIG, **fields: Any) -> Server:
    return parse_server({**parse_info(INFO), **fields}, config, mode=mode)


def test_a_single_node_that_syncs_every_write_is_durable() -> None:
    found = guarantee(server())
    assert (found.level, found.clock) == (Level.FENCED, ClockClass.SERVER)
    assert "durable on one node" in found.reason
    assert refusal(server()) == ""


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"aof_enabled": "0"}, "appendonly is off"),
        ({"config": {**CONFIG, "appendfsync": "everysec"}}, "appendfsync is everysec"),
        ({"config": {**CONFIG, "appendfsync": "no"}}, "appendfsync is no"),
        ({"config": {**CONFIG, "no-appendfsync-on-rewrite": "yes"}}, "on-rewrite is yes"),
        ({"config": None}, "cannot tell"),
        ({"config": {}}, "cannot tell"),
        ({"connected_slaves": "1"}, "an asynchronous replica is attached"),
        ({"mode": SENTINEL}, "Sentinel promotes replicas"),
        ({"mode": CLUSTER, "connected_slaves": "1"}, "an asynchronous replica is attached"),
        ({"role": "slave"}, "is a replica"),
        ({"aof_last_write_status": "err"}, "last write to its append-only file failed"),
        ({"maxmemory": "1000", "maxmemory_policy": "volatile-ttl"}, "volatile-ttl"),
        ({"maxmemory_policy": ""}, "does not say whether it evicts"),
    ],
)
def test_whatever_can_lose_an_acknowledged_write_is_best_effort(
    changed: dict[str, Any], said: str
) -> None:
    found = guarantee(server(**changed))
    assert found.level is Level.BEST_EFFORT
    assert said in found.reason


def test_replicas_that_are_never_promoted_take_nothing_back() -> None:
    assert guarantee(server(connected_slaves="2"), "never").level is Level.FENCED
    assert guarantee(server(aof_enabled="0"), "never").level is Level.BEST_EFFORT
    watched = server(mode=SENTINEL, connected_slaves="2")
    assert guarantee(watched, "never").level is Level.BEST_EFFORT, "promoting is what it is for"


def test_a_cluster_without_replicas_is_durable_where_the_key_is() -> None:
    found = guarantee(weakest([server(cluster_enabled="1")] * 3))
    assert found.level is Level.FENCED
    assert "the one node that has the key" in found.reason


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "volatile-ttl", "eviction"])
def test_a_server_that_evicts_is_refused(policy: str) -> None:
    """An ended record has an expiry, so the volatile policies delete it too."""
    evicting = server(maxmemory="1000", maxmemory_policy=policy)
    assert policy in refusal(evicting)
    assert "noeviction" in refusal(evicting)
    unlimited = server(maxmemory="0", maxmemory_policy=policy)
    assert (refusal(unlimited), unlimited.evicts) == ("", False)
    assert refusal(server(maxmemory="1000")) == ""


@pytest.mark.parametrize(
    ("version", "is_old"), [("6.2.14", True), ("7.0.0", False), ("8.2.3", False), ("", False)]
)
def test_a_redis_without_script_flags_is_refused(version: str, is_old: bool) -> None:
    old = server(valkey_version="", redis_version=version)
    assert old.product == "Redis"
    assert bool(refusal(old)) is is_old
    assert not is_old or "Redis 6.2.14 is too old" in refusal(old)


def test_a_valkey_is_judged_by_its_own_version() -> None:
    """It reports redis_version 7.2.4 for ever."""
    assert (server().name, refusal(server())) == ("Valkey 9.1.2", "")


def test_a_server_without_scripts_is_refused() -> None:
    without = parse_server(parse_info(INFO), CONFIG, has_scripts=False)
    assert "load its module lua" in refusal(without)


@pytest.mark.parametrize(
    "fault",
    [
        {"aof_enabled": "0"},
        {"config": {"appendfsync": "everysec"}},
        {"config": None},
        {"connected_slaves": "1"},
        {"role": "slave"},
        {"maxmemory": "9", "maxmemory_policy": "allkeys-lru"},
        {"maxmemory_policy": ""},
        {"aof_last_write_status": "err"},
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_weak_node_makes_a_cluster_weak(fault: dict[str, Any], place: int) -> None:
    nodes = [server(cluster_enabled="1") for _ in range(3)]
    nodes[place] = server(cluster_enabled="1", **fault)
    together = weakest(nodes)
    assert guarantee(together).reason == guarantee(nodes[place]).reason
    assert guarantee(together).level is Level.BEST_EFFORT
    assert refusal(together) == refusal(nodes[place])


def test_one_old_node_makes_a_cluster_old() -> None:
    old = server(valkey_version="", redis_version="6.2.14")
    assert "6.2.14" in refusal(weakest([server(), old, server()]))


def test_replies_of_both_protocols_and_of_clients_that_decode_are_read() -> None:
    flat = [b"appendfsync", b"always", b"no-appendfsync-on-rewrite", b"no"]
    assert parse_config(flat) == parse_config({b"appendfsync": b"always", **CONFIG}) == CONFIG
    decoded = {**parse_info(INFO.encode()), "aof_enabled": 1, "connected_slaves": 2, "maxmemory": 5}
    found = parse_server(decoded, flat_config := parse_config(flat))
    assert flat_config["appendfsync"] == "always"
    assert (found.aof, found.replicas, found.maxmemory) == (True, 2, 5)
