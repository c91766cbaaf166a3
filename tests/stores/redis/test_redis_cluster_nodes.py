"""A node of a cluster that is silent, gone or new: what that means for calls to it and others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.servers import RedisCluster, RedisServer, require
from tests.support.servers.redis_server import Settings

from oncekey.core.commands import Claim, Claimed, Done, Finish, Renew
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import State
from oncekey.stores.redis import RedisStore
from oncekey.stores.redis.call_delivery import Send
from oncekey.stores.redis.keyspace import BUCKET_SLOTS, BUCKETS, Keyspace

MINUTE_US = 60_000_000
KEYS = Keyspace("oncekey")
# A paused node must stay in the cluster, and the others must go on without it.
SETTINGS: Settings = {"cluster-require-full-coverage": "no", "cluster-node-timeout": 60_000}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with require(lambda: RedisCluster(2, settings=SETTINGS)) as running:
        yield running


@pytest.fixture
def store(cluster: RedisCluster) -> Iterator[RedisStore]:
    opened = RedisStore(cluster.url(), reply_timeout="300ms", call_timeout="20s")
    opened.prepare()
    yield opened
    opened.close()


def claim(bucket: int) -> Claim:
    id = bytes([bucket]) + os.urandom(15)
    return Claim(id, os.urandom(16), b"\x01f", MINUTE_US, MINUTE_US, 0, retry_safe=False)


def bucket_of(store: RedisStore, server: RedisServer) -> int:
    return next(b for b in range(BUCKETS) if _port(store, b) == server.port)


def test_calls_to_other_nodes_do_not_wait_for_a_silent_one(
    cluster: RedisCluster, store: RedisStore
) -> None:
    silent, well = cluster.masters()
    there, elsewhere = bucket_of(store, silent), bucket_of(store, well)
    silent.pause()
    try:
        with pytest.raises(StoreUnavailable, match=r"no answer|cannot be reached"):
            store.apply([claim(there)])
        exchanges = _counted(store)
        for _ in range(10):
            replies: list[Any] = store.apply([claim(elsewhere), claim(there)])
            assert isinstance(replies[0], Claimed)
            assert isinstance(replies[1], StoreUnavailable)
        assert sum(silent.port in ports for ports in exchanges) <= 2, "one tries it now and then"
    finally:
        silent.resume()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store._delivery, "_silent_nodes", {})  # as if its rest were over
        assert isinstance(store.apply([claim(there)])[0], Claimed)


def test_answers_are_not_held_back_for_a_node_that_is_gone(
    cluster: RedisCluster, store: RedisStore
) -> None:
    """Calls to it are repeated for `call_timeout`, because it may be replaced meanwhile; but not
    for so long if the others of their batch have answers."""
    gone, well = cluster.masters()
    there, elsewhere = bucket_of(store, gone), bucket_of(store, well)
    exchanges = _counted(store)
    gone.stop()
    try:
        replies: list[Any] = store.apply([claim(elsewhere), claim(there)])
    finally:
        gone.start()
        cluster.wait_until_whole()
    assert isinstance(replies[0], Claimed)
    assert isinstance(replies[1], StoreUnavailable)
    assert 2 < len(exchanges) < 40, "it was repeated, and 20 s would have been about 80 times"


def test_a_node_that_imports_a_slot_without_the_scripts_gets_them(
    cluster: RedisCluster, store: RedisStore
) -> None:
    """A new node is not known before slots move to it, so it has no scripts."""
    source, target = cluster.masters()
    bucket = bucket_of(store, source)
    command = claim(bucket)
    (reply,) = store.apply([command])
    assert isinstance(reply, Claimed)
    _move_keys(source, target, BUCKET_SLOTS[bucket])
    target.execute("SCRIPT", "FLUSH")
    id, owner, fence = command.id, command.owner, reply.fence
    assert store.apply([Renew(id, owner, fence, MINUTE_US)]) == [Done()]
    target.execute("SCRIPT", "FLUSH")
    assert store.apply([Finish(id, owner, fence, State.SUCCEEDED, b"paid")]) == [Done()]
    for server in (target, source):
        server.execute("CLUSTER", "SETSLOT", BUCKET_SLOTS[bucket], "NODE", _identity(target))


def test_an_interrupted_exchange_gives_every_connection_back(
    cluster: RedisCluster, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt comes while the responses of several nodes are awaited."""
    both = [claim(bucket_of(store, server)) for server in cluster.masters()]
    store.apply(both)
    connections = store._connections

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("oncekey.stores.redis.connections._response", interrupted)
        for _ in range(20):  # more often than the pool has connections
            with pytest.raises(KeyboardInterrupt):
                store.apply(both)
    assert all(isinstance(reply, Claimed) for reply in store.apply(both))
    assert all(pool._in_use_connections == set() for pool in connections._pools.values())


def _port(store: RedisStore, bucket: int) -> int:
    node = store._connections.table.node_of(bucket)
    assert node is not None
    return node.port


def _counted(store: RedisStore) -> list[set[int]]:
    """The ports of each exchange from now on."""
    exchanges: list[set[int]] = []
    connections: Any = store._connections
    exchange = connections.exchange

    def counted(send: Send) -> Any:
        exchanges.append({batch.node.port for batch in send.batches})
        return exchange(send)

    connections.exchange = counted
    return exchanges


def _move_keys(source: RedisServer, target: RedisServer, slot: int) -> None:
    """Move the keys of a slot, but not yet the slot: the source answers ASK."""
    target.execute("CLUSTER", "SETSLOT", slot, "IMPORTING", _identity(source))
    source.execute("CLUSTER", "SETSLOT", slot, "MIGRATING", _identity(target))
    with source.client(decode_responses=False) as client:
        keys = client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100)
        client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)


def _identity(server: RedisServer) -> str:
    return str(server.execute("CLUSTER", "MYID"))
