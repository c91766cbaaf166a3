"""Commands that others send while a caller runs: past its engine, under a settable clock."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.caller_connections.caller import INSERT, MUST_NOT_RUN, Body, Caller, resolved
from tests.support.caller_connections.database import orders

from oncekey.core.codec import JSON, pack_value
from oncekey.core.commands import Claim, Claimed, Finish
from oncekey.core.identity import Identities
from oncekey.core.record import State

IDS = Identities()
JSON_BODY = Body(value={"a": [1, None]})


class SettableClock:
    """Replaces the server's clock; only tests move it."""

    us = 0

    def __call__(self) -> int:
        return self.us

    def __repr__(self) -> str:
        return "settable"


CLOCK = SettableClock()
CLOCK.us = 1_800_000_000_000_000


def claim_of(key: str, owner: bytes = b"rival".ljust(16), **changes: Any) -> Claim:
    id = IDS.identify("", "order", key).id
    claim = Claim(id, owner, IDS.fingerprint(None), 10_000_000, 3_600_000_000, 0, True, "", "order")
    return claim._replace(**changes)


def finish_of(key: str, claimed: Claimed, value: str) -> Finish:
    claim = claim_of(key)
    body = pack_value(JSON, value)
    return Finish(claim.id, claim.owner, claimed.fence, State.SUCCEEDED, body)


async def apply(caller: Caller, *commands: Any) -> list[Any]:
    """Send commands to the caller's store, past its engine."""
    replies: list[Any] = await resolved(caller.once._store.apply(commands))
    return replies


def body_meanwhile(caller: Caller, meanwhile: Any, error: Exception | None = None) -> Any:
    """A body that inserts an order and then awaits `meanwhile`."""

    def blocking(attempt: Any) -> str:
        caller.send(INSERT)
        run_now(meanwhile())
        if error is not None:
            raise error
        return "mine"

    async def awaited(attempt: Any) -> str:
        await caller.send(INSERT)
        await meanwhile()
        if error is not None:
            raise error
        return "mine"

    return awaited if caller.is_async else blocking


def run_now(work: Any) -> None:
    """Run a coroutine that never waits."""
    with pytest.raises(StopIteration):
        work.send(None)


async def run_while(
    caller: Caller, key: str, meanwhile: Any, error: Exception | None = None
) -> Any:
    tx = caller.once.in_transaction(caller.subject)
    return await resolved(tx.run("order", key, body_meanwhile(caller, meanwhile, error)))


async def check_run_replay_and_failure(caller: Caller) -> None:
    """Check a run, its replay, a failure, and a run after the failure."""
    async with caller.transaction():
        assert (await caller.run_inside("k", JSON_BODY)).value == JSON_BODY.value
        with pytest.raises(ValueError, match="mine"):
            await caller.run_inside("k2", Body(error=ValueError("mine")))
        assert (await caller.run_inside("k", MUST_NOT_RUN)).value == JSON_BODY.value
    async with caller.transaction():
        assert (await caller.run_inside("k", MUST_NOT_RUN)).replayed
        assert not (await caller.run_inside("k2", JSON_BODY)).replayed
    assert orders() == ["tea", "tea"]
