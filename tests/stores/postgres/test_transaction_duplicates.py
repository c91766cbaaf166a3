"""Duplicates of an operation in a transaction are rejected at once and never run twice (I1).

Nobody here may wait for a lock (see tests/support/caller_connections), so a call that had to wait
would fail instead of replying that the key is in flight.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.stores.postgres.conftest import RunScenario
from tests.support.caller_connections import (
    CALLERS,
    INSERT,
    MUST_NOT_RUN,
    RING,
    Body,
    Caller,
    advisory_locks,
    orders,
    resolved,
)
from tests.support.caller_connections.concurrent_commands import (
    CLOCK,
    apply,
    claim_of,
    finish_of,
    run_while,
)

from oncekey import InFlight, Mismatch, OperationFailed, OutcomeUnknown, Terminal
from oncekey.core.commands import Busy, Claimed, Done, Replay
from oncekey.core.errors import ConfigurationError, LeaseLost
from oncekey.core.record import State
from oncekey.core.recovery import Recovery

MILK = "INSERT INTO orders VALUES ('milk')"

plain_or_ring = pytest.mark.parametrize("options", [{}, RING], ids=["plain", "ring"])
every_claim = pytest.mark.parametrize("claim", ["insert", "row_lock", "advisory_lock"])


# --- while a transaction runs a key -----------------------------------------------------------


def test_i1_a_duplicate_is_in_flight_at_once_and_replays_after_the_commit(
    run_scenario_mainly: RunScenario,
) -> None:
    """In the body, after it, and after the commit."""

    async def scenario(caller: Caller, other: Caller) -> None:
        async def duplicates() -> None:
            for _ in range(2):
                with pytest.raises(InFlight) as raised:
                    async with other.transaction():
                        await other.run_inside("k", MUST_NOT_RUN)
                assert raised.value.retry_after == 1
                with pytest.raises(InFlight):
                    await other.run_leased("k", MUST_NOT_RUN)

        async with caller.transaction():
            await run_while(caller, "k", duplicates)
            await duplicates()  # the record is written, the transaction is open
        async with other.transaction():
            assert (await other.run_inside("k", MUST_NOT_RUN)).value == "mine"
        assert (await other.run_leased("k", MUST_NOT_RUN)).value == "mine"
        assert (other.ran, orders(), advisory_locks()) == (0, ["tea"], [])

    run_scenario_mainly(scenario)


@plain_or_ring
@every_claim
def test_a_batch_with_a_transactions_key_does_not_wait(
    run_scenario_on_drivers: RunScenario, options: dict[str, Any], claim: str
) -> None:
    async def scenario(caller: Caller, other: Caller) -> None:
        turns = iter(range(10))

        async def batch() -> None:
            number = next(turns)
            keys = [f"{key}{number}" for key in "abcde"]
            claims = [claim_of(key) for key in (*keys[:3], "k", *keys[3:])]
            replies = await apply(other, *claims)
            assert isinstance(replies.pop(3), Busy)
            assert all(isinstance(reply, Claimed) for reply in replies)

        await caller.begin()
        await run_while(caller, "k", batch)
        await batch()  # after the record was written
        await caller.rollback()
        assert isinstance((await apply(other, claim_of("k")))[0], Claimed)

    run_scenario_on_drivers(scenario, claim=claim, **options)


@plain_or_ring
def test_i10_the_next_duplicate_runs_after_a_rollback(
    run_scenario_on_drivers: RunScenario, options: dict[str, Any]
) -> None:
    async def scenario(caller: Caller, other: Caller) -> None:
        await caller.begin()
        await caller.run_inside("k")
        await other.begin()
        with pytest.raises(InFlight):
            await other.run_inside("k", MUST_NOT_RUN)
        await caller.rollback()
        assert not (await other.run_inside("k")).replayed  # in the transaction that got InFlight
        await other.commit()
        assert (await caller.run_leased("k", MUST_NOT_RUN)).value == "done"
        assert orders() == ["tea"]

    run_scenario_on_drivers(scenario, **options)


def test_i1_concurrent_transactions_run_a_key_once(run_scenario_on_drivers: RunScenario) -> None:
    async def scenario(caller: Caller) -> None:
        if not caller.is_async:
            return
        ran: list[str] = []

        async def one(number: int) -> str:
            async with type(caller)() as mine:
                while True:
                    try:
                        async with mine.transaction():
                            result = await mine.run_inside("k", Body(value=number))
                    except InFlight:
                        continue
                    ran.extend(["run"] * mine.ran)
                    return str(result.value)

        answers = await asyncio.gather(*(one(number) for number in range(8)))
        assert (len(set(answers)), ran, orders()) == (1, ["run"], ["tea"])

    run_scenario_on_drivers(scenario)


# --- lease mode before ------------------------------------------------------------------------


@plain_or_ring
def test_a_transaction_is_in_flight_while_a_lease_is_valid(
    run_scenario_on_drivers: RunScenario, options: dict[str, Any]
) -> None:
    async def scenario(caller: Caller) -> None:
        (claimed,) = await apply(caller, claim_of("k"))
        async with caller.transaction():
            with pytest.raises(InFlight) as raised:
                await caller.run_inside("k", MUST_NOT_RUN)
        assert 8 < raised.value.retry_after <= 10
        assert await apply(caller, finish_of("k", claimed, "theirs")) == [Done()]
        async with caller.transaction():
            assert (await caller.run_inside("k", MUST_NOT_RUN)).value == "theirs"

    run_scenario_on_drivers(scenario, **options)


@plain_or_ring
def test_i1_keys_run_under_a_lease_replay_in_a_transaction(
    run_scenario_on_drivers: RunScenario, options: dict[str, Any]
) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.run_leased("done")
        with pytest.raises(Terminal):
            await caller.run_leased("failed", Body((), error=Terminal("for good")))
        await apply(caller, claim_of("unknown", retry_safe=False))
        CLOCK.us += 20_000_000
        async with caller.transaction():
            result = await caller.run_inside("done", MUST_NOT_RUN)
            assert (result.value, result.replayed) == ("leased", True)
            with pytest.raises(OperationFailed, match="for good"):
                await caller.run_inside("failed", MUST_NOT_RUN)
            for _ in range(2):
                with pytest.raises(OutcomeUnknown):
                    await caller.run_inside("unknown", MUST_NOT_RUN)
        assert await caller.state("unknown") == "unknown"
        assert orders() == []

    run_scenario_on_drivers(scenario, clock=CLOCK, **options)


@plain_or_ring
def test_i1_keys_run_in_a_transaction_replay_under_a_lease(
    run_scenario_on_drivers: RunScenario, options: dict[str, Any]
) -> None:
    async def scenario(caller: Caller) -> None:
        async with caller.transaction():
            first = await caller.run_inside("done")
            with pytest.raises(Terminal):
                await caller.run_inside("failed", Body(error=Terminal("for good")))
            with pytest.raises(ValueError):
                await caller.run_inside("freed", Body(error=ValueError()))
        result = await caller.run_leased("done", MUST_NOT_RUN)
        assert (result.value, result.replayed, result.fence) == ("done", True, first.fence)
        with pytest.raises(OperationFailed, match="for good"):
            await caller.run_leased("failed", MUST_NOT_RUN)
        assert (await caller.run_leased("freed")).value == "leased"
        assert orders() == ["tea"]

    run_scenario_on_drivers(scenario, **options)


@plain_or_ring
def test_a_transaction_takes_over_a_dead_owners_key(
    run_scenario_on_drivers: RunScenario, options: dict[str, Any]
) -> None:
    async def scenario(caller: Caller) -> None:
        (claimed,) = await apply(caller, claim_of("k"))
        CLOCK.us += 20_000_000
        await caller.begin()
        result = await caller.run_inside("k")
        assert (result.attempt, result.replayed) == (2, False)
        assert result.fence > claimed.fence  # I6
        await caller.rollback()
        async with caller.transaction():
            assert (await caller.run_inside("k")).attempt == 2
        (replay,) = await apply(caller, claim_of("k", owner=b"x" * 16))
        assert isinstance(replay, Replay)
        assert (replay.state, replay.attempt) == (State.SUCCEEDED, 2)
        assert orders() == ["tea"]

    run_scenario_on_drivers(scenario, clock=CLOCK, **options)


@plain_or_ring
def test_an_expired_key_runs_again_and_its_record_is_archived(
    run_scenario_on_drivers: RunScenario, options: dict[str, Any]
) -> None:
    async def scenario(caller: Caller) -> None:
        async with caller.transaction():
            first = await caller.run_inside("k", keep="1h", audit="2h")
        CLOCK.us += 3_600_000_000
        async with caller.transaction():
            second = await caller.run_inside("k", keep="1h", audit="2h")
        assert (second.replayed, second.attempt) == (False, 1)
        assert second.fence > first.fence  # I6
        past = await resolved(caller.once._store.history(claim_of("k").id))
        assert [record.fence for record in past] == [first.fence]
        assert orders() == ["tea", "tea"]

    run_scenario_on_drivers(scenario, clock=CLOCK, **options)


def test_a_key_may_expire_and_run_again_in_one_transaction(
    run_scenario_on_drivers: RunScenario,
) -> None:
    async def scenario(caller: Caller) -> None:
        async with caller.transaction():
            await caller.run_inside("k", keep="1h")
            CLOCK.us += 3_600_000_000
            assert not (await caller.run_inside("k", keep="1h")).replayed
        assert orders() == ["tea", "tea"]

    run_scenario_on_drivers(scenario, clock=CLOCK)


def test_an_unknown_key_is_recovered_in_a_transaction(run_scenario_on_drivers: RunScenario) -> None:
    async def scenario(caller: Caller) -> None:
        for key in ("kept", "freed"):
            await apply(caller, claim_of(key, retry_safe=False))
        CLOCK.us += 60_000_000  # past recover_grace: until then "nothing happened" is not believed
        async with caller.transaction():
            result = await caller.run_inside(
                "kept", MUST_NOT_RUN, recover=lambda key: Recovery.succeeded("known")
            )
            assert result.value == "known"
            await caller.run_inside("freed", recover=lambda key: Recovery.free())
        assert (await caller.run_leased("kept", MUST_NOT_RUN)).value == "known"
        assert (await caller.run_leased("freed", MUST_NOT_RUN)).value == "done"
        assert orders() == ["tea"]

    run_scenario_on_drivers(scenario, clock=CLOCK)


def test_the_cache_never_replays_a_result_that_was_rolled_back(
    run_scenario_on_drivers: RunScenario,
) -> None:
    async def scenario(caller: Caller) -> None:
        kept, caller.once = caller.once, type(caller.once)(caller.url)
        try:
            await caller.begin()
            await caller.run_inside("k", Body(value="rolled back"))
            assert (
                await caller.run_inside("k", MUST_NOT_RUN)
            ).value == "rolled back"  # inside the transaction it has run
            await caller.rollback()
            fresh = await caller.run_leased("k", Body((), value="committed"))
            assert (fresh.value, fresh.replayed) == ("committed", False)
            async with caller.transaction():
                assert (await caller.run_inside("k", MUST_NOT_RUN)).value == "committed"
        finally:
            await resolved(caller.once.close())
            caller.once = kept

    run_scenario_on_drivers(scenario)


# --- too late -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wins", [True, False], ids=["finished", "still-running"])
@pytest.mark.parametrize("error", [None, Terminal("mine")], ids=["returns", "refuses"])
def test_i1_rows_are_rolled_back_if_a_peer_claimed_the_key_meanwhile(
    run_scenario_mainly: RunScenario, wins: bool, error: Exception | None
) -> None:
    """A peer that does not respect transactions claims the key meanwhile."""

    async def scenario(caller: Caller) -> None:
        driver = "asyncpg" if caller.is_async else "psycopg"
        async with CALLERS[driver](transactional=False) as peer:

            async def overtake() -> None:
                (claimed,) = await apply(peer, claim_of("k"))
                assert isinstance(claimed, Claimed)
                if wins:
                    assert await apply(peer, finish_of("k", claimed, "theirs")) == [Done()]

            async with caller.transaction():
                await caller.execute(MILK)
                if wins:
                    result = await run_while(caller, "k", overtake, error)
                    assert (result.value, result.replayed) == ("theirs", True)
                else:
                    with pytest.raises(LeaseLost):
                        await run_while(caller, "k", overtake, error)
        assert orders() == ["milk"]  # the rest of the transaction is as it was
        assert await caller.state("k") == ("succeeded" if wins else "pending")

    run_scenario_mainly(scenario)


def test_a_different_request_is_in_flight_until_the_first_one_commits(
    run_scenario_on_drivers: RunScenario,
) -> None:
    """Others cannot see the request of an open transaction, as the docs say."""

    async def scenario(caller: Caller, other: Caller) -> None:
        async with caller.transaction():
            await caller.run_inside("k", request={"cents": 500})
            with pytest.raises(InFlight):
                await other.run_leased("k", MUST_NOT_RUN, request={"cents": 900})
        with pytest.raises(Mismatch):
            await other.run_leased("k", MUST_NOT_RUN, request={"cents": 900})

    run_scenario_on_drivers(scenario)


def test_a_raw_commit_in_a_body_raises_and_leaves_the_documented_state(
    run_scenario_on_drivers: RunScenario,
) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.begin()
        with pytest.raises(ConfigurationError, match="is over"):
            await caller.run_inside("k", Body((INSERT, "COMMIT")))
        assert (orders(), await caller.state("k")) == (["tea"], None)
        # The driver still considers its transaction open: no other test may get this connection.
        setattr(caller, "block", None)  # noqa: B010
        await caller.close()
        await caller.open()

    run_scenario_on_drivers(scenario)
