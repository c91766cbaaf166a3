"""Doctor on real servers: alone, replicated, under Sentinels, as a Cluster, and out of order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from tests.doctor.findings import by_check, problems
from tests.support.redis_stores import sentinel, valkey, valkey_cluster
from tests.support.servers import require
from tests.support.servers.processes import fresh_name, wait_until
from tests.support.servers.redis_server import (
    DURABLE,
    RedisProgram,
    RedisServer,
    redis_program,
    valkey_program,
)

from oncekey import Once, Policy
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.guarantees import Level
from oncekey.engine.store_urls import async_store, blocking_store
from oncekey.stores.redis import (
    CHECKS,
    RedisStore,
    checkup,
    checkup_session,
    inspect,
    is_same_store,
)

DATABASE = 14  # that no other test uses
DAY_US = 86_400_000_000


@pytest.fixture
def url() -> str:
    """An empty database of a good server."""
    with valkey().client(db=DATABASE) as client:
        client.flushdb()
    return valkey().url(DATABASE)


@pytest.fixture(scope="module")
def own() -> Iterator[RedisServer]:
    """A server whose settings the tests change."""
    with require(lambda: RedisServer(settings=DURABLE, clock=True)) as server:
        yield server


def test_doctor_is_silent_on_a_good_server(url: str) -> None:
    with Once(url) as once:
        once.run("charge", "order-1", lambda attempt: "paid")
    found = checkup(url)
    assert problems(found.findings) == {}
    assert by_check(found.findings).keys() == {check.name for check in CHECKS}
    assert by_check(found.findings)["redis.records"].what.startswith("1 under the prefix 'oncekey'")
    assert [run.operation for run in found.runs] == ["charge"]
    assert found.runs[0].took >= 0


def test_a_prefix_without_records_is_named(url: str) -> None:
    with Once(url) as once:
        once.run("charge", "order-1", lambda attempt: "paid")
    found = by_check(checkup(f"{url}?prefix=other").findings)["redis.records"]
    assert found.severity == "info"
    assert "none under the prefix 'other'" in found.what


def test_a_sweeper_that_never_ran_is_named(url: str) -> None:
    then = time.time_ns() // 1_000 - 30 * DAY_US
    store = RedisStore(url, clock=lambda: then)
    with Once(store, policy=Policy(keep="1h", audit="1h"), cache=0) as once:
        for number in range(3):
            once.run("charge", f"order-{number}", lambda attempt: "paid")
    found = by_check(checkup(url).findings)["redis.sweeper"]
    assert found.severity == "warning"
    assert found.what.startswith("3 records could have been removed 29.")


# --- servers that are out of order ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"appendfsync": "everysec"}, {"redis.append-only-file": "broken"}),
        ({"maxmemory": "100mb", "maxmemory-policy": "volatile-ttl"}, {"redis.eviction": "broken"}),
        ({"maxmemory-policy": "allkeys-lru"}, {"redis.eviction": "warning"}),
        ({"maxmemory": "1mb"}, {"redis.memory": "broken"}),
        ({"timeout": "60"}, {"redis.connections": "warning"}),
        ({"busy-reply-threshold": "10"}, {"redis.script-time": "warning"}),
    ],
)
def test_each_setting_that_hurts_is_named(
    own: RedisServer, settings: dict[str, str], named: dict[str, str]
) -> None:
    before = {name: own.execute("CONFIG", "GET", name)[1] for name in settings}
    own.configure(settings)
    try:
        assert problems(checkup(own.url()).findings) == named
    finally:
        own.configure(before)


def test_a_clock_that_differs_from_the_servers_is_named(own: RedisServer) -> None:
    own.set_clock(-90)
    try:
        found = checkup(own.url()).findings
    finally:
        own.set_clock(0)
    assert problems(found) == {"redis.clock": "warning"}
    assert "s behind this host's" in by_check(found)["redis.clock"].what


def test_a_user_without_config_and_scripts_is_told(own: RedisServer) -> None:
    own.execute("ACL", "SETUSER", "app", "on", "nopass", "~*", "+@all", "-config", "-@scripting")
    found = checkup(own.url().replace("//", "//app:x@")).findings
    assert problems(found) == {"redis.append-only-file": "broken", "redis.scripts": "broken"}
    assert "cannot tell" in by_check(found)["redis.append-only-file"].what


def test_a_valkey_without_its_lua_module_is_told() -> None:
    settings = {**DURABLE, "enable-module-command": "local"}
    with require(lambda: RedisServer(settings=settings)) as server:
        server.execute("MODULE", "UNLOAD", "lua")
        assert problems(checkup(server.url()).findings) == {"redis.scripts": "broken"}
        with pytest.raises(ConfigurationError, match="load its module lua"):
            Once(server.url()).run("charge", "order-1", lambda attempt: "paid")


def test_a_server_that_does_not_answer_is_unavailable(
    own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup_session, "CHECKUP_REPLY_SECONDS", 0.3)
    own.pause()
    try:
        with pytest.raises(StoreUnavailable):
            checkup(own.url())
    finally:
        own.resume()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        checkup("redis://127.0.0.1:1/0")


def test_a_password_that_is_wrong_is_not_shown(own: RedisServer) -> None:
    own.execute("ACL", "SETUSER", "bob", "on", ">hunter-two", "~*", "+@all")
    with pytest.raises(ConfigurationError) as caught:
        checkup(own.url().replace("//", "//bob:hunter-three@"))
    assert "hunter" not in str(caught.value)


# --- several servers ------------------------------------------------------------------------------


def test_replicas_and_whoever_connects_to_one_are_named() -> None:
    with require(lambda: RedisServer(settings=DURABLE)) as master:
        replica_of = {**DURABLE, "replicaof": f"127.0.0.1 {master.port}"}
        with require(lambda: RedisServer(settings=replica_of)) as replica:
            wait_until(lambda: master.info()["connected_slaves"] == "1", "the replica is attached")
            found = checkup(replica.url()).findings
            assert problems(found) == {"redis.primary": "broken"}
            assert problems(checkup(master.url()).findings) == {"redis.failover": "broken"}
            assert problems(checkup(f"{master.url()}?failover=never").findings) == {}


@pytest.mark.parametrize("program", [valkey_program, redis_program], ids=["valkey", "redis"])
def test_a_replica_that_was_seen_and_has_left_is_named_until_it_is_forgotten(
    program: Callable[[], RedisProgram],
) -> None:
    with require(lambda: RedisServer(program(), settings=DURABLE)) as master:
        replica_of = {**DURABLE, "replicaof": f"127.0.0.1 {master.port}"}
        with require(lambda: RedisServer(program(), settings=replica_of)) as replica:
            wait_until(lambda: master.info()["connected_slaves"] == "1", "the replica is attached")
            for server in (master, replica):
                with closing(RedisStore(server.url())) as store:
                    store.prepare()  # writes down who is attached, if it can
        wait_until(lambda: master.info()["connected_slaves"] == "0", "the replica is gone")
        found = checkup(master.url()).findings
        assert problems(found) == {"redis.failover": "broken"}
        said = by_check(found)["redis.failover"]
        name = f"127.0.0.1:{replica.port}"
        assert f"none is attached, but '{name}', last seen 20" in said.what
        assert f"oncekey guarantee --forget {name}" in said.what
        assert "--forget NAME" in said.mend
        assert inspect(master.url()).guarantee.level is Level.BEST_EFFORT
        assert problems(checkup(f"{master.url()}?failover=never").findings) == {}
        with closing(RedisStore(master.url())) as store:
            store.prepare()
            store.forget_replica(name, by="ana", why="gone")
        assert problems(checkup(master.url()).findings) == {}


def with_own_prefix(url: str) -> str:
    """The URL of a server that tests share, without what other tests have left there."""
    return f"{url}{'&' if '?' in url else '?'}prefix={fresh_name('checked')}"


def test_a_cluster_is_checked_node_by_node() -> None:
    url = with_own_prefix(valkey_cluster().url())
    with Once(url) as once:
        once.run("charge", "order-1", lambda attempt: "paid")
    found = checkup(url)
    assert problems(found.findings) == {"redis.failover": "broken"}
    said = by_check(found.findings)
    assert said["redis.failover"].what.startswith("3 attached, the Cluster promotes them")
    assert said["redis.cluster"].what == "state ok, 16384 of 16384 slots are served"
    assert found.runs


def test_a_node_of_a_cluster_is_no_server_of_its_own() -> None:
    master = valkey_cluster().masters()[0]
    found = checkup(with_own_prefix(master.url())).findings
    assert problems(found) == {"redis.cluster": "broken", "redis.failover": "broken"}
    assert "redis+cluster://" in by_check(found)["redis.cluster"].mend


def test_sentinels_are_counted() -> None:
    found = checkup(with_own_prefix(sentinel().url())).findings
    assert problems(found) == {"redis.failover": "broken"}
    said = by_check(found)
    assert said["redis.sentinel"].what == "3 with a quorum of 2, and the master is up"
    with pytest.raises(ConfigurationError, match="watch no master named 'nobody'"):
        checkup(sentinel().url().replace("/payments", "/nobody"))


# --- the app's store ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        ("redis://127.0.0.1:6379/1", True),
        ("redis://127.0.0.1:6379/1?reply_timeout=1s", True),
        ("redis://other:6379/1", None),
        ("redis://127.0.0.1:6379/2", False),
        ("redis://127.0.0.1:6379/1?prefix=other", False),
        ("sqlite:///other.db", False),
    ],
)
def test_the_apps_store_is_compared_with_the_url(other: str, is_same: bool | None) -> None:
    ours = "redis://127.0.0.1:6379/1"
    if other.startswith("sqlite"):
        assert is_same_store(ours, object()) is False
        return
    store = blocking_store(other)
    assert is_same_store(ours, store) is is_same
    store.close()


def test_an_async_store_is_compared_too() -> None:
    url = "redis://127.0.0.1:6379/1"
    assert is_same_store(url, async_store(url)) is True
