"""Who holds a key on etcd: sessions say it, and no clock of a host (I1, I5, I10)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.stores.etcd.two_stores import Pair, Process, claimed, fresh_prefix

from oncekey.core.commands import (
    Busy,
    Claimed,
    Command,
    Done,
    Finish,
    Look,
    Lost,
    Release,
    Renew,
    Resolve,
    SaveStep,
    Seen,
    Unknown,
)
from oncekey.core.record import State
from oncekey.core.state_machine import state_now
from oncekey.stores.etcd.held_claims import elapsed_us
from oncekey.testing.contract.store_case import KEEP, LEASE, SECOND, claim, token

HOUR = 3_600 * SECOND


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def test_i5_a_claim_is_held_as_long_as_its_session_lives_whatever_another_clock_says(
    pair: Pair,
) -> None:
    id = token("id")
    claimed(pair.one, id, token("own"), retry_safe=True)
    for step in (0, HOUR, 100 * HOUR):
        pair.other_clock.advance(step)
        reply = pair.other.send(claim(id, token("riv"), retry_safe=True))
        assert reply == Busy(LEASE)
    seen = pair.other.send(Look(id))
    assert isinstance(seen, Seen)
    assert seen.record is not None
    assert seen.record.lease_until == seen.now + LEASE


def test_i10_after_its_session_a_claim_is_taken_over_though_its_lease_seems_to_last(
    pair: Pair,
) -> None:
    id, other = token("id"), token("id")
    first = claimed(pair.one, id, token("own"), retry_safe=True)
    claimed(pair.one, other, token("own"))
    pair.other_clock.advance(-HOUR)  # to this host the leases last for another hour
    pair.one.end_sessions()
    taken = claimed(pair.other, id, token("riv"), retry_safe=True)
    assert taken.taken_over
    assert taken.fence > first.fence
    assert isinstance(pair.other.send(claim(other, token("riv"))), Unknown)


@pytest.mark.parametrize("by", [-100 * HOUR, -HOUR, HOUR])
def test_i5_a_wall_clock_that_is_set_moves_no_lease(pair: Pair, by: int) -> None:
    id, owner = token("id"), token("own")
    fence = claimed(pair.one, id, owner, retry_safe=True).fence
    rival = claim(id, token("riv"), retry_safe=True)
    pair.one.set_wall_clock(by)
    pair.advance(LEASE - 1)
    pair.one.let_lapse()
    assert pair.one.send(rival) == Busy(1)
    assert pair.one.send(Renew(id, owner, fence, LEASE)) == Done()
    pair.one.set_wall_clock(by)
    assert pair.one.send(rival) == Busy(LEASE)
    pair.advance(LEASE)
    reply = pair.one.send(rival)
    assert isinstance(reply, Claimed)
    assert reply.taken_over


@pytest.mark.parametrize("who", ["one", "other"])
def test_i10_a_claim_that_has_lapsed_is_over_though_the_wall_clocks_are_set_back(
    pair: Pair, who: str
) -> None:
    """Look, list and claim say the same, and the late owner's outcome is still taken."""
    process = pair.one if who == "one" else pair.other
    id, safe, owner = token("id"), token("id"), token("own")
    fence = claimed(pair.one, id, owner).fence
    claimed(pair.one, safe, owner, retry_safe=True)
    pair.advance(LEASE)
    pair.one.let_lapse()
    pair.one.set_wall_clock(-HOUR)
    pair.other.set_wall_clock(-HOUR)
    seen = process.send(Look(id))
    assert isinstance(seen, Seen)
    assert state_now(seen.record, seen.now) is State.UNKNOWN
    listed = process.store.unfinished(0, 10)
    assert [state_now(one, listed.now) for one in listed.records if one.id == id] == [State.UNKNOWN]
    assert claimed(process, safe, token("riv"), retry_safe=True).taken_over
    assert isinstance(process.send(claim(id, token("riv"))), Unknown)
    assert pair.one.send(Finish(id, owner, fence, State.SUCCEEDED, b"late")) == Done()


