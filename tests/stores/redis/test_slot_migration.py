"""A slot of a cluster moves to another node, key by key, while its keys are in use (I1, I2, I4).

A record and its index entries must never be on two nodes, so while a slot is on its way its keys
are refused, and everything is where it belongs afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.support.servers.redis_cluster import RedisCluster
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.requirements import require

from oncekey.core.commands import Claim, Claimed, Command, Done, Finish, Replay
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import State
from oncekey.core.search import NEWEST, Query
from oncekey.stores.redis import RedisStore
from oncekey.stores.redis.keyspace import BUCKET_SLOTS, TAGS
from oncekey.testing.contract.store_case import claim

BUCKET = 0  # all ids of these tests begin with this byte


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with require(lambda: RedisCluster(2)) as running:
        yield running


def fresh() -> Claim:
    return claim(bytes([BUCKET]) + os.urandom(15), os.urandom(16))


def finish(command: Claim, fence: int) -> Finish:
    return Finish(command.id, command.owner, fence, State.SUCCEEDED, b"out")


class Migration:
    """A slot on its way from one master to another."""

    def __init__(self, source: RedisServer, target: RedisServer) -> None:
        self.source, self.target = source, target
        self.slot = BUCKET_SLOTS[BUCKET]
        self.ids = [server.execute("CLUSTER", "MYID") for server in (source, target)]
        target.execute("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.ids[0])
        source.execute("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.ids[1])

    def move(self, count: int) -> int:
        """Move some keys. Returns how many."""
        with self.source.client(decode_responses=False) as client:
            client.response_callbacks.clear()  # one of them turns keys into text
            keys = client.execute_command("CLUSTER GETKEYSINSLOT", self.slot, count)
            for key in keys:
                client.migrate("127.0.0.1", self.target.port, key, 0, 5_000)
        return len(keys)

    def end(self) -> None:
        while self.move(100):
            pass
        for server in (self.target, self.source):
            server.execute("CLUSTER", "SETSLOT", self.slot, "NODE", self.ids[1])


def test_i1_a_slot_that_moves_takes_records_and_indexes_along(cluster: RedisCluster) -> None:
    hasty, store = RedisStore(cluster.url(), call_timeout="300ms"), RedisStore(cluster.url())
    old = [fresh() for _ in range(20)]
    fences = [reply.fence for reply in store.apply(old) if isinstance(reply, Claimed)]
    assert len(fences) == 20
    store.apply([finish(old[0], fences[0])])
    source = cluster.master_of(f"{{{TAGS[BUCKET].decode()}}}")
    target = next(server for server in cluster.masters() if server is not source)
    migration, applied = Migration(source, target), list[Command]()
    for _ in range(8):
        migration.move(3)
        for command in (fresh(), finish(old[1], fences[1])):
            with suppress(StoreUnavailable):
                hasty.apply([command])
                applied.append(command)
        with suppress(StoreUnavailable):
            hasty.sweep()
    migration.end()
    assert len(applied) < 16, "the slot was never refused"
    assert store.apply([finish(one, fence) for one, fence in zip(old, fences, strict=True)]) == (
        [Done()] * 20
    )
    (replay,) = store.apply([claim(old[0].id, os.urandom(16))])
    assert isinstance(replay, Replay)
    new = fresh()
    (claimed,) = store.apply([new])
    assert isinstance(claimed, Claimed)
    found = {record.id for record in store.search(Query(), 1_000, NEWEST).records}
    assert {one.id for one in (*old, *applied, new)} <= found
    assert source.execute("CLUSTER", "COUNTKEYSINSLOT", migration.slot) == 0
    assert new.id in {record.id for record in store.unfinished(0, 1_000).records}
    store.close()
    hasty.close()
