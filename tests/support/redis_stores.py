"""Redis stores for the suites that run on every store: servers that a run shares.

Each accessor starts its servers once per test process; they stop when the run ends. A test that
kills, pauses or reconfigures a server starts its own.
"""

from __future__ import annotations

import functools

from tests.support.servers.redis_cluster import RedisCluster
from tests.support.servers.redis_sentinel import RedisSentinel
from tests.support.servers.redis_server import DURABLE, RedisServer, redis_program
from tests.support.servers.requirements import require
from tests.support.servers.server_lifetime import started

UNHURRIED_MS = 60_000


def valkey() -> RedisServer:
    """The shared Valkey server: durable on one node."""
    return require(_valkey)


def redis() -> RedisServer:
    """The shared Redis server: durable on one node."""
    return require(_redis)


def valkey_cluster() -> RedisCluster:
    """The shared Valkey Cluster of three masters with one replica each."""
    return require(_valkey_cluster)


def sentinel() -> RedisSentinel:
    """The shared Valkey master with one replica, watched by three Sentinels."""
    return require(_sentinel)


@functools.cache
def _valkey() -> RedisServer:
    return started(RedisServer(settings=DURABLE))


@functools.cache
def _redis() -> RedisServer:
    return started(RedisServer(redis_program(), settings=DURABLE))


@functools.cache
def _valkey_cluster() -> RedisCluster:
    cluster = started(RedisCluster(3, replicas=1, settings=DURABLE))
    for server in cluster.servers():
        # Nobody fails here; on a busy machine a master would be replaced that is only slow.
        server.execute("CONFIG", "SET", "cluster-node-timeout", UNHURRIED_MS)
    return cluster


@functools.cache
def _sentinel() -> RedisSentinel:
    watched = started(RedisSentinel(settings=DURABLE))
    watched.wait_longer(UNHURRIED_MS)
    return watched
