"""A server that is lost, frozen, full, a replica or forgetful: nothing is lost or done twice.

Both stores go through the same proxy to a server of their own (I1, I4, I9, S5).
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from tests.support.reused_stores import shared_loop
from tests.support.servers import Proxy
from tests.support.servers.processes import free_port, wait_until
from tests.support.servers.redis_server import DURABLE, RedisServer
from tests.support.servers.requirements import require

from oncekey.core.commands import Claim, Claimed, Done, Finish, Look, Replay, Reply
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.guarantees import Level
from oncekey.core.record import State
from oncekey.core.store import Store
from oncekey.stores.redis import AsyncRedisStore, RedisStore
from oncekey.stores.server_watch import CircuitBreaker
from oncekey.testing.contract.store_case import claim, sync_facade_of

Opener = Callable[..., Any]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with require(lambda: RedisServer(settings=DURABLE)) as running:
        yield running


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    server.execute("FLUSHALL")
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture(params=["sync", "async"])
def open_store(request: pytest.FixtureRequest) -> Iterator[Opener]:
    """Return a function that opens a store, behind sync methods."""
    opened: list[Store] = []

    def open_it(address: str, **options: Any) -> Store:
        kind = RedisStore if request.param == "sync" else AsyncRedisStore
        store = sync_facade_of(kind(address, **options), shared_loop)
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Opener, proxy: Proxy) -> Any:
    return open_store(f"redis://127.0.0.1:{proxy.port}/0")


def fresh() -> Claim:
    return claim(os.urandom(16), os.urandom(16))


def is_claimed(store: Any) -> bool:
    """Whether a claim came through, for stores that are less patient than a busy machine needs."""
    try:
        return isinstance(store.apply([fresh()])[0], Claimed)
    except StoreUnavailable:
        return False


def claimed(store: Any, command: Claim) -> int:
    (reply,) = store.apply([command])
    assert isinstance(reply, Claimed)
    return reply.fence


def finish(command: Claim, fence: int) -> Finish:
    return Finish(command.id, command.owner, fence, State.SUCCEEDED, b"out")


def level(store: Any) -> Level:
    found: Level = store.guarantee.level
    return found


def is_replay(reply: Reply) -> bool:
    return isinstance(reply, Replay) and reply.body == b"out"


@pytest.mark.parametrize("verb", ["claim", "finish"])
def test_i9_a_command_whose_reply_was_lost_is_repeated_within_the_call(
    store: Any, proxy: Proxy, verb: str
) -> None:
    command = fresh()
    store.apply([Look(command.id)])
    if verb == "claim":
        proxy.drop_replies()
    fence = claimed(store, command)
    if verb == "finish":
        proxy.drop_replies()
    assert store.apply([finish(command, fence)]) == [Done()]
    (reply,) = store.apply([claim(command.id, os.urandom(16))])
    assert is_replay(reply)
    assert isinstance(reply, Replay)
    assert reply.attempt == 1


def test_cut_connections_are_replaced(store: Any, proxy: Proxy) -> None:
    command = fresh()
    fence = claimed(store, command)
    proxy.cut()
    assert store.apply([finish(command, fence)]) == [Done()]


@pytest.mark.parametrize("error", [AttributeError, RuntimeError])
@pytest.mark.parametrize("open_store", ["async"], indirect=True)
def test_a_write_that_an_event_loop_refuses_is_a_cut_connection(
    store: Any, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio of 3.12.1 and uvloop raise these if the connection has just been closed (I4, I9)."""
    command = fresh()
    fence = claimed(store, command)
    write, refused = asyncio.StreamWriter.writelines, [error("the handler is closed")]

    def refusing(writer: asyncio.StreamWriter, lines: Any) -> None:
        if refused:
            raise refused.pop()
        write(writer, lines)

    monkeypatch.setattr(asyncio.StreamWriter, "writelines", refusing)
    assert store.apply([finish(command, fence)]) == [Done()]
    assert refused == []


def test_s5_a_server_that_is_away_refuses_at_last_and_nothing_was_done(
    open_store: Opener,
) -> None:
    store = open_store(f"redis://127.0.0.1:{free_port()}/0", call_timeout="100ms")
    with pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
        store.apply([fresh()])
    assert not caught.value.ambiguous


def test_i1_a_claim_that_a_frozen_server_finds_later_is_not_made(
    open_store: Opener, proxy: Proxy
) -> None:
    """Its caller was told that nothing ran, or may not have; the key must not be held then."""
    store = open_store(
        f"redis://127.0.0.1:{proxy.port}/0", reply_timeout="200ms", call_timeout="300ms"
    )
    wait_until(lambda: is_claimed(store), "the server's clock is known")
    command = fresh()
    proxy.hold("requests")
    with pytest.raises(StoreUnavailable, match=r"no answer|be reached") as caught:
        store.apply([command])
    assert caught.value.ambiguous
    ends = time.monotonic() + 0.5
    wait_until(lambda: time.monotonic() > ends, "the claim is too late")
    proxy.resume()
    other = open_store(f"redis://127.0.0.1:{proxy.port}/0")
    rival = claim(command.id, os.urandom(16))
    assert isinstance(other.apply([rival])[0], Claimed)


