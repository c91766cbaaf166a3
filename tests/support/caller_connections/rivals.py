"""What others do to a shop's keys meanwhile: commands past the engine, and a clock to turn."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.caller_connections.base import INSERT, NEVER, Order, Shop, done
from tests.support.caller_connections.database import rows

from oncekey.core.codec import JSON, pack_value
from oncekey.core.commands import Claim, Claimed, Finish
from oncekey.core.identity import Identities
from oncekey.core.record import State

IDS = Identities()
ANSWER = Order(value={"a": [1, None]})


class Turned:
    """A server's clock that only the tests turn."""

    us = 0

    def __call__(self) -> int:
        return self.us

    def __repr__(self) -> str:
        return "turned"


CLOCK = Turned()
CLOCK.us = 1_800_000_000_000_000


def claim_of(key: str, owner: bytes = b"rival".ljust(16), **changes: Any) -> Claim:
    id = IDS.identify("", "order", key).id
    claim = Claim(id, owner, IDS.fingerprint(None), 10_000_000, 3_600_000_000, 0, True, "", "order")
    return claim._replace(**changes)


def finish_of(key: str, claimed: Claimed, value: str) -> Finish:
    claim = claim_of(key)
    body = pack_value(JSON, value)
    return Finish(claim.id, claim.owner, claimed.fence, State.SUCCEEDED, body)


async def apply(shop: Shop, *commands: Any) -> list[Any]:
    """Commands to the shop's store, past its engine."""
    replies: list[Any] = await done(shop.once._store.apply(commands))
    return replies


def body_meanwhile(shop: Shop, meanwhile: Any, error: Exception | None = None) -> Any:
    """A body that writes tea while somebody else does something."""

    def blocking(attempt: Any) -> str:
        shop.send(INSERT)
        run_now(meanwhile())
        if error is not None:
            raise error
        return "mine"

    async def awaited(attempt: Any) -> str:
        await shop.send(INSERT)
        await meanwhile()
        if error is not None:
            raise error
        return "mine"

    return awaited if shop.is_async else blocking


def run_now(work: Any) -> None:
    """A coroutine that has nothing to wait for."""
    with pytest.raises(StopIteration):
        work.send(None)


async def meanwhile_in(shop: Shop, key: str, meanwhile: Any, error: Exception | None = None) -> Any:
    tx = shop.once.in_transaction(shop.subject)
    return await done(tx.run("order", key, body_meanwhile(shop, meanwhile, error)))


async def goes_as_ever(shop: Shop) -> None:
    """Run, replay, fail, and run again."""
    async with shop.transaction():
        assert (await shop.inside("k", ANSWER)).value == ANSWER.value
        with pytest.raises(ValueError, match="mine"):
            await shop.inside("k2", Order(error=ValueError("mine")))
        assert (await shop.inside("k", NEVER)).value == ANSWER.value
    async with shop.transaction():
        assert (await shop.inside("k", NEVER)).replayed
        assert not (await shop.inside("k2", ANSWER)).replayed
    assert rows() == ["tea", "tea"]
