"""What is left of expired records goes away without a sweeper too, and takes no fence with it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.support.servers import RedisServer, require
from tests.support.servers.redis_server import DURABLE

from oncekey.core.commands import Claim, Claimed, Finish, Look, Seen
from oncekey.core.record import State
from oncekey.stores.redis import RedisStore
from oncekey.stores.redis.keyspace import Keyspace

BUCKET = 7
MINUTE_US = 60_000_000
KEYS = Keyspace("oncekey")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with require(lambda: RedisServer(settings=DURABLE, clock=True)) as running:
        yield running


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    opened = RedisStore(server.url())
    yield opened
    opened.close()


def claim(id: bytes = b"") -> Claim:
    id = id or bytes([BUCKET]) + os.urandom(15)
    return Claim(id, os.urandom(16), b"\x01f", MINUTE_US, MINUTE_US, 0, retry_safe=False)


def test_i11_claims_remove_what_expired_records_left_in_the_indexes(
    server: RedisServer, store: RedisStore
) -> None:
    ended = [_run(store) for _ in range(30)]
    abandoned = claim()
    store.apply([abandoned])
    assert _entries(server) == {"claims": 31, "due": 31, "open": 1}
    server.set_clock(300)
    live = [claim() for _ in range(20)]
    store.apply(live)
    assert _entries(server) == {"claims": 21, "due": 21, "open": 21}
    (seen,) = store.apply([Look(abandoned.id)])
    assert isinstance(seen, Seen)
    assert seen.record is not None, "it waits for a decision, so it is no garbage"
    server.set_clock(-300)
    again = claim(ended[-1][0].id)
    (reply,) = store.apply([again])
    assert isinstance(reply, Claimed)
    assert reply.fence > max(first.fence for _, first in ended), "I6, though the clock was set back"


def _run(store: RedisStore) -> tuple[Claim, Claimed]:
    command = claim()
    (reply,) = store.apply([command])
    assert isinstance(reply, Claimed)
    store.apply([Finish(command.id, command.owner, reply.fence, State.SUCCEEDED, b"paid")])
    return command, reply


def _entries(server: RedisServer) -> dict[str, int]:
    with server.client(decode_responses=False) as client:
        return {name: client.zcard(KEYS.index(name, BUCKET)) for name in ("claims", "due", "open")}
