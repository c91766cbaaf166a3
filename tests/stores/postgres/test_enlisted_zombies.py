"""A lease that ended, its owner that did not, and a transaction that took the key over (I1, I2).

Whoever writes first wins, the other one's rows are undone or its outcome is refused, and a zombie
that meets the row of an open transaction is told so without waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.stores.postgres.conftest import Play
from tests.support.caller_connections import RING, Order, Shop, locks, rows
from tests.support.caller_connections.rivals import CLOCK, apply, claim_of, finish_of, meanwhile_in

from oncekey.core.commands import (
    Claimed,
    Done,
    Finish,
    Lost,
    Release,
    Renew,
    Resolve,
    SaveStep,
    Unknown,
)
from oncekey.core.errors import LeaseLost
from oncekey.core.record import State
from oncekey.core.recovery import Recovery

MILK = "INSERT INTO orders VALUES ('milk')"
Verb = Callable[[Claimed], Any]


def finish(claimed: Claimed) -> Finish:
    return finish_of("k", claimed, "the zombie's")


def renew(claimed: Claimed) -> Renew:
    return Renew(claim_of("k").id, claim_of("k").owner, claimed.fence, 10_000_000)


def release(claimed: Claimed) -> Release:
    return Release(claim_of("k").id, claim_of("k").owner, claimed.fence)


def save_step(claimed: Claimed) -> SaveStep:
    claim = claim_of("k")
    return SaveStep(claim.id, claim.owner, claimed.fence, "late", True, b"x")


VERBS = [finish, renew, release, save_step]
every_verb = pytest.mark.parametrize("verb", VERBS)
plain_or_ring = pytest.mark.parametrize("options", [{}, RING], ids=["plain", "ring"])


async def dead_owner(shop: Shop) -> Claimed:
    """A key whose owner, retry-safe, has let its lease end."""
    (claimed,) = await apply(shop, claim_of("k"))
    CLOCK.us += 20_000_000
    assert isinstance(claimed, Claimed)
    return claimed


@plain_or_ring
@every_verb
def test_i2_a_zombie_is_refused_by_what_a_transaction_has_written(
    play_on_driver: Play, verb: Verb, options: dict[str, Any]
) -> None:
    async def scene(shop: Shop, other: Shop) -> None:
        claimed = await dead_owner(shop)
        async with shop.transaction():
            await shop.inside("k")
            # Written and not committed; other keys of the batch are not held up either.
            replies = await apply(other, claim_of("b"), verb(claimed), claim_of("c"))
            assert isinstance(replies[0], Claimed)
            assert isinstance(replies[2], Claimed)
            assert replies[1] == Lost()
        assert await apply(other, verb(claimed)) == [Lost()]
        assert (rows(), await shop.state("k")) == (["tea"], "succeeded")

    play_on_driver(scene, clock=CLOCK, **options)


@plain_or_ring
def test_a_zombie_may_still_win_after_a_rollback(
    play_on_driver: Play, options: dict[str, Any]
) -> None:
    async def scene(shop: Shop, other: Shop) -> None:
        claimed = await dead_owner(shop)
        await shop.begin()
        await shop.inside("k")
        assert await apply(other, finish(claimed)) == [Lost()]
        await shop.rollback()
        assert await apply(other, finish(claimed)) == [Done()]
        async with shop.transaction():
            assert (await shop.inside("k", Order(()))).value == "the zombie's"
        assert rows() == []

    play_on_driver(scene, clock=CLOCK, **options)


@plain_or_ring
@every_verb
def test_i1_a_zombie_that_writes_first_undoes_the_transactions_rows(
    play_on_driver: Play, verb: Verb, options: dict[str, Any]
) -> None:
    """Its finish is the answer; any other sign of life makes the transaction step back."""

    async def scene(shop: Shop, other: Shop) -> None:
        claimed = await dead_owner(shop)

        async def rise() -> None:
            assert await apply(other, verb(claimed)) == [Done()]

        async with shop.transaction():
            await shop.execute(MILK)
            if verb is finish:
                told = await meanwhile_in(shop, "k", rise)
                assert (told.value, told.replayed, told.attempt) == ("the zombie's", True, 1)
            else:
                with pytest.raises(LeaseLost):
                    await meanwhile_in(shop, "k", rise)
        assert (rows(), locks()) == (["milk"], [])

    play_on_driver(scene, clock=CLOCK, **options)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_i1_at_higher_levels_the_whole_transaction_has_to_be_done_again(
    play_on_driver: Play, level: str
) -> None:
    async def scene(shop: Shop, other: Shop) -> None:
        claimed = await dead_owner(shop)

        async def rise() -> None:
            assert await apply(other, finish(claimed)) == [Done()]

        with pytest.raises(Exception, match="could not serialize"):
            async with shop.transaction(level):
                await meanwhile_in(shop, "k", rise)
        async with shop.transaction(level):
            assert (await shop.inside("k", Order(()))).value == "the zombie's"
        assert rows() == []

    play_on_driver(scene, clock=CLOCK)


@plain_or_ring
@pytest.mark.parametrize("found", [Recovery.free(), Recovery.succeeded("seen")])
def test_recovering_inside_a_transaction_holds_up_nobody(
    play_on_driver: Play, found: Recovery, options: dict[str, Any]
) -> None:
    """It takes the key's lock, as claims do: who comes from outside need not wait for the row."""

    async def scene(shop: Shop, other: Shop) -> None:
        await apply(shop, claim_of("k", retry_safe=False))
        CLOCK.us += 60_000_000  # past recover_grace: until then "nothing happened" is not believed
        (told,) = await apply(shop, claim_of("k", b"another".ljust(16)))
        assert isinstance(told, Unknown)

        async def outsiders() -> list[Any]:
            # One that had to wait would be the end of all three: lock_timeout.
            claims = [claim_of(name, b"outsider".ljust(16)) for name in "bkc"]
            return [type(reply) for reply in await apply(other, *claims)]

        async with shop.transaction():
            ran = await shop.inside("k", recover=lambda unknown: found)
            assert await outsiders() == [Claimed, Unknown, Claimed]  # unknown until the commit
            (late,) = await apply(
                other, Resolve(claim_of("k").id, told.record.fence, State.ABSENT, b"", "")
            )
            assert late == Lost()
        assert ran.value == ("seen" if found.state is State.SUCCEEDED else "done")
        assert (await shop.outside("k")).value == ran.value

    play_on_driver(scene, clock=CLOCK, **options)
