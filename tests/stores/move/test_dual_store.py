"""Two stores as one: marks, stores that disagree, a store that is down, and batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncekey import ConfigurationError, Once, Policy, StoreUnavailable
from oncekey.core.commands import Busy, Claimed, Done, Finish, Look, Lost, Replay, Resolve
from oncekey.core.guarantees import ClockClass, Guarantee, Level
from oncekey.core.identity import Identities
from oncekey.core.record import State
from oncekey.stores.memory import MemoryStore
from oncekey.stores.move import DualStore
from oncekey.stores.move.dual_reads import weaker
from oncekey.testing.contract.store_case import KEEP, LEASE, SECOND, claim, token
from oncekey.testing.fake_clock import FakeClock

CHECK = Identities(None).check_value()


class CountingStore(MemoryStore):
    """Counts batches, and can be down."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(clock=clock)
        self.batches: list[int] = []
        self.down: StoreUnavailable | None = None

    def apply(self, commands: Any, /) -> Any:
        if self.down is not None:
            raise self.down
        self.batches.append(len(commands))
        return super().apply(commands)


class Pair:
    """An old and a new store whose clock is ahead, and both as one."""

    def __init__(self, ahead: int = 600 * SECOND) -> None:
        self.clock = FakeClock()
        self.old = CountingStore(self.clock.wall)
        self.new = CountingStore(lambda: self.clock.wall() + ahead)
        self.both = DualStore(self.old, self.new)

    def send(self, command: Any, to: Any = None) -> Any:
        (reply,) = (to or self.both).apply([command])
        return reply


@pytest.fixture
def pair() -> Pair:
    return Pair()


# --- claims and outcomes ---------------------------------------------------------------------


def test_a_claim_is_held_in_both_stores_with_one_fence(pair: Pair) -> None:
    id, owner = token("id"), token("own")
    claimed = pair.send(claim(id, owner))
    records = [pair.send(Look(id), store).record for store in (pair.old, pair.new)]
    assert [record.fence for record in records] == [claimed.fence] * 2
    assert [record.owner for record in records] == [owner] * 2
    assert isinstance(pair.send(claim(id, token("riv")), pair.old), Busy)
    assert isinstance(pair.send(claim(id, token("riv")), pair.new), Busy)


@pytest.mark.parametrize("ahead", [-600 * SECOND, 600 * SECOND])
def test_i6_the_fence_grows_whichever_store_granted_the_last_one(ahead: int) -> None:
    pair = Pair(ahead)
    id = token("id")
    fences = []
    for store in (pair.new, pair.both, pair.old, pair.both, pair.new, pair.both):
        owner = token("own")
        claimed = pair.send(claim(id, owner), store)
        assert isinstance(claimed, Claimed)
        fences.append(claimed.fence)
        for each in (pair.old, pair.new) if store is pair.both else (store,):
            assert pair.send(claim(id, owner), each).fence == claimed.fence
            released = each.apply([Finish(id, owner, claimed.fence, State.FAILED, b"no")])
            assert released == [Done()]
            free = Resolve(id, claimed.fence, State.ABSENT, b"", "ana: again", State.FAILED)
            assert each.apply([free]) == [Done()]
    in_old = [fence for fence, at in zip(fences, "nbobnb", strict=True) if at != "n"]
    in_new = [fence for fence, at in zip(fences, "nbobnb", strict=True) if at != "o"]
    assert in_old == sorted(set(in_old))
    assert in_new == sorted(set(in_new))


@pytest.mark.parametrize("first", ["old", "new"])
def test_i4_an_outcome_that_one_store_has_is_replayed_and_healed(pair: Pair, first: str) -> None:
    """A process died between the two stores; a retry through both gets its outcome."""
    id, owner = token("id"), token("own")
    fence = pair.send(claim(id, owner)).fence
    finish = Finish(id, owner, fence, State.SUCCEEDED, b"body")
    assert pair.send(finish, getattr(pair, first)) == Done()
    assert pair.send(claim(id, token("riv"))).body == b"body"
    for store in (pair.old, pair.new):
        replay = pair.send(claim(id, token("riv")), store)
        assert isinstance(replay, Replay)
        assert replay.body == b"body"
        assert abs(replay.expires_in - KEEP) < SECOND


def test_a_key_that_the_new_store_holds_is_left_free_in_the_old_one(pair: Pair) -> None:
    id = token("id")
    pair.send(claim(id, token("own")), pair.new)
    assert isinstance(pair.send(claim(id, token("riv"))), Busy)
    assert pair.send(Look(id), pair.old).record.state is State.ABSENT


def test_a_finish_that_was_overtaken_in_the_new_store_is_lost(pair: Pair) -> None:
    id, owner = token("id"), token("own")
    fence = pair.send(claim(id, owner, retry_safe=True)).fence
    pair.clock.advance(LEASE)
    winner = token("riv")
    won = pair.send(claim(id, winner, retry_safe=True), pair.new)
    assert pair.send(Finish(id, owner, fence, State.SUCCEEDED, b"late")) == Lost()
    assert isinstance(pair.send(claim(id, token("riv"), retry_safe=True)), Busy)
    end = Finish(id, winner, won.fence, State.SUCCEEDED, b"won")
    assert pair.send(end, pair.new) == Done()
    assert pair.send(claim(id, token("riv"), retry_safe=True)).body == b"won"


# --- a store that is down ----------------------------------------------------------------------


