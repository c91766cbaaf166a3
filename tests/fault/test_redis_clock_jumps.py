"""The clock of a Valkey server jumps by ten minutes (I1, I5, I6, I10).

An owner that renews after the jump keeps its key, a key whose owner is gone recovers, and fences
keep growing. A claim carries the time until which it is wanted, so the first one after a jump ahead
may be refused, and is repeated. libfaketime moves the real clock of a real server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from tests.support.servers import RedisServer, require
from tests.support.servers.redis_server import DURABLE

from oncekey.core.commands import Claim, Claimed, Reply
from oncekey.core.errors import InFlight, StoreUnavailable
from oncekey.core.policy import Policy
from oncekey.core.store import Store
from oncekey.engine.once import Once
from oncekey.engine.store_urls import blocking_store

JUMP_SECONDS = 600
TRIES = 3
MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US


Result = TypeVar("Result")


def repeated(call: Callable[[], Result]) -> Result:
    """Call until the store is available, as callers do; a few tries must do."""
    for _ in range(TRIES - 1):
        try:
            return call()
        except StoreUnavailable:
            continue
    return call()


def claimed(store: Store, claim: Claim) -> Reply:
    """Return the reply to a claim, which is repeated while the store is unavailable."""

    def apply() -> Reply:
        reply = store.apply([claim])[0]
        if isinstance(reply, StoreUnavailable):
            raise reply
        return reply

    return repeated(apply)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with require(lambda: RedisServer(settings=DURABLE, clock=True)) as running:
        yield running


@pytest.mark.parametrize("jump", [JUMP_SECONDS, -JUMP_SECONDS])
def test_i1_an_owner_that_renews_after_a_jump_is_the_only_one(
    server: RedisServer, jump: int
) -> None:
    policy = Policy(lease="1m", retry_safe=True)  # whoever finds the lease over takes over
    effects = []

    def second(attempt: Any) -> str:
        effects.append("second")
        return "second"

    with Once(server.url(), policy=policy) as once, Once(server.url(), policy=policy) as other:

        def body(attempt: Any) -> str:
            effects.append("first")
            for offset in (jump, 0, jump):
                server.set_clock(offset)
                attempt.renew()
                with pytest.raises(InFlight):
                    repeated(lambda: other.run("charge", "order-1", second))
            return "first"

        assert once.run("charge", "order-1", body).value == "first"
        assert repeated(lambda: other.run("charge", "order-1", second)).value == "first"
    assert effects == ["first"]


@pytest.mark.parametrize("jump", [JUMP_SECONDS, -JUMP_SECONDS])
def test_i10_a_key_whose_owner_died_before_a_jump_recovers(server: RedisServer, jump: int) -> None:
    store = blocking_store(server.url())
    id = os.urandom(16)

    def claim() -> Reply:
        owner = os.urandom(16)
        wanted = Claim(id, owner, b"\x01f", MINUTE_US, HOUR_US, 0, retry_safe=True)
        return claimed(store, wanted)

    first = claim()
    assert isinstance(first, Claimed)
    server.set_clock(jump)
    # After a jump ahead the lease is over; after a jump back it ends when the clock is there again.
    if jump < 0:
        assert not isinstance(claim(), Claimed)
        server.set_clock(61)
    second = claim()
    assert isinstance(second, Claimed)
    assert second.taken_over
    assert second.fence > first.fence
    store.close()


def test_i6_fences_grow_though_the_clock_jumps(server: RedisServer) -> None:
    """Of one key, also after its record was swept and the clock has gone back."""
    store = blocking_store(server.url())
    id = os.urandom(16)
    fences = []
    for offset in (0, JUMP_SECONDS, 0, -JUMP_SECONDS, 2 * JUMP_SECONDS, -2 * JUMP_SECONDS):
        # After a jump back, the key is free when the clock has passed the end of its lease again.
        for later in range(0, 6 * JUMP_SECONDS, JUMP_SECONDS):
            server.set_clock(offset + later)
            # The lease and keep are of nearly nothing, so a later claim starts anew.
            reply = claimed(store, Claim(id, os.urandom(16), b"\x01f", 1, 1, 0, retry_safe=True))
            if isinstance(reply, Claimed):
                fences.append(reply.fence)
                break
        store.sweep(100)
    assert len(fences) == 6
    assert fences == sorted(set(fences))
    store.close()
