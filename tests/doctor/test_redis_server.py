"""Doctor names each fault of a Redis or Valkey server, of a Cluster and of Sentinels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.doctor.findings import problems

from oncekey.stores.inspection import Finding, Severity
from oncekey.stores.redis import server_checks
from oncekey.stores.redis.checkup_session import ServerReading
from oncekey.stores.redis.durability import CLUSTER, SENTINEL, parse_server
from oncekey.stores.redis.server_checks import server_findings

GOOD_INFO = {
    "redis_version": "8.2.3",
    "role": "master",
    "connected_slaves": "0",
    "connected_clients": "5",
    "maxclients": "10000",
    "maxmemory": "0",
    "maxmemory_policy": "noeviction",
    "used_memory": "1000000",
    "total_system_memory": "16000000000",
    "aof_enabled": "1",
    "aof_last_write_status": "ok",
    "latest_fork_usec": "800",
    "evicted_keys": "0",
}
GOOD_CONFIG = {
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "timeout": "0",
    "busy-reply-threshold": "5000",
}


def node(config: dict[str, str] | None = GOOD_CONFIG, mode: str = "", **info: Any) -> ServerReading:
    fields = {**GOOD_INFO, **info}
    return ServerReading("10.0.0.1:6379", parse_server(fields, config, mode=mode), fields, config)


def test_a_good_server_has_no_problems() -> None:
    assert problems(server_findings([node()])) == {}
    assert problems(server_findings([node(), node(), node()])) == {}


@pytest.mark.parametrize(
    ("fault", "check", "severity", "said"),
    [
        ({"redis_version": "6.2.14"}, "version", "broken", "Redis 6.2.14"),
        ({"role": "slave"}, "primary", "broken", "is a replica"),
        (
            {"maxmemory": "9000000", "maxmemory_policy": "allkeys-lru"},
            "eviction",
            "broken",
            "refuses to start",
        ),
        ({"maxmemory_policy": "allkeys-lru"}, "eviction", "warning", "the first limit"),
        ({"maxmemory_policy": ""}, "eviction", "warning", "does not report"),
        ({"evicted_keys": "12"}, "eviction", "warning", "12 keys were evicted"),
        ({"maxmemory": "1250000"}, "memory", "warning", "80% of maxmemory"),
        ({"maxmemory": "1000000"}, "memory", "broken", "100% of maxmemory"),
        ({"used_memory": "15900000000"}, "memory", "broken", "99% of the host's memory"),
        ({"aof_enabled": "0"}, "append-only-file", "broken", "appendonly is off"),
        (
            {"config": {**GOOD_CONFIG, "appendfsync": "everysec"}},
            "append-only-file",
            "broken",
            "appendfsync is everysec",
        ),
        ({"config": None}, "append-only-file", "broken", "cannot tell"),
        ({"rdb_last_bgsave_status": "err"}, "disk-writes", "warning", "the snapshot"),
        ({"aof_last_bgrewrite_status": "err"}, "disk-writes", "warning", "its rewrite"),
        ({"latest_fork_usec": "900000"}, "stalls", "warning", "stopped the server for 0.9 s"),
        ({"aof_delayed_fsync": "3"}, "stalls", "warning", "3 syncs"),
        ({"connected_clients": "9900"}, "connections", "warning", "9,900 of 10,000"),
        (
            {"config": {**GOOD_CONFIG, "timeout": "60"}},
            "connections",
            "warning",
            "idle for 60 s",
        ),
        (
            {"config": {**GOOD_CONFIG, "busy-reply-threshold": "50"}},
            "script-time",
            "warning",
            "after 50 ms",
        ),
    ],
)
def test_each_fault_of_a_server_is_named(
    fault: dict[str, Any], check: str, severity: str, said: str
) -> None:
    found = list(server_findings([node(**fault)]))
    assert problems(found) == {f"redis.{check}": severity}
    named = next(finding for finding in found if finding.check == f"redis.{check}")
    assert said in named.what
    assert named.mend


def test_a_failed_write_of_the_append_only_file_is_named_twice() -> None:
    """It breaks the guarantee, and the server refuses commands from then on."""
    found = problems(server_findings([node(aof_last_write_status="err")]))
    assert found == {"redis.append-only-file": "broken", "redis.disk-writes": "broken"}


def test_a_server_without_scripts_is_named() -> None:
    good = node()
    without = good._replace(server=good.server._replace(has_scripts=False))
    assert problems(server_findings([without])) == {"redis.scripts": "broken"}


def test_a_node_of_several_is_named_with_its_address() -> None:
    bad = node(aof_enabled="0")._replace(name="10.0.0.2:6379")
    found = server_checks.append_only([node(), bad, node()])
    assert found.what.startswith("10.0.0.2:6379: appendonly is off")


def test_a_script_time_that_cannot_be_read_is_no_fault() -> None:
    assert server_checks.script_time([node(config=None)]).severity is Severity.INFO


@pytest.mark.parametrize(
    ("theirs", "severity"),
    [(5_000_000, "ok"), (10_500_000, "warning"), (-1_500_000, "warning")],
)
def test_a_slow_reply_is_no_clock_skew(theirs: int, severity: str) -> None:
    found = server_checks.clock([node()._replace(clock=(theirs, 0, 9_000_000))])
    assert found.severity == severity


# --- how servers stand together -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "failover", "severity"),
    [
        ([node()], "auto", "ok"),
        ([node(connected_slaves="1")], "auto", "broken"),
        ([node(connected_slaves="1")], "never", "ok"),
        ([node(mode=SENTINEL, connected_slaves="1")], "never", "broken"),
        ([node(mode=CLUSTER), node(mode=CLUSTER)], "auto", "ok"),
        ([node(mode=CLUSTER), node(mode=CLUSTER, connected_slaves="1")], "auto", "broken"),
    ],
)
def test_whatever_can_be_promoted_is_named(
    nodes: list[ServerReading], failover: str, severity: str
) -> None:
    assert server_checks.failovers(nodes, failover).severity == severity


def sentinel(count: int, flags: str = "master", quorum: int = 2) -> Finding:
    return server_checks.sentinels(count, flags, quorum)


def tls(is_encrypted: bool, is_verified: bool, is_local: bool) -> Finding:
    return server_checks.tls(is_encrypted=is_encrypted, is_verified=is_verified, is_local=is_local)


@pytest.mark.parametrize(
    ("ask", "severity"),
    [
        (lambda: sentinel(3), "ok"),
        (lambda: sentinel(1), "warning"),
        (lambda: sentinel(3, quorum=4), "warning"),
        (lambda: sentinel(3, "master,s_down,o_down"), "broken"),
        (lambda: tls(True, True, False), "ok"),
        (lambda: tls(True, False, False), "warning"),
        (lambda: tls(False, False, False), "warning"),
        (lambda: tls(False, False, True), "ok"),
        (
            lambda: server_checks.cluster_state(
                {"cluster_state": "ok", "cluster_slots_ok": "16384"}
            ),
            "ok",
        ),
        (
            lambda: server_checks.cluster_state(
                {"cluster_state": "ok", "cluster_slots_ok": "10923"}
            ),
            "broken",
        ),
        (lambda: server_checks.cluster_state({"cluster_state": "fail"}), "broken"),
        (server_checks.cluster_by_address, "broken"),
    ],
)
def test_sentinels_clusters_and_connections_are_judged(
    ask: Callable[[], Finding], severity: str
) -> None:
    assert ask().severity == severity
