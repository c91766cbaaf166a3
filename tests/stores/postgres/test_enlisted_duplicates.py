"""Duplicates of what a transaction runs: told at once, in either mode, and never run twice (I1).

Nobody here may wait for a lock (see tests/support/caller_connections), so a call that had to wait
would fail instead of replying that the key is in flight.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.stores.postgres.conftest import Play
from tests.support.caller_connections import (
    INSERT,
    NEVER,
    RING,
    SHOPS,
    Order,
    Shop,
    done,
    locks,
    rows,
)
from tests.support.caller_connections.rivals import CLOCK, apply, claim_of, finish_of, meanwhile_in

from oncekey import InFlight, Mismatch, OperationFailed, OutcomeUnknown, Terminal
from oncekey.core.commands import Busy, Claimed, Done, Replay
from oncekey.core.errors import ConfigurationError, LeaseLost
from oncekey.core.record import State
from oncekey.core.recovery import Recovery

MILK = "INSERT INTO orders VALUES ('milk')"

plain_or_ring = pytest.mark.parametrize("options", [{}, RING], ids=["plain", "ring"])
every_claim = pytest.mark.parametrize("claim", ["insert", "row_lock", "advisory_lock"])


# --- while a transaction runs a key -----------------------------------------------------------


def test_i1_a_duplicate_is_told_at_once_and_later_replays(play_mainly: Play) -> None:
    """In the body, after it, and after the commit."""

    async def scene(shop: Shop, other: Shop) -> None:
        async def duplicates() -> None:
            for _ in range(2):
                with pytest.raises(InFlight) as told:
                    async with other.transaction():
                        await other.inside("k", NEVER)
                assert told.value.retry_after == 1
                with pytest.raises(InFlight):
                    await other.outside("k", NEVER)

        async with shop.transaction():
            await meanwhile_in(shop, "k", duplicates)
            await duplicates()  # the record is written, the transaction is open
        async with other.transaction():
            assert (await other.inside("k", NEVER)).value == "mine"
        assert (await other.outside("k", NEVER)).value == "mine"
        assert (other.ran, rows(), locks()) == (0, ["tea"], [])

    play_mainly(scene)


@plain_or_ring
@every_claim
def test_a_batch_does_not_wait_for_a_transaction(
    play_on_driver: Play, options: dict[str, Any], claim: str
) -> None:
    async def scene(shop: Shop, other: Shop) -> None:
        turns = iter(range(10))

        async def batch() -> None:
            number = next(turns)
            keys = [f"{key}{number}" for key in "abcde"]
            claims = [claim_of(key) for key in (*keys[:3], "k", *keys[3:])]
            replies = await apply(other, *claims)
            assert isinstance(replies.pop(3), Busy)
            assert all(isinstance(reply, Claimed) for reply in replies)

        await shop.begin()
        await meanwhile_in(shop, "k", batch)
        await batch()  # after the record was written
        await shop.rollback()
        assert isinstance((await apply(other, claim_of("k")))[0], Claimed)

    play_on_driver(scene, claim=claim, **options)


@plain_or_ring
def test_i10_after_a_rollback_the_next_one_runs(
    play_on_driver: Play, options: dict[str, Any]
) -> None:
    async def scene(shop: Shop, other: Shop) -> None:
        await shop.begin()
        await shop.inside("k")
        await other.begin()
        with pytest.raises(InFlight):
            await other.inside("k", NEVER)
        await shop.rollback()
        assert not (await other.inside("k")).replayed  # in the transaction that was told
        await other.commit()
        assert (await shop.outside("k", NEVER)).value == "done"
        assert rows() == ["tea"]

    play_on_driver(scene, **options)


def test_i1_a_rush_of_transactions_runs_a_key_once(play_on_driver: Play) -> None:
    async def scene(shop: Shop) -> None:
        if not shop.is_async:
            return
        ran: list[str] = []

        async def one(number: int) -> str:
            async with type(shop)() as mine:
                while True:
                    try:
                        async with mine.transaction():
                            told = await mine.inside("k", Order(value=number))
                    except InFlight:
                        continue
                    ran.extend(["run"] * mine.ran)
                    return str(told.value)

        answers = await asyncio.gather(*(one(number) for number in range(8)))
        assert (len(set(answers)), ran, rows()) == (1, ["run"], ["tea"])

    play_on_driver(scene)


# --- lease mode before ------------------------------------------------------------------------


@plain_or_ring
def test_a_living_lease_keeps_a_transaction_out(
    play_on_driver: Play, options: dict[str, Any]
) -> None:
    async def scene(shop: Shop) -> None:
        (claimed,) = await apply(shop, claim_of("k"))
        async with shop.transaction():
            with pytest.raises(InFlight) as told:
                await shop.inside("k", NEVER)
        assert 8 < told.value.retry_after <= 10
        assert await apply(shop, finish_of("k", claimed, "theirs")) == [Done()]
        async with shop.transaction():
            assert (await shop.inside("k", NEVER)).value == "theirs"

    play_on_driver(scene, **options)


@plain_or_ring
def test_i1_an_operation_that_becomes_transactional_knows_its_old_keys(
    play_on_driver: Play, options: dict[str, Any]
) -> None:
    async def scene(shop: Shop) -> None:
        await shop.outside("done")
        with pytest.raises(Terminal):
            await shop.outside("failed", Order((), error=Terminal("for good")))
        await apply(shop, claim_of("unknown", retry_safe=False))
        CLOCK.us += 20_000_000
        async with shop.transaction():
            told = await shop.inside("done", NEVER)
            assert (told.value, told.replayed) == ("leased", True)
            with pytest.raises(OperationFailed, match="for good"):
                await shop.inside("failed", NEVER)
            for _ in range(2):
                with pytest.raises(OutcomeUnknown):
                    await shop.inside("unknown", NEVER)
        assert await shop.state("unknown") == "unknown"
        assert rows() == []

    play_on_driver(scene, clock=CLOCK, **options)


@plain_or_ring
def test_i1_an_operation_that_becomes_leased_knows_its_old_keys(
    play_on_driver: Play, options: dict[str, Any]
) -> None:
    async def scene(shop: Shop) -> None:
        async with shop.transaction():
            first = await shop.inside("done")
            with pytest.raises(Terminal):
                await shop.inside("failed", Order(error=Terminal("for good")))
            with pytest.raises(ValueError):
                await shop.inside("freed", Order(error=ValueError()))
        told = await shop.outside("done", NEVER)
        assert (told.value, told.replayed, told.fence) == ("done", True, first.fence)
        with pytest.raises(OperationFailed, match="for good"):
            await shop.outside("failed", NEVER)
        assert (await shop.outside("freed")).value == "leased"
        assert rows() == ["tea"]

    play_on_driver(scene, **options)


@plain_or_ring
def test_a_dead_owners_key_is_taken_over(play_on_driver: Play, options: dict[str, Any]) -> None:
    async def scene(shop: Shop) -> None:
        (claimed,) = await apply(shop, claim_of("k"))
        CLOCK.us += 20_000_000
        await shop.begin()
        told = await shop.inside("k")
        assert (told.attempt, told.replayed) == (2, False)
        assert told.fence > claimed.fence  # I6
        await shop.rollback()
        async with shop.transaction():
            assert (await shop.inside("k")).attempt == 2
        (replay,) = await apply(shop, claim_of("k", owner=b"x" * 16))
        assert isinstance(replay, Replay)
        assert (replay.state, replay.attempt) == (State.SUCCEEDED, 2)
        assert rows() == ["tea"]

    play_on_driver(scene, clock=CLOCK, **options)


@plain_or_ring
def test_an_expired_key_runs_again_and_its_past_is_kept(
    play_on_driver: Play, options: dict[str, Any]
) -> None:
    async def scene(shop: Shop) -> None:
        async with shop.transaction():
            first = await shop.inside("k", keep="1h", audit="2h")
        CLOCK.us += 3_600_000_000
        async with shop.transaction():
            second = await shop.inside("k", keep="1h", audit="2h")
        assert (second.replayed, second.attempt) == (False, 1)
        assert second.fence > first.fence  # I6
        past = await done(shop.once._store.history(claim_of("k").id))
        assert [record.fence for record in past] == [first.fence]
        assert rows() == ["tea", "tea"]

    play_on_driver(scene, clock=CLOCK, **options)


def test_a_key_may_expire_and_run_again_within_one_transaction(play_on_driver: Play) -> None:
    async def scene(shop: Shop) -> None:
        async with shop.transaction():
            await shop.inside("k", keep="1h")
            CLOCK.us += 3_600_000_000
            assert not (await shop.inside("k", keep="1h")).replayed
        assert rows() == ["tea", "tea"]

    play_on_driver(scene, clock=CLOCK)


def test_an_unknown_key_may_be_recovered_inside(play_on_driver: Play) -> None:
    async def scene(shop: Shop) -> None:
        for key in ("kept", "freed"):
            await apply(shop, claim_of(key, retry_safe=False))
        CLOCK.us += 60_000_000  # past recover_grace: until then "nothing happened" is not believed
        async with shop.transaction():
            told = await shop.inside("kept", NEVER, recover=lambda key: Recovery.succeeded("known"))
            assert told.value == "known"
            await shop.inside("freed", recover=lambda key: Recovery.free())
        assert (await shop.outside("kept", NEVER)).value == "known"
        assert (await shop.outside("freed", NEVER)).value == "done"
        assert rows() == ["tea"]

    play_on_driver(scene, clock=CLOCK)


def test_the_cache_never_answers_with_what_was_rolled_back(play_on_driver: Play) -> None:
    async def scene(shop: Shop) -> None:
        kept, shop.once = shop.once, type(shop.once)(shop.url)
        try:
            await shop.begin()
            await shop.inside("k", Order(value="rolled back"))
            assert (await shop.inside("k", NEVER)).value == "rolled back"  # inside it did happen
            await shop.rollback()
            fresh = await shop.outside("k", Order((), value="committed"))
            assert (fresh.value, fresh.replayed) == ("committed", False)
            async with shop.transaction():
                assert (await shop.inside("k", NEVER)).value == "committed"
        finally:
            await done(shop.once.close())
            shop.once = kept

    play_on_driver(scene)


# --- too late -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wins", [True, False], ids=["finished", "still-running"])
@pytest.mark.parametrize("error", [None, Terminal("mine")], ids=["returns", "refuses"])
def test_i1_a_transaction_that_comes_too_late_is_undone(
    play_mainly: Play, wins: bool, error: Exception | None
) -> None:
    """A peer that heeds no transaction has claimed the key meanwhile."""

    async def scene(shop: Shop) -> None:
        driver = "asyncpg" if shop.is_async else "psycopg"
        async with SHOPS[driver](transactional=False) as peer:

            async def overtake() -> None:
                (claimed,) = await apply(peer, claim_of("k"))
                assert isinstance(claimed, Claimed)
                if wins:
                    assert await apply(peer, finish_of("k", claimed, "theirs")) == [Done()]

            async with shop.transaction():
                await shop.execute(MILK)
                if wins:
                    told = await meanwhile_in(shop, "k", overtake, error)
                    assert (told.value, told.replayed) == ("theirs", True)
                else:
                    with pytest.raises(LeaseLost):
                        await meanwhile_in(shop, "k", overtake, error)
        assert rows() == ["milk"]  # the rest of the transaction is as it was
        assert await shop.state("k") == ("succeeded" if wins else "pending")

    play_mainly(scene)


def test_another_request_is_in_flight_until_the_first_is_on_record(play_on_driver: Play) -> None:
    """What an open transaction was asked nobody else can see; the docs say so."""

    async def scene(shop: Shop, other: Shop) -> None:
        async with shop.transaction():
            await shop.inside("k", request={"cents": 500})
            with pytest.raises(InFlight):
                await other.outside("k", NEVER, request={"cents": 900})
        with pytest.raises(Mismatch):
            await other.outside("k", NEVER, request={"cents": 900})

    play_on_driver(scene)


def test_a_raw_commit_in_a_body_fails_loudly_and_leaves_what_the_docs_say(
    play_on_driver: Play,
) -> None:
    async def scene(shop: Shop) -> None:
        await shop.begin()
        with pytest.raises(ConfigurationError, match="is over"):
            await shop.inside("k", Order((INSERT, "COMMIT")))
        assert (rows(), await shop.state("k")) == (["tea"], None)
        # The driver takes its transaction for open still: nobody else may get this connection.
        setattr(shop, "block", None)  # noqa: B010
        await shop.close()
        await shop.open()

    play_on_driver(scene)