def test_a_claim_leaves_nothing_behind_if_the_new_store_is_down(pair: Pair) -> None:
    id = token("id")
    pair.new.down = StoreUnavailable("refused", ambiguous=False)
    with pytest.raises(StoreUnavailable, match="refused"):
        pair.send(claim(id, token("own")))
    assert pair.send(Look(id), pair.old).record.state is State.ABSENT
    pair.new.down = None
    assert isinstance(pair.send(claim(id, token("own"))), Claimed)


def test_i13_a_finish_that_the_new_store_did_not_take_may_be_sent_again(pair: Pair) -> None:
    id, owner = token("id"), token("own")
    fence = pair.send(claim(id, owner)).fence
    finish = Finish(id, owner, fence, State.SUCCEEDED, b"body")
    pair.new.down = StoreUnavailable("refused", ambiguous=False)
    with pytest.raises(StoreUnavailable, match="in the old store") as caught:
        pair.send(finish)
    assert caught.value.ambiguous
    with pytest.raises(StoreUnavailable):
        pair.send(claim(id, token("riv")))  # nobody is told what only one of them has
    pair.new.down = None
    assert pair.send(finish) == Done()


def test_a_batch_stays_a_batch(pair: Pair) -> None:
    claims = [claim(token("id"), token("own")) for _ in range(50)]
    claimed = pair.both.apply(claims)
    assert (pair.old.batches, pair.new.batches) == ([50], [50])
    ends = [
        Finish(one.id, one.owner, reply.fence, State.SUCCEEDED, b"body")
        for one, reply in zip(claims, claimed, strict=True)
        if isinstance(reply, Claimed)
    ]
    assert pair.both.apply(ends) == [Done()] * 50
    assert (pair.old.batches, pair.new.batches) == ([50, 50], [50, 50])


# --- marks ------------------------------------------------------------------------------------


def test_the_new_store_alone_is_refused_until_everything_was_copied(pair: Pair) -> None:
    pair.both.bind(CHECK)
    Once(pair.old).close()
    with pytest.raises(ConfigurationError, match="still being filled"):
        Once(pair.new)
    assert not pair.both.was_copied()
    pair.both.finish_copy()
    assert pair.both.was_copied()
    Once(pair.new).close()
    with pytest.raises(ConfigurationError, match="were moved to another"):
        Once(pair.old)
    Once(pair.both).close()  # processes that know both go on


def test_a_store_of_somebody_else_that_returns_no_mark_is_refused() -> None:
    """It would be used alone while its keys are in two stores."""

    class Markless(MemoryStore):
        def bind(self, check: bytes, /) -> Any:
            super().bind(check)

    with pytest.raises(ConfigurationError, match=r"`bind` of this store has returned None"):
        Once(Markless())


def test_another_partner_is_refused(pair: Pair) -> None:
    pair.both.bind(CHECK)
    with pytest.raises(ConfigurationError, match="old store is being moved to another"):
        DualStore(pair.old, MemoryStore()).bind(CHECK)
    with pytest.raises(ConfigurationError, match="new store belongs to a move from another"):
        DualStore(MemoryStore(), pair.new).bind(CHECK)
    with pytest.raises(ConfigurationError, match="is itself still being filled"):
        DualStore(pair.new, MemoryStore()).bind(CHECK)
    with pytest.raises(ConfigurationError, match="is itself being moved"):
        DualStore(MemoryStore(), pair.old).bind(CHECK)
    pair.both.bind(CHECK)


def test_a_finished_move_can_be_followed_by_one_back_or_further(pair: Pair) -> None:
    pair.both.bind(CHECK)
    pair.both.finish_copy()
    with pytest.raises(ConfigurationError, match="already moved"):
        DualStore(pair.old, MemoryStore()).bind(CHECK)
    back = DualStore(pair.new, pair.old)
    back.bind(CHECK)
    with pytest.raises(ConfigurationError, match="is itself still being filled"):
        pair.both.bind(CHECK)
    back.finish_copy()
    Once(pair.old).close()
    with pytest.raises(ConfigurationError, match="were moved to another"):
        Once(pair.new)


def test_two_secrets_are_refused(pair: Pair) -> None:
    pair.new.bind(Identities("another secret of theirs").check_value())
    with pytest.raises(ConfigurationError, match=r"the new store: .*another secret"):
        pair.both.bind(CHECK)


def test_the_marks_are_in_no_list_of_both(pair: Pair) -> None:
    once = Once(pair.both)
    once.run("op", "k", lambda attempt: 1)
    assert [status.operation for status in once.list().keys] == ["op"]
    once.close()


# --- the rest ----------------------------------------------------------------------------------


def test_the_guarantee_is_the_weaker_one() -> None:
    strong = Guarantee(Level.TRANSACTIONAL, "a server", ClockClass.SERVER)
    weak = Guarantee(Level.BEST_EFFORT, "a cache", ClockClass.SERVER_LEASE)
    both = weaker(strong, weak)
    assert (both.level, both.clock) == (Level.BEST_EFFORT, ClockClass.SERVER)
    assert both.reason == "moving between two stores; the new one: a cache"


def test_a_transaction_in_two_stores_is_refused(pair: Pair) -> None:
    once = Once(pair.both, policy=Policy(lease="30s"))
    with pytest.raises(ConfigurationError, match="belongs to one database"):
        once.in_transaction(object())
    once.close()


def test_a_store_does_not_move_to_itself(pair: Pair) -> None:
    with pytest.raises(ConfigurationError, match="the same one"):
        DualStore(pair.old, pair.old)