def test_i5_a_renewal_keeps_a_claim_without_any_request(pair: Pair) -> None:
    ids, owner = [token("id") for _ in range(20)], token("own")
    fences = [claimed(pair.one, id, owner).fence for id in ids]
    pair.one.calls.clear()
    for _ in range(10):
        pair.clock.advance(LEASE // 3)
        renewals = [Renew(id, owner, fence, LEASE) for id, fence in zip(ids, fences, strict=True)]
        assert pair.one.store.apply(renewals) == [Done()] * 20
    assert pair.one.calls.count("Txn") == 0
    assert isinstance(pair.other.send(claim(ids[0], token("riv"))), Busy)


def test_a_claim_and_its_finish_are_one_request_each(pair: Pair) -> None:
    process, owner = pair.one, token("own")
    warm = claimed(process, token("id"), owner)  # it begins the session
    id = token("id")
    assert warm.fence
    process.calls.clear()
    fence = claimed(process, id, owner).fence
    assert process.calls == ["Txn"]
    assert process.send(Finish(id, owner, fence, State.SUCCEEDED, b"one")) == Done()
    id = token("id")
    fence = claimed(process, id, owner).fence
    process.calls.clear()
    assert process.send(Finish(id, owner, fence, State.SUCCEEDED, b"two")) == Done()
    assert process.calls == ["Txn"]  # the bucket was there


def test_i10_a_claim_that_was_not_renewed_lapses_though_its_process_lives(pair: Pair) -> None:
    id, kept, owner = token("id"), token("id"), token("own")
    claimed(pair.one, id, owner, retry_safe=True)
    fence = claimed(pair.one, kept, owner, retry_safe=True).fence
    pair.advance(LEASE - 1)
    assert pair.one.send(Renew(kept, owner, fence, LEASE)) == Done()
    pair.advance(1)
    rival = claim(id, token("riv"), retry_safe=True)
    assert isinstance(pair.other.send(rival), Busy)  # it is in its session still
    pair.one.let_lapse()
    reply = pair.other.send(rival)
    assert isinstance(reply, Claimed)
    assert reply.taken_over
    assert isinstance(pair.other.send(claim(kept, token("riv"), retry_safe=True)), Busy)


@pytest.mark.parametrize("command", ["finish", "release", "step", "renew"])
def test_i2_an_owner_whose_claim_has_lapsed_goes_on_until_somebody_else_decides(
    pair: Pair, command: str
) -> None:
    owner, fences = token("own"), {}
    mine, lost = token("id"), token("id")
    for id in (mine, lost):
        fences[id] = claimed(pair.one, id, owner, retry_safe=True).fence
    pair.advance(LEASE)
    pair.one.let_lapse()
    claimed(pair.other, lost, token("riv"), retry_safe=True)
    for id, expected in ((mine, Done()), (lost, Lost())):
        fence = fences[id]
        commands: dict[str, Command] = {
            "finish": Finish(id, owner, fence, State.SUCCEEDED, b"late"),
            "release": Release(id, owner, fence),
            "step": SaveStep(id, owner, fence, "pay", True, b"paid"),
            "renew": Renew(id, owner, fence, LEASE),
        }
        assert pair.one.send(commands[command]) == expected


def test_i5_a_renewal_after_the_session_was_lost_writes_the_claim_into_a_new_one(
    pair: Pair,
) -> None:
    id, owner = token("id"), token("own")
    fence = claimed(pair.one, id, owner, retry_safe=True).fence
    pair.one.end_sessions()
    pair.one.run(lambda cluster: cluster.sessions.keep_alive(cluster.held.of_session))
    assert pair.one.send(Renew(id, owner, fence, LEASE)) == Done()
    assert isinstance(pair.other.send(claim(id, token("riv"), retry_safe=True)), Busy)


def test_i1_a_claim_in_a_session_that_etcd_has_ended_is_not_acknowledged(pair: Pair) -> None:
    """The process does not know yet: the claim itself finds out, and begins a new session."""
    claimed(pair.one, token("id"), token("own"))
    pair.one.end_sessions()
    id = token("id")
    claimed(pair.one, id, token("own"), retry_safe=True)
    assert isinstance(pair.other.send(claim(id, token("riv"), retry_safe=True)), Busy)


def test_i10_a_claim_whose_reply_was_lost_lapses_too(pair: Pair) -> None:
    id, owner = token("id"), token("own")
    claimed(pair.one, token("id"), owner)
    pair.one.run(_lose_next_reply)
    with pytest.raises(ConnectionError):
        pair.one.send(claim(id, owner, retry_safe=True))
    rival = claim(id, token("riv"), retry_safe=True)
    assert isinstance(pair.other.send(rival), Busy)
    pair.advance(LEASE)
    pair.one.let_lapse()
    assert isinstance(pair.other.send(rival), Claimed)


async def _lose_next_reply(cluster: object) -> None:
    members = cluster.members  # type: ignore[attr-defined]
    real = members.call

    async def call(name: str, request: object, end: float) -> object:
        await real(name, request, end)
        members.call = real
        raise ConnectionError("the reply was lost")

    members.call = call


def test_i10_renewals_of_a_long_run_move_the_stored_lease_before_it_would_expire(
    pair: Pair,
) -> None:
    """The owner runs for much longer than `keep` and dies: its steps are still there."""
    id, owner = token("id"), token("own")
    fence = claimed(pair.one, id, owner, retry_safe=True, keep=KEEP).fence
    assert pair.one.send(SaveStep(id, owner, fence, "pay", True, b"paid")) == Done()
    for _ in range(5 * KEEP // (LEASE // 2)):
        pair.advance(LEASE // 2)
        assert pair.one.send(Renew(id, owner, fence, LEASE)) == Done()
    pair.one.end_sessions()
    pair.advance(LEASE)
    reply = claimed(pair.other, id, token("riv"), retry_safe=True)
    assert (reply.taken_over, [step.name for step in reply.steps]) == (True, ["pay"])
    assert pair.one.calls.count("Txn") < 60  # about 600 renewals


def test_a_key_is_decided_only_as_it_was_shown_by_whichever_process(pair: Pair) -> None:
    id, owner = token("id"), token("own")
    fence = claimed(pair.one, id, owner).fence
    pair.one.end_sessions()
    shown = pair.other.send(Look(id))
    assert isinstance(shown, Seen)
    assert shown.record is not None
    assert shown.now >= shown.record.lease_until  # it is unknown to whoever looks
    until = shown.record.lease_until
    free = Resolve(id, fence, State.ABSENT, b"", "ana: it never ran", lease_until=until)
    pair.advance(SECOND)
    pair.one.run(lambda cluster: cluster.sessions.keep_alive(cluster.held.of_session))
    assert pair.one.send(Renew(id, owner, fence, LEASE)) == Done()  # its owner came back
    assert pair.other.send(free) == Lost()


@pytest.mark.parametrize("command", ["claim", "renew"])
def test_i5_nothing_is_acknowledged_that_the_session_may_not_outlast(command: str) -> None:
    """Keepalives were late: one is sent first, and only then the claim or the renewal counts."""
    process, id, owner = Process(fresh_prefix()), token("id"), token("own")
    lease = 2 * SECOND
    fence = claimed(process, id, owner, lease=lease).fence
    process.run(_stop_beats)
    process.run(_all_but_ended)
    process.calls.clear()
    if command == "claim":
        claimed(process, token("id"), owner, lease=lease)
        assert process.calls == ["LeaseKeepAlive", "Txn"]
    else:
        assert process.send(Renew(id, owner, fence, lease)) == Done()
        assert process.calls == ["LeaseKeepAlive"]
    process.close()


async def _all_but_ended(cluster: object) -> None:
    for session in cluster.sessions._by_number.values():  # type: ignore[attr-defined]
        session.ends = elapsed_us() + 1_900_000


def test_i5_the_owner_stops_before_anybody_may_take_over() -> None:
    """Real time: the process goes silent without dying, as one does that is paused."""
    prefix, id = fresh_prefix(), token("id")
    silent, rival = Process(prefix), Process(prefix)
    try:
        before = time.monotonic()
        claimed(silent, id, token("own"), lease=2 * SECOND, retry_safe=True)
        silent.run(_stop_beats)
        taken_over = 0.0
        while not taken_over:
            reply = rival.send(claim(id, token("riv"), lease=2 * SECOND, retry_safe=True))
            taken_over = time.monotonic() if isinstance(reply, Claimed) else 0.0
            assert time.monotonic() - before < 120
        assert taken_over - before >= 2.0
    finally:
        silent.close()
        rival.close()


async def _stop_beats(cluster: object) -> None:
    cluster._beats.cancel()  # type: ignore[attr-defined]
