"""What a Redis store does when the server refuses something: rights, memory, types, formats, time.

The errors say whether anything was done (S5), and a refusal is of the commands that it is about,
not of those that share their batch (S2).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import pytest
from redis.exceptions import ResponseError
from tests.support.servers import RedisServer, require
from tests.support.servers.redis_server import DURABLE, RedisProgram, redis_program, valkey_program

from oncekey.core.commands import Claim, Claimed, Done, Finish, Look, Renew, Replay, Seen
from oncekey.core.errors import ConfigurationError, StoreUnavailable
from oncekey.core.record import State
from oncekey.core.search import NEWEST, Query
from oncekey.stores.redis import RedisStore
from oncekey.stores.redis.errors import ends_connection
from oncekey.stores.redis.keyspace import Keyspace

MINUTE_US = 60_000_000
KEYS = Keyspace("oncekey")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with require(lambda: RedisServer(settings=DURABLE, clock=True)) as running:
        yield running


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    server.execute("FLUSHALL")
    opened = RedisStore(server.url())
    yield opened
    opened.close()


def claim(id: bytes = b"") -> Claim:
    return Claim(
        id or os.urandom(16), os.urandom(16), b"\x01f", MINUTE_US, MINUTE_US, 0, retry_safe=False
    )


def claimed(store: RedisStore) -> tuple[Claim, Claimed]:
    command = claim()
    (reply,) = store.apply([command])
    assert isinstance(reply, Claimed)
    return command, reply


def test_claims_go_on_after_the_servers_clock_was_set_ahead(
    server: RedisServer, store: RedisStore
) -> None:
    """Each claim carries the latest time at which it may be made. If the server's clock is past it
    although somebody still waits, that time was wrong, not the claim."""
    first, second = claim(), claim()
    store.apply([first])
    server.set_clock(600)
    try:
        assert isinstance(store.apply([second])[0], Claimed)
        assert isinstance(store.apply([claim()])[0], Claimed)
    finally:
        server.set_clock(0)


def test_the_very_first_claim_has_its_latest_time(store: RedisStore) -> None:
    """If not, a server that was paused could make it after its caller had given up."""
    store.prepare()
    assert store._program.server_clock.at(0.0) is not None


def test_a_full_server_refuses_new_keys_and_still_replays_and_ends_the_others(
    server: RedisServer, store: RedisStore
) -> None:
    ended, held = claimed(store), claimed(store)
    store.apply([_finish(*ended)])
    server.configure({"maxmemory": 1})
    try:
        new, duplicate = claim(), claim(ended[0].id)
        replies: list[Any] = store.apply([new, duplicate])
        refused, replay = replies
        assert isinstance(refused, StoreUnavailable)
        assert not refused.ambiguous
        assert "memory is full" in str(refused)
        assert isinstance(replay, Replay)
        renew = Renew(held[0].id, held[0].owner, held[1].fence, MINUTE_US)
        assert store.apply([renew]) == store.apply([_finish(*held)]) == [Done()]
    finally:
        server.configure({"maxmemory": 0})
    assert isinstance(store.apply([new])[0], Claimed)


def test_a_script_that_another_programs_key_has_stopped_is_ambiguous(
    server: RedisServer, store: RedisStore
) -> None:
    """The keys before that one were claimed already, so nobody may be told that none was."""
    before, stopped = claim(), claim()
    with server.client(decode_responses=False) as client:
        client.rpush(KEYS.record(stopped.id), "theirs")
    with pytest.raises(StoreUnavailable, match="choose another prefix") as raised:
        store.apply([before, stopped])
    assert raised.value.ambiguous
    (seen,) = store.apply([Look(before.id)])
    assert isinstance(seen, Seen)
    assert seen.record is not None


def test_a_record_of_a_newer_release_is_an_error_of_its_own_key_alone(
    server: RedisServer, store: RedisStore
) -> None:
    old, other, newer = claimed(store), claim(), claim()
    _write_newer(server, newer.id)
    replies: list[Any] = store.apply([other, newer])
    first, second = replies
    assert isinstance(first, Claimed)
    assert isinstance(second, StoreUnavailable)
    assert "newer release" in str(second)
    mine = {old[0].id, other.id}
    assert {record.id for record in store.unfinished(0, 10).records} == mine
    assert {record.id for record in store.search(Query(), 10, NEWEST).records} == mine


def test_i12_a_sweep_leaves_the_records_of_a_newer_release_alone(
    server: RedisServer, store: RedisStore
) -> None:
    """Their times may stand at other places of the value."""
    id = claim().id
    _write_newer(server, id)
    assert store.sweep() == 0
    with server.client(decode_responses=False) as client:
        assert client.exists(KEYS.record(id))


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        (["+@all", "-zadd", "-hset"], "forbidden are HSET, ZADD"),
        (["+@all", "-time"], "forbidden are TIME"),
        (["+@all", "-info"], "'info' command"),
        (["+@all", "-evalsha"], "'evalsha' command"),
    ],
)
@pytest.mark.parametrize("program", [valkey_program, redis_program])
def test_a_user_who_lacks_a_right_is_refused_before_any_claim(
    server: RedisServer, program: Callable[[], RedisProgram], rights: list[str], said: str
) -> None:
    """A script without one of its commands would stop halfway, and leave a key claimed."""
    with require(lambda: RedisServer(program(), settings=DURABLE)) as other:
        other.execute("ACL", "SETUSER", "app", "on", ">hidden-word", "~oncekey:*", *rights)
        store = RedisStore(f"redis://app:hidden-word@{other.address}")
        with pytest.raises(ConfigurationError, match=said) as raised:
            store.apply([claim()])
        assert "hidden-word" not in str(raised.value)
        assert other.execute("DBSIZE") == 0
        store.close()


def test_the_probe_of_rights_has_every_command_of_the_scripts() -> None:
    folder = resources.files("oncekey.stores.redis") / "lua"
    texts = {file.name: file.read_text() for file in folder.iterdir() if file.is_file()}
    probed = set(re.findall(r"\{ '([A-Z]+)'", texts.pop("probe.lua")))
    called = {name for text in texts.values() for name in re.findall(r"call\('([A-Z]+)'", text)}
    assert called == probed


@pytest.mark.parametrize("code", ["READONLY", "NOREPLICAS", "MASTERDOWN"])
def test_a_connection_to_a_master_that_was_replaced_is_not_used_again(code: str) -> None:
    """A new one asks Sentinel. Without replicas a master may have been replaced and not told."""
    assert ends_connection(ResponseError(f"{code} whatever follows"))
    assert not ends_connection(ResponseError("OOM whatever follows"))


def test_a_wrong_password_is_not_tried_again_and_again(server: RedisServer) -> None:
    before = _connections(server)
    store = RedisStore(f"redis://nobody:hidden-word@{server.address}", call_timeout="5s")
    with pytest.raises(ConfigurationError, match="refused the login") as raised:
        store.apply([claim()])
    assert "hidden-word" not in str(raised.value)
    assert _connections(server) - before <= 3, "one for the store, others for these counts"


@pytest.mark.parametrize("rest", ["/0?unheard_of=hidden-word", "/not-a-number"])
def test_a_url_that_redis_py_would_misunderstand_is_refused(rest: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        RedisStore(f"redis://app:hidden-word@127.0.0.1:1{rest}").apply([claim()])
    assert "hidden-word" not in str(raised.value)


def _finish(command: Claim, reply: Claimed) -> Finish:
    return Finish(command.id, command.owner, reply.fence, State.SUCCEEDED, b"paid")


def _write_newer(server: RedisServer, id: bytes) -> None:
    """A record of format 2, in the indexes as any other, and due for a sweeper."""
    with server.client(decode_responses=False) as client:
        client.set(KEYS.record(id), b"\x02" + bytes(200))
        for index in ("claims", "open", "due"):
            client.zadd(KEYS.index(index, id[0]), {id: 1_000_000})


def _connections(server: RedisServer) -> int:
    return int(server.info("stats")["total_connections_received"])
