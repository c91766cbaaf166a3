"""What etcd's failures become: StoreUnavailable that says whether anything was done (S5), or
ConfigurationError where trying again cannot help."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from aetcd import rpc
from tests.stores.etcd.two_stores import Process, fresh_prefix
from tests.support.etcd_stores import etcd
from tests.support.servers.etcd_cluster import EtcdCluster
from tests.support.servers.requirements import require

from oncekey import Once, Policy
from oncekey.core.codec import Tombstone, unpack
from oncekey.core.commands import Claimed, Command, Done, Finish, Look, Replay, SaveStep
from oncekey.core.errors import ConfigurationError, NotReplayable, StoreUnavailable
from oncekey.core.record import State
from oncekey.stores.etcd import EtcdStore, open_blocking
from oncekey.stores.etcd.errors import NoSpace
from oncekey.stores.etcd.shared_store import SharedStore
from oncekey.testing.contract.store_case import KEEP, claim, token

SUCCEEDED = State.SUCCEEDED


@pytest.fixture(scope="module")
def cluster() -> Iterator[EtcdCluster]:
    """A cluster of this module's own, whose members are paused and killed."""
    own = require(lambda: EtcdCluster(3))
    with own:
        yield own


def opened(cluster: EtcdCluster, **options: object) -> EtcdStore:
    return EtcdStore(cluster.addresses.split(","), prefix=token().hex(), **options)


def claimed(store: EtcdStore, id: bytes, owner: bytes) -> int:
    (reply,) = store.apply([claim(id, owner)])
    assert isinstance(reply, Claimed), reply
    return reply.fence


def test_a_store_without_servers_says_so_in_time_and_that_nothing_was_done() -> None:
    took = []
    for _ in range(3):  # a busy machine may hold up one of them
        store = EtcdStore(["127.0.0.1:1", "127.0.0.1:2"], call_timeout="300ms")
        before = time.monotonic()
        with pytest.raises(StoreUnavailable) as caught:
            store.apply([claim(token("id"), token("own"))])
        took.append(time.monotonic() - before)
        # A connection that is refused when the time is over already looks like a slow member. That
        # one may have been sent the claim, if there was time to send it.
        is_slow = "gave no answer in time" in str(caught.value)
        assert is_slow or "no connection" in str(caught.value)
        assert is_slow or not caught.value.ambiguous
        store.close()
    assert min(took) < 5  # which is the default


def test_a_paused_member_is_left_for_another_one(cluster: EtcdCluster) -> None:
    store = opened(cluster, try_timeout="300ms")
    id, owner = token("id"), token("own")
    fence = claimed(store, id, owner)
    asked = store._cluster.members  # type: ignore[union-attr]
    address = asked.addresses[asked._current]
    member = next(one for one in cluster.members if one.address == address)
    member.pause()
    try:
        for _ in range(3):  # an election may be due
            assert store.apply([Finish(id, owner, fence, SUCCEEDED, b"done")]) == [Done()]
    finally:
        member.resume()
        cluster.wait_until_whole()
        store.close()


def test_i4_a_minority_answers_store_unavailable_and_serves_again(cluster: EtcdCluster) -> None:
    store = opened(cluster, call_timeout="4s", try_timeout="1s")
    id, owner = token("id"), token("own")
    fence = claimed(store, id, owner)
    assert store.apply([Finish(id, owner, fence, SUCCEEDED, b"kept")]) == [Done()]
    others = cluster.members[:2]
    for member in others:
        member.kill()
    with pytest.raises(StoreUnavailable):
        store.apply([claim(token("id"), token("own"))])
    for member in others:
        member.start()
    cluster.wait_until_whole()
    reply: object = None
    while not isinstance(reply, Replay):
        try:
            (reply,) = store.apply([claim(id, token("riv"))])
        except StoreUnavailable:
            continue
    assert reply.body == b"kept"
    store.close()