def test_calls_behind_one_without_a_reply_fail_at_once(
    open_store: Opener, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    breakers, make = list[CircuitBreaker](), CircuitBreaker.__init__
    moved = [0.0]  # by how much the clock of the breakers is ahead

    def note(breaker: CircuitBreaker, seconds: float, *_: object, **__: object) -> None:
        make(breaker, seconds, lambda: time.monotonic() + moved[0], rest_seconds=3_600)
        breakers.append(breaker)

    monkeypatch.setattr(CircuitBreaker, "__init__", note)
    store = open_store(f"redis://127.0.0.1:{proxy.port}/0", reply_timeout="1s", call_timeout="2s")
    command = fresh()
    fence = claimed(store, command)
    assert breakers
    proxy.hold("requests")
    for match in ("no answer|be reached", "nothing was sent"):
        with pytest.raises(StoreUnavailable, match=match):
            store.apply([fresh()])
    proxy.resume()
    moved[0] = 7_200

    def is_back() -> bool:
        try:
            done: list[Reply] = store.apply([finish(command, fence)])
            return done == [Done()]
        except StoreUnavailable:
            return False

    wait_until(is_back, "the store tries again")


def test_flushed_scripts_are_loaded_again(store: Any, server: RedisServer) -> None:
    command = fresh()
    fence = claimed(store, command)
    server.execute("SCRIPT", "FLUSH")
    assert store.apply([finish(command, fence)]) == [Done()]


def test_i14_a_full_server_takes_no_claims_but_every_finish(
    store: Any, server: RedisServer
) -> None:
    command = fresh()
    fence = claimed(store, command)
    server.execute("CONFIG", "SET", "maxmemory", "1mb")
    try:
        with pytest.raises(StoreUnavailable, match="memory is full") as caught:
            store.apply([fresh()])
        assert not caught.value.ambiguous
        refused, done = store.apply([fresh(), finish(command, fence)])
        assert isinstance(refused, StoreUnavailable)
        assert done == Done()
    finally:
        server.execute("CONFIG", "SET", "maxmemory", "0")
    claimed(store, fresh())


def test_a_server_that_evicts_keys_is_refused_at_the_start(
    open_store: Opener, server: RedisServer, proxy: Proxy
) -> None:
    server.execute("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(ConfigurationError, match="allkeys-lru"):
            open_store(f"redis://127.0.0.1:{proxy.port}/0").bind(b"check")
    finally:
        server.execute("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")


def test_i1_claims_stop_when_the_server_begins_to_evict_and_finishes_go_on(
    open_store: Opener, server: RedisServer, proxy: Proxy
) -> None:
    store = open_store(f"redis://127.0.0.1:{proxy.port}/0", guarantee_interval="1ms")
    command = fresh()
    fence = claimed(store, command)
    assert level(store) is Level.FENCED
    server.execute("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
    try:
        store.apply([fresh()])  # its reply brings the news
        with pytest.raises(StoreUnavailable, match="noeviction") as caught:
            store.apply([fresh()])
        assert not caught.value.ambiguous
        assert level(store) is Level.BEST_EFFORT
        refused, done = store.apply([fresh(), finish(command, fence)])
        assert isinstance(refused, StoreUnavailable)
        assert done == Done()
    finally:
        server.execute("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")
    claimed(store, fresh())
    assert level(store) is Level.FENCED


def test_the_guarantee_follows_the_servers_settings(
    open_store: Opener, server: RedisServer, proxy: Proxy
) -> None:
    store = open_store(f"redis://127.0.0.1:{proxy.port}/0", guarantee_interval="1ms")
    store.bind(b"check")
    assert level(store) is Level.FENCED
    server.execute("CONFIG", "SET", "appendfsync", "everysec")
    try:
        claimed(store, fresh())
        assert level(store) is Level.BEST_EFFORT
    finally:
        server.execute("CONFIG", "SET", "appendfsync", "always")


def test_a_replica_is_waited_for_until_it_is_a_master(store: Any, server: RedisServer) -> None:
    command = fresh()
    fence = claimed(store, command)
    server.execute("REPLICAOF", "127.0.0.1", str(free_port()))
    timer = threading.Timer(0.3, server.execute, ("REPLICAOF", "NO", "ONE"))
    timer.start()
    assert store.apply([finish(command, fence)]) == [Done()]
    timer.join()


def test_a_closed_store_refuses_until_it_is_opened_again(store: Any) -> None:
    claimed(store, fresh())
    store.close()
    with pytest.raises(StoreUnavailable, match="closed") as caught:
        store.apply([fresh()])
    assert caught.value.final
    assert not caught.value.ambiguous
    getattr(store, "inner", store).reopen()
    claimed(store, fresh())


@pytest.mark.parametrize("kind", [RedisStore, AsyncRedisStore])
def test_a_store_has_no_transactions_to_join(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match="no transactions"):
        kind("redis://nowhere").join(object())


def test_a_callers_client_is_used_and_left_open(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url()) as client:
        store = RedisStore(client)
        claimed(store, fresh())
        store.close()
        assert client.ping()


def test_a_callers_asyncio_client_is_used_and_left_open(server: RedisServer) -> None:
    async def main() -> None:
        async with redis.asyncio.Redis.from_url(server.url()) as client:
            store = AsyncRedisStore(client)
            (reply,) = await store.apply([fresh()])
            assert isinstance(reply, Claimed)
            await store.close()
            assert await client.ping()

    asyncio.run(main())


def test_event_loops_one_after_the_other_share_a_store(server: RedisServer) -> None:
    store = AsyncRedisStore(server.url())
    for _ in range(3):
        (reply,) = asyncio.run(store.apply([fresh()]))
        assert isinstance(reply, Claimed)


def test_a_cancelled_call_leaves_no_half_read_connection(server: RedisServer, proxy: Proxy) -> None:
    async def main() -> None:
        store = AsyncRedisStore(f"redis://127.0.0.1:{proxy.port}/0", pool_size=1)
        command = fresh()
        await store.apply([Look(command.id)])
        proxy.hold("replies")
        call = asyncio.create_task(store.apply([command]))
        await asyncio.to_thread(proxy.wait_until_held, "replies")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        proxy.resume()
        (again,) = await store.apply([command])
        assert isinstance(again, Claimed)
        await store.close()

    asyncio.run(main())
