"""A replica that was seen once counts until an operator says that it is gone, and an append-only
file counts once it is complete (I4).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from tests.support.postgres_adapters import StoreAdapter, make_claim
from tests.support.redis_stores import valkey_cluster
from tests.support.reused_stores import shared_loop
from tests.support.servers.processes import wait_until
from tests.support.servers.redis_server import (
    DURABLE,
    RedisServer,
    redis_program,
    valkey_program,
)
from tests.support.servers.requirements import require

from oncekey import Once
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.events import Event, EventKind
from oncekey.core.guarantees import Level
from oncekey.core.policy import Policy
from oncekey.stores.redis import AsyncRedisStore, RedisStore, inspect, server_settings
from oncekey.stores.redis.durability import guarantee, parse_info, parse_nodes, parse_server
from oncekey.stores.redis.keyspace import Keyspace
from oncekey.stores.redis.server_settings import read_aof
from oncekey.stores.replica_sightings import Replica

Opener = Callable[..., Any]


@pytest.fixture(scope="module", params=[valkey_program, redis_program], ids=["valkey", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with require(lambda: RedisServer(request.param(), settings=DURABLE)) as running:
        yield running


@pytest.fixture
def master(server: RedisServer) -> RedisServer:
    server.execute("FLUSHALL")
    return server


@pytest.fixture
def replica(master: RedisServer) -> Iterator[RedisServer]:
    """It runs and is attached to nobody yet."""
    with RedisServer(master.program) as replica:
        yield replica
        detach(master, replica)


@pytest.fixture(params=["sync", "async"])
def open_store(request: pytest.FixtureRequest) -> Iterator[Opener]:
    """Return a function that opens a store as a process does that starts now."""
    with ExitStack() as stack:

        def open_it(server: RedisServer, **options: Any) -> StoreAdapter:
            is_sync = request.param == "sync"
            store = (RedisStore if is_sync else AsyncRedisStore)(server.url(), **options)
            adapter = StoreAdapter(store, None if is_sync else shared_loop())
            stack.callback(adapter.close)
            adapter.prepare()
            return adapter

        yield open_it


def attach(master: RedisServer, replica: RedisServer) -> None:
    replica.execute("REPLICAOF", "127.0.0.1", master.port)
    wait_until(lambda: master.info()["connected_slaves"] == "1", "the replica is attached")


def detach(master: RedisServer, replica: RedisServer) -> None:
    if replica.is_running:
        replica.kill()
    wait_until(lambda: master.info()["connected_slaves"] == "0", "the replica is gone")


def test_i4_a_replica_that_was_cut_off_still_lowers_the_guarantee(
    master: RedisServer, replica: RedisServer, open_store: Opener
) -> None:
    store = open_store(master, guarantee_interval="1ms")
    levels = [store.guarantee.level]
    attach(master, replica)
    store.apply([make_claim("a")])
    levels.append(store.guarantee.level)
    detach(master, replica)
    store.apply([make_claim("b")])
    levels.append(store.guarantee.level)
    assert levels == [Level.FENCED, Level.BEST_EFFORT, Level.BEST_EFFORT]

    name = f"127.0.0.1:{replica.port}"
    later = open_store(master)
    assert later.guarantee.level is inspect(master.url()).guarantee.level is Level.BEST_EFFORT
    assert f"was attached, '{name}', last seen 20" in later.guarantee.reason
    assert f"oncekey guarantee --forget {name}" in later.guarantee.reason
    assert open_store(master, failover="never").guarantee.level is Level.FENCED
    strict = Once(f"{master.url()}?guarantee_interval=1ms", policy=Policy(require="at_most_once"))
    with pytest.raises(ConfigurationError, match="requires at most once"):
        strict.run("op", "k", lambda attempt: pytest.fail("it ran"))

    store.forget_replica(name, by="ana", why="its host was given back")
    assert store.guarantee.level is later_level(open_store, master) is Level.FENCED
    assert strict.run("op", "k", lambda attempt: "ran").value == "ran"
    strict.close()
    (forgotten,) = store.replicas().forgotten
    assert (forgotten.name, store.replicas().sightings) == (name, ())
    assert "ana forgot it: its host was given back (seen 20" in forgotten.note

    replica.start()
    attach(master, replica)
    store.apply([make_claim("c")])
    assert store.guarantee.level is later_level(open_store, master) is Level.BEST_EFFORT


def test_the_event_of_a_lower_guarantee_names_the_replica(
    master: RedisServer, replica: RedisServer
) -> None:
    with closing(Once(f"{master.url()}?guarantee_interval=1ms")) as once:
        events: list[Event] = []
        once.subscribe(events.append)
        once.run("op", "a", lambda attempt: 1)
        attach(master, replica)
        once.run("op", "b", lambda attempt: 1)
        once.run("op", "c", lambda attempt: 1)
        changes = [event for event in events if event.kind is EventKind.GUARANTEE]
        assert f"'127.0.0.1:{replica.port}'" in changes[0].reason
        assert changes[-1].reason == once.guarantee.reason


def later_level(open_store: Opener, master: RedisServer, **options: Any) -> Level:
    found: Level = open_store(master, **options).guarantee.level
    return found


def test_nothing_but_an_operators_word_removes_a_sighting(
    master: RedisServer, replica: RedisServer, open_store: Opener
) -> None:
    attach(master, replica)
    store = open_store(master)
    assert store.sweep() == 0
    (sighting,) = store.replicas().sightings
    for bad in ({"by": "", "why": "x"}, {"by": "ana", "why": "two\nlines"}):
        with pytest.raises(ConfigurationError, match="must be text on one line"):
            store.forget_replica(sighting.name, **bad)
    with pytest.raises(ConfigurationError, match=f"no replica 'other' was seen.*{sighting.name}"):
        store.forget_replica("other", by="ana", why="gone")
    assert store.replicas().sightings == (sighting,)
    assert master.execute("TTL", Keyspace("oncekey").replicas.decode()) == -1  # it never expires


def test_a_user_who_may_not_write_it_down_warns_and_stays_low(
    master: RedisServer,
    replica: RedisServer,
    open_store: Opener,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = open_store(master, guarantee_interval="1ms")
    writable = ("~oncekey:{*}:r:*", "~oncekey:{*}:[a-qs-z]*")  # but not ...:replicas
    master.execute("ACL", "SETUSER", "default", "resetkeys", "%R~*", *writable)
    try:
        attach(master, replica)
        with caplog.at_level(logging.WARNING, logger="oncekey"):
            for name in ("a", "b"):
                store.apply([make_claim(name)])
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 1, said
        assert f"could not be written down in the store: '127.0.0.1:{replica.port}'" in said[0]
        detach(master, replica)
        store.apply([make_claim("c")])
        assert store.guarantee.level is Level.BEST_EFFORT
        with pytest.raises(ConfigurationError, match="lacks rights"):
            open_store(master)
    finally:
        master.execute("ACL", "SETUSER", "default", "~*")
    assert later_level(open_store, master) is Level.FENCED, "nobody could tell it"
    store.apply([make_claim("d")])
    assert later_level(open_store, master) is Level.BEST_EFFORT


def test_the_replicas_of_a_cluster_are_written_down() -> None:
    cluster = valkey_cluster()
    with closing(RedisStore(cluster.url(), prefix="remembered")) as store:
        store.prepare()
        names = {
            f"127.0.0.1:{one.port}" for m in cluster.masters() for one in cluster.replicas_of(m)
        }
        assert {one.name for one in store.replicas().sightings} == names


def test_a_cluster_knows_replicas_that_are_not_attached() -> None:
    nodes = (
        "07c3 127.0.0.1:30004@31004,host slave,fail 67ed 0 1426238317239 4 disconnected\n"
        "6ec2 127.0.0.1:30003@31003 myself,master - 0 0 3 connected 10923-16383\n"
        "824f :0@0 slave,fail,noaddr 6ec2 0 0 5 disconnected\n"
    )
    assert parse_nodes(nodes.encode()) == [Replica("127.0.0.1:30004")]


def test_a_client_that_only_copies_the_data_is_not_remembered() -> None:
    """It tells no port where it could be reached: `redis-cli --rdb` for a backup."""
    info = parse_info(
        "role:master\nconnected_slaves:2\n"
        "slave0:ip=10.0.0.7,port=6379,state=online,offset=5,lag=0,type=replica\n"
        "slave1:ip=10.0.0.8,port=0,state=online,offset=0,lag=2\n"
    )
    found = parse_server(info, None)
    assert (found.replicas, found.seen) == (2, (Replica("10.0.0.7:6379"),))


# --- an append-only file that is not complete yet -------------------------------------------------

SLOW_US = 30_000_000  # for each key: the rewrite goes on until somebody ends it


@pytest.fixture
def ended_rewrites(master: RedisServer) -> Iterator[None]:
    """Ends a rewrite that a test has slowed down, and leaves a complete file."""
    yield
    master.execute("CONFIG", "SET", "rdb-key-save-delay", 0)
    master.execute("CONFIG", "SET", "appendonly", "no")  # kills the slow process
    master.execute("CONFIG", "SET", "appendonly", "yes")
    wait_until(lambda: not is_rewriting(master), "the append-only file is complete")


def is_rewriting(server: RedisServer) -> bool:
    """True also if the rewrite has to wait until an earlier one, which was killed, has ended."""
    info = server.info()
    return "1" in (info["aof_rewrite_in_progress"], info["aof_rewrite_scheduled"])


@pytest.mark.usefixtures("ended_rewrites")
def test_i4_an_append_only_file_counts_once_it_is_complete(
    master: RedisServer, open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is switched on while the server runs, for the second time: what INFO says is then the same
    as during an ordinary rewrite."""
    monkeypatch.setattr(
        server_settings, "AOF_WAIT_MS", 1
    )  # nothing is synced, however long one waits
    store = open_store(master, guarantee_interval="1ms")
    store.apply([make_claim("a")])
    levels = [store.guarantee.level]
    master.execute("CONFIG", "SET", "appendonly", "no")
    store.apply([make_claim("b")])
    levels.append(store.guarantee.level)
    master.execute("CONFIG", "SET", "rdb-key-save-delay", SLOW_US)
    master.execute("CONFIG", "SET", "appendonly", "yes")
    store.apply([make_claim("c")])
    levels.append(store.guarantee.level)
    assert is_rewriting(master)
    assert levels == [Level.FENCED, Level.BEST_EFFORT, Level.BEST_EFFORT]
    for one in (store, open_store(master)):
        assert "appendonly was switched on just now" in one.guarantee.reason

    master.execute("CONFIG", "SET", "rdb-key-save-delay", 0)
    master.execute("CONFIG", "SET", "appendonly", "no")
    master.execute("CONFIG", "SET", "appendonly", "yes")
    wait_until(lambda: not is_rewriting(master), "the append-only file is complete")
    store.apply([make_claim("d")])
    assert store.guarantee.level is Level.FENCED


