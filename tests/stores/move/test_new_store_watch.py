"""The new store of a move is watched as it would be alone: its settings, and the room it has.

What makes a claim fail on a store alone makes it fail in both, and the old store is left free. What
ends or renews a claim goes through.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.servers.etcd_cluster import EtcdCluster
from tests.support.servers.redis_server import DURABLE, RedisServer
from tests.support.servers.requirements import require

from oncekey import ConfigurationError, Once, Policy, StoreUnavailable
from oncekey.core.commands import Adopt, Claimed, Done, Finish, Look, Renew, Replay, SaveStep
from oncekey.core.identity import Identities
from oncekey.core.move_marks import check_alone
from oncekey.core.record import State
from oncekey.core.store import Store
from oncekey.stores.etcd import EtcdStore
from oncekey.stores.memory import MemoryStore
from oncekey.stores.move import DualStore
from oncekey.stores.move.copy_rule import CopyResult
from oncekey.stores.redis import RedisStore
from oncekey.stores.sqlite import SQLiteStore
from oncekey.stores.store_rules import raise_if_all_failed
from oncekey.testing.contract.store_case import LEASE, claim, token

CHECK = Identities(None).check_value()
QUOTA = {"quota-backend-bytes": str(2 * 1024 * 1024)}
LARGE = b"x" * 200_000


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with require(lambda: RedisServer(settings=DURABLE)) as running:
        yield running


@pytest.fixture
def both(server: RedisServer, tmp_path: Path) -> Iterator[DualStore]:
    """From a SQLite file to Redis, whose settings are read with every claim."""
    server.execute("FLUSHALL")
    old, new = SQLiteStore(tmp_path / "old.db"), RedisStore(server.url(), guarantee_interval="1ms")
    with closing(DualStore(old, new)) as store:
        yield store
    server.configure({"maxmemory": 0, "maxmemory-policy": "noeviction", "appendonly": "yes"})


def send(store: Store, command: Any) -> Any:
    (reply,) = store.apply([command])
    return reply


def refused(store: DualStore, match: str) -> None:
    """A claim fails, and leaves the old store free and the new one without a record."""
    id = token("id")
    with pytest.raises(StoreUnavailable, match=match) as caught:
        store.apply([claim(id, token("own"))])
    assert not caught.value.ambiguous
    assert send(store.old, Look(id)).record.state is State.ABSENT
    assert send(store.new, Look(id)).record is None


def ended_in(store: Store) -> bytes:
    """A key that has ended in a store."""
    id, owner = token("id"), token("own")
    fence = send(store, claim(id, owner)).fence
    assert send(store, Finish(id, owner, fence, State.SUCCEEDED, LARGE)) == Done()
    return id


def check_that_room_is_needed(store: DualStore, held: tuple[bytes, bytes, int], why: str) -> None:
    """The new store is full: what needs room is refused, and what ends or renews a claim is not."""
    id, owner, fence = held
    refused(store, why)
    copied = ended_in(store.old)
    with pytest.raises(StoreUnavailable, match=why):
        store.copy([copied])
    assert send(store.new, Look(copied)).record is None
    assert send(store, claim(copied, token("riv"))).body == LARGE
    seen = send(store.old, Look(copied))
    with pytest.raises(StoreUnavailable, match=why):
        raise_if_all_failed(store.new.apply([Adopt(seen.record, seen.now, past=True)]))
    assert store.new.history(copied) == []
    assert send(store, Renew(id, owner, fence, LEASE)) == Done()
    assert send(store, SaveStep(id, owner, fence, "pay", True, b"paid")) == Done()
    assert send(store, Finish(id, owner, fence, State.SUCCEEDED, b"it ran")) == Done()
    for each in (store, store.old, store.new):
        replay = send(each, claim(id, token("riv")))
        assert isinstance(replay, Replay)
        assert replay.body == b"it ran"


def held_in(store: DualStore) -> tuple[bytes, bytes, int]:
    id, owner = token("id"), token("own")
    claimed = send(store, claim(id, owner))
    assert isinstance(claimed, Claimed)
    return id, owner, claimed.fence


def test_a_full_redis_refuses_what_is_new_and_takes_what_ends(
    both: DualStore, server: RedisServer
) -> None:
    held = held_in(both)
    server.configure({"maxmemory": 1})
    check_that_room_is_needed(both, held, "memory is full")
    server.configure({"maxmemory": 0})
    held_in(both)


def fill(store: DualStore) -> None:
    for _ in range(100):
        ended_in(store)


def test_a_full_etcd_refuses_what_is_new_and_takes_what_ends() -> None:
    with require(lambda: EtcdCluster(1, settings=QUOTA)) as cluster:
        new = EtcdStore(cluster.addresses.split(","))
        with closing(DualStore(MemoryStore(), new)) as store:
            new.bind(CHECK)
            held, key = held_in(store), ended_in(new)
            with pytest.raises(StoreUnavailable, match="NOSPACE"):
                fill(store)
            check_that_room_is_needed(store, held, "NOSPACE")
            check_that_keys_can_leave(new, key)


def check_that_keys_can_leave(full: Store, key: bytes) -> None:
    """A server that is full must not hold its keys for ever."""
    with closing(DualStore(full, MemoryStore())) as store:
        store.bind(CHECK)
        assert store.copy([key]) == [CopyResult.COPIED]
        store.finish_copy()
        assert send(store.new, claim(key, token("riv"))).body == LARGE
        with pytest.raises(ConfigurationError, match="open the new store"):
            check_alone(full.bind(CHECK))


def test_keys_can_leave_a_full_redis(server: RedisServer, both: DualStore) -> None:
    both.new.bind(CHECK)
    key = ended_in(both.new)
    server.configure({"maxmemory": 1})
    check_that_keys_can_leave(both.new, key)


def test_the_new_store_that_begins_to_evict_takes_no_claims(
    both: DualStore, server: RedisServer
) -> None:
    id, owner, fence = held_in(both)
    copied = ended_in(both.old)
    server.configure({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"})
    held_in(both)  # its reply brings the news
    refused(both, "noeviction")
    with pytest.raises(StoreUnavailable, match="noeviction"):
        both.copy([copied])
    assert send(both, Finish(id, owner, fence, State.SUCCEEDED, b"it ran")) == Done()


def test_i4_a_guarantee_that_the_new_store_loses_is_noticed(
    both: DualStore, server: RedisServer
) -> None:
    once = Once(both, policy=Policy(require="at_most_once"), cache=0)
    once.run("op", "before", lambda attempt: "ran")
    server.configure({"appendonly": "no"})
    with pytest.raises(StoreUnavailable, match=r"become best effort.*Nothing ran"):
        once.run("op", "k", lambda attempt: "ran")
    server.configure({"appendonly": "yes"})
    assert once.run("op", "k", lambda attempt: "ran").value == "ran"


def test_a_copy_reads_the_settings_of_the_new_store(both: DualStore, server: RedisServer) -> None:
    key = ended_in(both.old)
    held_in(both)
    server.configure({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"})
    both.copy([key])  # its reply brings the news
    with pytest.raises(StoreUnavailable, match="noeviction"):
        both.copy([ended_in(both.old)])