def test_i4_a_full_quota_takes_no_claim_and_stores_the_outcome_of_what_runs() -> None:
    own = require(lambda: EtcdCluster(1, settings={"quota-backend-bytes": str(2 * 1024 * 1024)}))
    with own:
        store = opened(own)
        running, owner = token("id"), token("own")
        fence = claimed(store, running, owner)
        refused = _fill(store)
        assert isinstance(refused, StoreUnavailable)
        assert "NOSPACE" in str(refused)
        assert not refused.ambiguous
        finish = Finish(running, owner, fence, SUCCEEDED, b"it ran")
        replies: list[object] = list(store.apply([claim(token("id"), owner), finish]))
        assert isinstance(replies[0], StoreUnavailable)
        assert replies[1] == Done()
        (replay,) = store.apply([claim(running, token("riv"))])
        assert isinstance(replay, Replay)
        assert replay.body == b"it ran"
        store.close()


def test_s2_with_a_full_quota_a_command_without_a_session_or_bucket_fails_alone() -> None:
    """A new process has no session, and an outcome that is kept for another time no bucket yet:
    both need an etcd lease, which a full quota refuses."""
    own = require(lambda: EtcdCluster(1, settings={"quota-backend-bytes": str(2 * 1024 * 1024)}))
    with own:
        prefix, owner = token().hex(), token("own")
        old = EtcdStore(own.addresses.split(","), prefix=prefix)
        running, other, finished = token("id"), token("id"), token("id")
        fences = {id: claimed(old, id, owner) for id in (running, finished)}
        (reply,) = old.apply([claim(other, owner, keep=3 * KEEP)])
        assert isinstance(reply, Claimed)
        fences[other] = reply.fence
        old.apply([Finish(finished, owner, fences[finished], SUCCEEDED, b"it ran")])
        assert _fill(old) is not None
        new = EtcdStore(own.addresses.split(","), prefix=prefix)
        batch: list[Command] = [
            claim(token("id"), token("own")),
            claim(finished, token("own")),
        ]
        batch += [Finish(id, owner, fences[id], SUCCEEDED, b"late") for id in (other, running)]
        replies: list[object] = list(new.apply(batch))
        assert [type(reply) for reply in replies] == [NoSpace, Replay, NoSpace, Done]
        assert not replies[0].ambiguous  # type: ignore[attr-defined]
        old.close()
        new.close()


def _fill(store: EtcdStore) -> StoreUnavailable | None:
    owner = token("own")
    for _ in range(100):
        id = token("id")
        reply: object = store.apply([claim(id, owner)])[0]
        if isinstance(reply, StoreUnavailable):
            return reply
        assert isinstance(reply, Claimed)
        store.apply([Finish(id, owner, reply.fence, SUCCEEDED, b"x" * 200_000)])
    return None


def test_an_outcome_over_the_request_limit_becomes_a_tombstone() -> None:
    url = etcd().url(fresh_prefix()) + "?request_bytes=70000"
    with Once(url, cache=0, policy=Policy(lease="10s", max_bytes=10_000_000)) as once:
        assert once.run("op", "k", lambda attempt: "x" * 100_000).value == "x" * 100_000
        with pytest.raises(NotReplayable):
            once.run("op", "k", lambda attempt: "again")
        assert once.run("op", "small", lambda attempt: "x" * 1_000).value


def test_i9_an_outcome_that_is_too_large_with_its_steps_is_the_same_tombstone_twice() -> None:
    store = open_blocking(etcd().url(fresh_prefix()) + "?request_bytes=70000")
    id, owner = token("id"), token("own")
    fence = claimed(store, id, owner)
    step = SaveStep(id, owner, fence, "pay", True, b"s" * 30_000)
    finish = Finish(id, owner, fence, SUCCEEDED, b"b" * 30_000)
    assert store.apply([step]) == [Done()]
    assert store.apply([finish]) == [Done()]
    assert store.apply([finish]) == [Done()]
    (reply,) = store.apply([claim(id, token("riv"))])
    assert isinstance(reply, Replay)
    stored = unpack(reply.body)
    assert isinstance(stored, Tombstone)
    assert stored.too_large
    store.close()


def test_s2_a_step_that_is_too_large_fails_alone() -> None:
    store = open_blocking(etcd().url(fresh_prefix()) + "?request_bytes=70000")
    owner, ids = token("own"), [token("id"), token("id")]
    fences = [claimed(store, id, owner) for id in ids]
    large = SaveStep(ids[0], owner, fences[0], "pay", True, b"s" * 100_000)
    small = SaveStep(ids[1], owner, fences[1], "pay", True, b"small")
    replies: list[object] = list(store.apply([large, small]))
    assert isinstance(replies[0], StoreUnavailable)
    assert (replies[0].ambiguous, replies[0].final) == (False, True)
    assert replies[1] == Done()
    store.close()