@pytest.mark.usefixtures("ended_rewrites")
def test_an_ordinary_rewrite_does_not_lower_the_guarantee(
    master: RedisServer, open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_settings, "AOF_WAIT_MS", 60_000)  # however slow the disk is
    patient = {"reply_timeout": "120s", "call_timeout": "120s"}
    store = open_store(master, guarantee_interval="1ms", **patient)
    store.apply([make_claim("a")])
    master.execute("BGREWRITEAOF")  # an inspection knows a later rewrite by the file of an earlier
    wait_until(lambda: not is_rewriting(master), "the first rewrite has ended")
    master.execute("CONFIG", "SET", "rdb-key-save-delay", SLOW_US)
    master.execute("BGREWRITEAOF")
    wait_until(lambda: is_rewriting(master), "the rewrite has begun")
    for name in ("b", "c"):
        store.apply([make_claim(name)])
        assert store.guarantee.level is Level.FENCED
    assert later_level(open_store, master, **patient) is Level.FENCED
    assert inspect(master.url()).guarantee.level is Level.FENCED
    assert is_rewriting(master)


def test_without_waitaof_nobody_can_tell_a_first_file_from_a_rewrite() -> None:
    """Redis has it from 7.2 on, and a user may be denied it."""
    said = {"aof_enabled": "1", "aof_rewrite_in_progress": "1", "maxmemory_policy": "noeviction"}
    config = {"appendfsync": "always"}
    found = guarantee(parse_server(said, config))
    assert (found.level, "Allow WAITAOF" in found.reason) == (Level.BEST_EFFORT, True)
    scheduled = {"aof_rewrite_in_progress": "0", "aof_rewrite_scheduled": "1"}
    assert parse_server({**said, **scheduled}, config).aof_in_place is None
    assert read_aof([[1], StoreUnavailable("unknown command")]) is None
    assert read_aof([[1], [1, 0], [1], [0, 0]]) is False
    assert read_aof([[1], [1, 0], [1], [1, 2]]) is True
