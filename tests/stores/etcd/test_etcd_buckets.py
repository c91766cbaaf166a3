"""The removal of records on etcd: bucket by bucket, some records at a time (S7, I12)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.stores.etcd.two_stores import Pair, claimed, fresh_prefix
from tests.support.servers.etcd_cluster import EtcdCluster
from tests.support.servers.requirements import require

from oncekey.core.commands import Busy, Claimed, Done, Finish, Look, Seen
from oncekey.core.record import State
from oncekey.core.search import NEWEST, Query
from oncekey.stores.etcd import EtcdStore
from oncekey.stores.etcd.keyspace import end_of
from oncekey.stores.etcd.shared_store import SharedStore
from oncekey.stores.etcd.transactions import range_of
from oncekey.testing.contract.store_case import AUDIT, KEEP, LEASE, claim, token
from oncekey.testing.fake_clock import FakeClock

OLD = KEEP + AUDIT + 600_000_000  # by then a bucket's time has come


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def finish_many(store: EtcdStore, count: int) -> list[bytes]:
    ids, owner = [token("id") for _ in range(count)], token("own")
    replies = store.apply([claim(id, owner) for id in ids])
    finishes = [
        Finish(id, owner, reply.fence, State.SUCCEEDED, b"")  # type: ignore[union-attr]
        for id, reply in zip(ids, replies, strict=True)
    ]
    assert set(store.apply(finishes)) == {Done()}
    return ids


def test_s7_a_sweep_removes_no_more_of_a_bucket_than_it_is_told(pair: Pair) -> None:
    """To remove a bucket in one step would stop the whole cluster for as long as that takes."""
    ids = finish_many(pair.one.store, 130)
    pair.advance(OLD)
    assert [pair.one.store.sweep(60) for _ in range(4)] == [60, 60, 10, 0]
    seen = pair.other.store.apply([Look(id) for id in ids])
    assert {reply.record for reply in seen if isinstance(reply, Seen)} == {None}
    assert pair.one.run(_keys_left) == [b"floor"]


async def _keys_left(cluster: SharedStore) -> list[bytes]:
    """What is stored besides sessions."""
    keys = cluster.keys
    request = range_of(keys.root, end=end_of(keys.root), keys_only=True)
    found = (await cluster.members.call("Range", request, cluster.members.deadline())).kvs
    return [one.key[len(keys.root) :] for one in found if not one.key.startswith(keys.sessions)]


def test_i12_a_key_that_is_claimed_afresh_while_its_bucket_is_removed_stays(pair: Pair) -> None:
    ids = finish_many(pair.one.store, 4)
    fences = [record.fence for record in pair.one.store.search(Query(), 100, NEWEST).records]
    pair.advance(OLD)
    assert pair.one.store.sweep(1) == 1
    again, held = ids[0], ids[3]  # one of both is still in the bucket
    replies = [claimed(pair.other, id, token("own")) for id in (again, held)]
    assert min(reply.fence for reply in replies) > max(fences)
    pair.one.store.sweep(100)
    for id in (again, held):
        assert isinstance(pair.one.send(claim(id, token("riv"))), Busy)


def test_two_sweepers_remove_a_bucket_together(pair: Pair) -> None:
    finish_many(pair.one.store, 100)
    pair.advance(OLD)
    removed = pair.one.store.sweep(40) + pair.other.store.sweep(1_000)
    assert removed + pair.one.store.sweep(1_000) == 100
    assert pair.other.run(_keys_left) == [b"floor"]


def test_lists_sweeps_and_lapses_keep_to_the_servers_limit_of_operations() -> None:
    own = require(lambda: EtcdCluster(1, settings={"max-txn-ops": "16"}))
    with own:
        clock = FakeClock()
        store = EtcdStore(
            own.addresses.split(","), prefix=fresh_prefix(), clock=clock.wall, txn_ops=16
        )
        finish_many(store, 40)
        replies = store.apply([claim(token("id"), token("own")) for _ in range(40)])
        assert {type(reply) for reply in replies} == {Claimed}
        assert len(store.search(Query(), 100, NEWEST).records) == 80
        assert len(store.unfinished(0, 100).records) == 40
        clock.advance(LEASE)
        store._loop.run(store._on_loop(lambda cluster: cluster.let_lapse()))
        clock.advance(OLD)
        assert store.sweep(1_000) == 40  # the others are undecided
        store.close()