@pytest.mark.parametrize("engine", ["default", "operation"])
def test_a_lease_that_etcd_cannot_keep_is_refused_where_it_is_declared(engine: str) -> None:
    url = "etcd://127.0.0.1:1/nowhere"
    if engine == "default":
        with pytest.raises(ConfigurationError, match="the shortest is 2s"):
            Once(url, policy=Policy(lease="1s"))
        return
    once = Once(url)
    with pytest.raises(ConfigurationError, match="the shortest is 2s"):
        once.guard("op", lease="500ms", key=lambda order: order)
    once.close()


def test_servers_that_take_fewer_operations_say_so() -> None:
    own = require(lambda: EtcdCluster(1, settings={"max-txn-ops": "16"}))
    with own:
        store = opened(own)
        batch = [claim(token("id"), token("own")) for _ in range(60)]
        with pytest.raises(ConfigurationError, match="txn_ops"):
            store.apply(batch)
        store.close()
        store = opened(own, txn_ops=16)
        assert all(isinstance(reply, Claimed) for reply in store.apply(batch))
        store.close()


def test_a_forked_child_of_a_process_that_used_its_store_gets_a_clear_error() -> None:
    store = EtcdStore(etcd().addresses.split(","), prefix=fresh_prefix())
    claimed(store, token("id"), token("own"))
    store._loop._process += 1  # as it looks to a child
    with pytest.raises(ConfigurationError, match="open it after the fork"):
        store.apply([claim(token("id"), token("own"))])
    store._loop._process -= 1
    store.close()


def test_a_closed_store_refuses_and_works_again_after_reopen() -> None:
    store = EtcdStore(etcd().addresses.split(","), prefix=fresh_prefix())
    claimed(store, token("id"), token("own"))
    store.close()
    with pytest.raises(StoreUnavailable, match="closed") as caught:
        store.apply([claim(token("id"), token("own"))])
    assert caught.value.final
    store.reopen()
    claimed(store, token("id"), token("own"))
    store.close()


def test_s5_a_failure_before_any_write_says_that_nothing_was_done(cluster: EtcdCluster) -> None:
    """Sessions and reads may be repeated for ever: only a write of commands is ambiguous."""
    store = opened(cluster, call_timeout="100ms", try_timeout="50ms")
    id, owner = token("id"), token("own")
    for member in cluster.members:
        member.pause()
    try:
        for command in (claim(id, owner), Look(id)):
            with pytest.raises(StoreUnavailable) as caught:
                store.apply([command])
            assert not caught.value.ambiguous
    finally:
        for member in cluster.members:
            member.resume()
    cluster.wait_until_whole()
    store.close()


def test_s5_an_etcd_lease_that_ends_before_it_is_used_is_store_unavailable() -> None:
    """As that of a process that was paused between the two requests of a new session."""
    process = Process(fresh_prefix())
    process.run(_end_next_lease)
    with pytest.raises(StoreUnavailable, match="lease ended") as caught:
        process.send(claim(token("id"), token("own")))
    assert not caught.value.ambiguous
    assert isinstance(process.send(claim(token("id"), token("own"))), Claimed)
    process.close()


async def _end_next_lease(cluster: SharedStore) -> None:
    real = cluster.members.call

    async def call(name: str, request: Any, end: float) -> Any:
        reply = await real(name, request, end)
        if name == "LeaseGrant":
            cluster.members.call = real  # type: ignore[method-assign]
            await real("LeaseRevoke", rpc.LeaseRevokeRequest(ID=reply.ID), end)
        return reply

    cluster.members.call = call  # type: ignore[method-assign]


def test_a_store_closes_though_its_sessions_have_ended() -> None:
    process = Process(fresh_prefix())
    id, owner = token("id"), token("own")
    fence = claimed(process.store, id, owner)
    assert process.send(Finish(id, owner, fence, SUCCEEDED, b"")) == Done()
    process.end_sessions()
    process.close()
