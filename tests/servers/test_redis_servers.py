"""Valkey and Redis servers, Clusters and Sentinels start, fail and recover as tests rely on."""

from __future__ import annotations

import pytest
import redis
from tests.support import redis_stores
from tests.support.servers import ServerFailed, processes, require
from tests.support.servers.redis_cluster import RedisCluster
from tests.support.servers.redis_sentinel import RedisSentinel
from tests.support.servers.redis_server import (
    CLOCK_TOLERANCE_SECONDS,
    DURABLE,
    RedisProgram,
    RedisServer,
    redis_program,
    valkey_program,
)

PROGRAMS = {"valkey": valkey_program, "redis": redis_program}


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> RedisProgram:
    return require(PROGRAMS[request.param])


def test_a_server_starts_with_its_settings_and_leaves_nothing_behind(program: RedisProgram) -> None:
    with RedisServer(program, settings={**DURABLE, "maxmemory": "64mb"}) as server:
        assert server.execute("CONFIG", "GET", "appendfsync") == ["appendfsync", "always"]
        assert server.execute("CONFIG", "GET", "save") == ["save", ""]
        assert server.execute("EVAL", "return 7", 0) == 7
        assert server.info("memory")["maxmemory"] == str(64 * 1024 * 1024)
        server.configure({"maxmemory-policy": "allkeys-lru"})
        assert server.info("memory")["maxmemory_policy"] == "allkeys-lru"
        pid, folder = server.pid, server.directory
    assert not processes.is_running(pid)
    assert not folder.exists()


def test_a_killed_server_has_its_append_only_file_and_nothing_without_one(
    program: RedisProgram,
) -> None:
    for settings, kept in ((DURABLE, "1"), ({}, None)):
        with RedisServer(program, settings=settings) as server:
            port = server.port
            server.execute("SET", "key", 1)
            server.kill()
            assert not server.is_running
            with pytest.raises(redis.ConnectionError):
                server.execute("GET", "key")
            server.start()
            assert server.port == port
            assert server.execute("GET", "key") == kept


def test_a_paused_server_answers_after_it_is_resumed() -> None:
    with require(RedisServer) as server:
        server.pause()
        with server.client(socket_timeout=0.05) as client, pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        assert server.execute("PING") == "PONG"


def test_a_bad_setting_of_redis_is_reported_with_the_log() -> None:
    server = require(lambda: RedisServer(settings={"no-such-setting": 1}))
    with pytest.raises(ServerFailed, match="no-such-setting"), server:
        pass
    assert not server.directory.exists()


@pytest.mark.parametrize("jump", [600, -600])
def test_the_clock_of_a_running_server_can_be_moved(jump: int) -> None:
    with require(lambda: RedisServer(clock=True)) as server:
        assert abs(server.clock_offset()) < CLOCK_TOLERANCE_SECONDS
        for offset in (jump, 0, jump):
            server.set_clock(offset)
            assert abs(server.clock_offset() - offset) < CLOCK_TOLERANCE_SECONDS
        pid = server.pid
    assert not list(processes.MEMORY.glob(f"*faketime_*_{pid}"))


# --- Cluster --------------------------------------------------------------------------------------


def test_the_shared_cluster_has_three_masters_with_a_replica_each() -> None:
    cluster = redis_stores.valkey_cluster()
    masters = cluster.masters()
    assert len(masters) == 3
    assert sorted(len(cluster.replicas_of(master)) for master in masters) == [1, 1, 1]
    assert cluster.url().count(":") == 1 + 6


@pytest.mark.soak  # tests/fault/test_redis_failover.py proves the same on the way to more
def test_a_killed_master_of_a_cluster_is_replaced_by_its_replica() -> None:
    with require(lambda: RedisCluster(3, replicas=1)) as cluster:
        master = cluster.master_of("key")
        (replica,) = cluster.replicas_of(master)
        master.kill()
        assert cluster.wait_for_replacement(master) is replica
        assert cluster.master_of("key") is replica
        master.start()
        cluster.wait_until_whole()
        assert cluster.replicas_of(replica) == [master]


@pytest.mark.parametrize("masters", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_cluster_of_few_masters_needs_no_replicas(masters: int) -> None:
    with require(lambda: RedisCluster(masters)) as cluster:
        assert len(cluster.masters()) == masters


# --- Sentinel -------------------------------------------------------------------------------------


@pytest.mark.soak  # as above
def test_a_killed_master_is_replaced_by_the_sentinels() -> None:
    with require(RedisSentinel) as watched:
        first = watched.master()
        first.kill()
        second = watched.wait_for_replacement(first)
        assert second is not first
        assert second.info("replication")["role"] == "master"
        assert second.execute("SET", "key", 1) == "OK"


def test_the_shared_servers_are_durable_on_one_node() -> None:
    for server in (redis_stores.valkey(), redis_stores.redis(), redis_stores.sentinel().master()):
        assert server.info("persistence")["aof_enabled"] == "1"
        assert server.execute("CONFIG", "GET", "appendfsync") == ["appendfsync", "always"]
        assert server.info("memory")["maxmemory_policy"] == "noeviction"
