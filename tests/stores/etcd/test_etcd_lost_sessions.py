"""Claims whose session etcd has ended, and claims that nobody keeps, on etcd (I1, I10, I11)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.stores.etcd.two_stores import Pair, claimed

from oncekey.core.commands import Adopt, Busy, Claimed, Done, Look, Renew, SaveStep, Seen, Unknown
from oncekey.core.errors import StoreUnavailable
from oncekey.testing.contract.store_case import LEASE, SECOND, claim, token


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def test_i1_no_claim_of_a_batch_of_several_requests_is_acknowledged_in_an_ended_session(
    pair: Pair,
) -> None:
    """The first request finds out that the session has ended; the others were planned before."""
    claimed(pair.one, token("id"), token("own"))
    pair.one.end_sessions()
    ids, owner = [token("id") for _ in range(200)], token("own")
    replies = pair.one.store.apply([claim(id, owner, retry_safe=True) for id in ids])
    assert {type(reply) for reply in replies} == {Claimed}
    rivals = pair.other.store.apply([claim(id, token("riv"), retry_safe=True) for id in ids])
    assert {type(reply) for reply in rivals} == {Busy}


def test_i10_a_claim_without_a_reply_lapses_though_another_caller_wanted_its_key(
    pair: Pair,
) -> None:
    id = token("id")
    claimed(pair.one, token("id"), token("own"))
    pair.one.lose_next_reply()
    with pytest.raises(StoreUnavailable):
        pair.one.send(claim(id, token("own"), retry_safe=True))
    assert isinstance(pair.one.send(claim(id, token("own"), retry_safe=True)), Busy)
    pair.advance(LEASE)
    pair.one.let_lapse()
    assert claimed(pair.other, id, token("riv"), retry_safe=True).taken_over


def test_i10_a_claim_lapses_though_the_reply_to_its_last_step_was_lost(pair: Pair) -> None:
    """This process does not know the revision of the record any more."""
    id, owner = token("id"), token("own")
    fence = claimed(pair.one, id, owner, retry_safe=True).fence
    pair.one.lose_next_reply()
    with pytest.raises(StoreUnavailable):
        pair.one.send(SaveStep(id, owner, fence, "pay", True, b"paid"))
    pair.advance(LEASE)
    pair.one.let_lapse()  # finds the record changed
    pair.one.let_lapse()
    reply = claimed(pair.other, id, token("riv"), retry_safe=True)
    assert [step.name for step in reply.steps] == ["pay"]


def test_i10_a_lapsed_claim_lapses_again_though_the_reply_to_its_renewal_was_lost(
    pair: Pair,
) -> None:
    id, owner = token("id"), token("own")
    fence = claimed(pair.one, id, owner, retry_safe=True).fence
    pair.advance(LEASE)
    pair.one.let_lapse()
    pair.one.lose_next_reply(after=1)  # it reads before it writes
    with pytest.raises(StoreUnavailable):
        pair.one.send(Renew(id, owner, fence, LEASE))
    assert isinstance(pair.other.send(claim(id, token("riv"), retry_safe=True)), Busy)
    pair.advance(LEASE)
    pair.one.let_lapse()
    assert claimed(pair.other, id, token("riv"), retry_safe=True).taken_over


def test_i10_a_claim_that_has_lapsed_is_not_held_though_its_host_is_an_hour_ahead(
    pair: Pair,
) -> None:
    id, unknown = token("id"), token("id")
    pair.clock.advance(3_600 * SECOND)
    claimed(pair.one, id, token("own"), retry_safe=True)
    claimed(pair.one, unknown, token("own"))
    pair.advance(LEASE)
    pair.one.let_lapse()
    assert claimed(pair.other, id, token("riv"), retry_safe=True).taken_over
    assert isinstance(pair.other.send(claim(unknown, token("riv"))), Unknown)


def test_i11_a_claim_that_a_paused_member_carries_out_late_is_not_held_for_ever(
    pair: Pair,
) -> None:
    """Its process has given it up, so nothing there renews it, nor lets it lapse. It ends with its
    session, which the process leaves."""
    late, kept, owner = token("id"), token("id"), token("own")
    fence = claimed(pair.one, kept, owner, retry_safe=True).fence
    (session,) = pair.one.sessions()
    held_back = pair.one.hold_back_next_request()
    with pytest.raises(StoreUnavailable):
        pair.one.send(claim(late, token("own"), retry_safe=True))
    pair.advance(LEASE - 1)
    assert pair.one.send(Renew(kept, owner, fence, LEASE)) == Done()
    pair.advance(1)
    pair.one.let_lapse()
    pair.one.run(lambda cluster: cluster.members.call("Txn", held_back[0], time.monotonic() + 5))
    assert isinstance(pair.other.send(claim(late, token("riv"), retry_safe=True)), Busy)
    assert pair.one.send(Renew(kept, owner, fence, LEASE)) == Done()  # it moves to a new session
    pair.one.keep_alive()
    assert session not in pair.one.sessions()
    pair.one.end_session(session)  # as etcd does when nobody keeps it alive
    assert claimed(pair.other, late, token("riv"), retry_safe=True).taken_over
    assert isinstance(pair.other.send(claim(kept, token("riv"), retry_safe=True)), Busy)


def test_i5_a_claim_adopted_from_another_store_is_held_until_its_lease_is_over(
    pair: Pair,
) -> None:
    """It has no session here, and has not lapsed."""
    claimed(pair.one, id := token("id"), token("own"), retry_safe=True)
    seen = pair.one.send(Look(id))
    assert isinstance(seen, Seen)
    assert seen.record is not None
    moved = seen.record._replace(id=token("id"))
    assert pair.one.send(Adopt(moved, seen.now)) == Done()
    pair.advance(LEASE - 1)
    rival = claim(moved.id, token("riv"), retry_safe=True)
    assert pair.other.send(rival) == Busy(1)
    pair.advance(1)
    assert isinstance(pair.other.send(rival), Claimed)
