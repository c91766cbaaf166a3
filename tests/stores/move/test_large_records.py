"""Two stores, one of which holds less: what the stricter one would refuse, both refuse, and what
only the other one can hold is neither lost nor replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.etcd_stores import etcd
from tests.support.postgres_stores import RING, open_blocking
from tests.support.servers import processes

from oncekey import ConfigurationError, NotReplayable, Once, Policy
from oncekey.cli.commands.copy import CopyProgress, copy_all
from oncekey.core.codec import JSON, Tombstone, pack_bytes, unpack
from oncekey.core.commands import (
    Claimed,
    Done,
    Finish,
    Look,
    Release,
    Replay,
    Resolve,
    SaveStep,
    Seen,
)
from oncekey.core.record import State
from oncekey.core.store import RecordTooLarge, Store, StoreLimits
from oncekey.engine.keys import administration
from oncekey.engine.keys.administration import run_plan
from oncekey.stores.etcd import EtcdStore
from oncekey.stores.memory import MemoryStore
from oncekey.stores.move import DualStore
from oncekey.stores.move.copy_rule import CopyResult
from oncekey.testing.contract.store_case import KEEP, LEASE, claim, token
from oncekey.testing.fake_clock import FakeClock

REQUEST_BYTES = 70_000
HALF = b"h" * 40_000  # two of them are too large
LARGE = pack_bytes("bytes", b"x" * 100_000)


class Stop:
    requested = False


class Pair:
    """A store without limits and an etcd that takes small records, in either direction."""

    def __init__(self, etcd_side: str) -> None:
        self.clock = FakeClock()
        self.wide = MemoryStore(clock=self.clock.wall)
        self.narrow = small_etcd()
        stores = (self.wide, self.narrow) if etcd_side == "new" else (self.narrow, self.wide)
        self.both = DualStore(*stores)

    def send(self, command: Any, to: Store | None = None) -> Any:
        (reply,) = (to or self.both).apply([command])
        return reply

    def claimed(self, to: Store | None = None, **changes: Any) -> tuple[bytes, bytes, int]:
        id, owner = token("id"), token("own")
        reply = self.send(claim(id, owner, **changes), to)
        assert isinstance(reply, Claimed)
        return id, owner, reply.fence

    def ended(self, body: bytes, to: Store | None = None) -> bytes:
        id, owner, fence = self.claimed(to)
        assert self.send(Finish(id, owner, fence, State.SUCCEEDED, body), to) == Done()
        return id

    def replayed(self, id: bytes, to: Store | None = None) -> bytes:
        reply = self.send(claim(id, token("riv")), to)
        assert isinstance(reply, Replay)
        return reply.body

    def records(self, id: bytes) -> list[Any]:
        return [self.send(Look(id), store).record for store in (self.both.old, self.both.new)]

    def copied(self, *, history: bool = True) -> CopyProgress:
        progress = CopyProgress()
        copy_all(self.both, progress, lambda now: None, Stop(), limit=10, history=history)  # type: ignore[arg-type]
        return progress


def small_etcd(request_bytes: int = REQUEST_BYTES, prefix: str = "") -> EtcdStore:
    members = etcd().addresses.split(",")
    return EtcdStore(
        members, prefix=prefix or processes.fresh_name("large"), request_bytes=request_bytes
    )


@pytest.fixture
def pairs() -> Iterator[Callable[[str], Pair]]:
    made: list[Pair] = []

    def make(etcd_side: str) -> Pair:
        made.append(Pair(etcd_side))
        return made[-1]

    yield make
    for pair in made:
        pair.both.close()


@pytest.fixture(params=["new", "old"])
def pair(request: pytest.FixtureRequest, pairs: Callable[[str], Pair]) -> Pair:
    return pairs(request.param)


@pytest.fixture
def to_etcd(pairs: Callable[[str], Pair]) -> Pair:
    return pairs("new")


# --- the stricter one rules --------------------------------------------------------------------


def test_the_limits_of_two_stores_are_the_stricter_ones(pair: Pair) -> None:
    narrow = StoreLimits.of(pair.narrow)
    assert min(narrow.outcome_max, narrow.record_max, narrow.lease_min) > 0
    assert StoreLimits.of(pair.both) == narrow
    one = StoreLimits(outcome_max=10, record_max=0, lease_min=5, terms_max=7, sweep_lag=1)
    other = StoreLimits(outcome_max=20, record_max=9, lease_min=6, terms_max=0, sweep_lag=2)
    assert one.stricter(other) == other.stricter(one) == StoreLimits(10, 9, 6, 7, 2)


def test_an_outcome_over_the_limit_of_one_store_is_a_tombstone_in_both(pair: Pair) -> None:
    once = Once(pair.both, cache=0, policy=Policy(max_bytes=10_000_000))
    assert once.run("op", "k", lambda attempt: "x" * 100_000).value == "x" * 100_000
    with pytest.raises(NotReplayable):
        once.run("op", "k", lambda attempt: "again")
    assert pair.copied().is_complete


def test_a_lease_that_one_store_cannot_keep_is_refused(pair: Pair) -> None:
    with pytest.raises(ConfigurationError, match="lease='500ms' is shorter than this store"):
        Once(pair.both, policy=Policy(lease="500ms"))
    id = token("id")
    with pytest.raises(ConfigurationError, match="give it a longer one"):
        pair.send(claim(id, token("own"), lease=1))
    assert [one is None or one.state is State.ABSENT for one in pair.records(id)] == [True] * 2


def test_terms_that_are_too_long_for_a_ring_are_refused() -> None:
    ring = open_blocking(**RING)
    both = DualStore(MemoryStore(), ring)
    assert StoreLimits.of(both).terms_max == StoreLimits.of(ring).terms_max > 0
    id = token("id")
    with pytest.raises(ConfigurationError, match="longer than the ring holds"):
        both.apply([claim(id, token("own"), keep=1_000 * KEEP)])
    (seen,) = both.old.apply([Look(id)])
    assert isinstance(seen, Seen)
    assert seen.record is not None
    assert seen.record.state is State.ABSENT
    both.close()


def test_i3_an_outcome_that_is_too_large_with_its_steps_is_the_same_tombstone_in_both(
    pair: Pair,
) -> None:
    id, owner, fence = pair.claimed()
    assert pair.send(SaveStep(id, owner, fence, "pay", True, HALF)) == Done()
    finish = Finish(id, owner, fence, State.SUCCEEDED, pack_bytes("bytes", HALF))
    assert pair.send(finish) == Done()
    assert pair.send(finish) == Done()  # I9
    one, other = pair.records(id)
    assert one.body == other.body == pair.replayed(id)
    stored = unpack(one.body)
    assert isinstance(stored, Tombstone)
    assert stored.too_large
    assert pair.copied().is_complete


def test_a_step_that_one_store_cannot_hold_is_in_neither(pair: Pair) -> None:
    id, owner, fence = pair.claimed(retry_safe=True)
    assert pair.send(SaveStep(id, owner, fence, "pay", True, HALF)) == Done()
    for done in (False, True):
        with pytest.raises(RecordTooLarge, match="keep large content elsewhere"):
            _raise(pair.send(SaveStep(id, owner, fence, "mail", done, HALF)))
    assert [[step.name for step in one.steps] for one in pair.records(id)] == [["pay"]] * 2


def _raise(reply: Any) -> None:
    if isinstance(reply, Exception):
        raise reply


# --- what only the old store can hold -----------------------------------------------------------


def test_i4_an_answer_that_the_new_store_cannot_hold_stays_in_the_old_one(to_etcd: Pair) -> None:
    large, small = to_etcd.ended(LARGE, to_etcd.wide), to_etcd.ended(b"small", to_etcd.wide)
    assert to_etcd.replayed(large) == LARGE
    progress = to_etcd.copied()
    assert not progress.is_complete
    assert [one.id for one in progress.large] == [large]
    (named,) = progress.large
    assert named.size > len(LARGE) > named.most
    assert progress.counts[CopyResult.COPIED] == 1
    assert to_etcd.replayed(small, to_etcd.narrow) == b"small"
    assert to_etcd.send(Look(large), to_etcd.narrow).record is None
    assert to_etcd.replayed(large) == LARGE
    assert to_etcd.replayed(large, to_etcd.wide) == LARGE
    to_etcd.clock.advance(LEASE + KEEP)
    assert to_etcd.copied(history=False).is_complete


def test_i4_an_answer_is_not_replaced_by_the_tombstone_that_stands_for_it(pair: Pair) -> None:
    """The stores took it before they were used together."""
    id, owner, fence = pair.claimed()
    step = SaveStep(id, owner, fence, "pay", True, HALF)
    finish = Finish(id, owner, fence, State.SUCCEEDED, pack_bytes("bytes", HALF))
    for store in (pair.wide, pair.narrow):
        assert pair.send(step, store) == Done()
        assert pair.send(finish, store) == Done()
    assert isinstance(unpack(pair.replayed(id, pair.narrow)), Tombstone)
    for _ in range(2):
        assert pair.replayed(id) == finish.body
    assert pair.replayed(id, pair.wide) == finish.body
    progress = pair.copied()
    assert [one.id for one in progress.large] == ([id] if pair.both.new is pair.narrow else [])


def test_a_key_whose_steps_do_not_fit_is_refused_and_held_by_nobody(to_etcd: Pair) -> None:
    id, owner, fence = to_etcd.claimed(to_etcd.wide, retry_safe=True)
    for name in ("pay", "mail"):
        step = SaveStep(id, owner, fence, name, True, HALF)
        assert to_etcd.send(step, to_etcd.wide) == Done()
    assert to_etcd.send(Release(id, owner, fence), to_etcd.wide) == Done()
    for _ in range(2):
        with pytest.raises(RecordTooLarge):
            _raise(to_etcd.send(claim(id, token("riv"), retry_safe=True)))
        assert [one.state for one in to_etcd.records(id)] == [State.ABSENT] * 2
    assert [one.id for one in to_etcd.copied().large] == [id]


def test_an_operator_decides_a_key_that_only_the_old_store_can_hold(to_etcd: Pair) -> None:
    id, owner, fence = to_etcd.claimed(to_etcd.wide)
    for name in ("pay", "mail"):
        to_etcd.send(SaveStep(id, owner, fence, name, True, HALF), to_etcd.wide)
    to_etcd.clock.advance(LEASE)
    found = pack_bytes("bytes", b"found")
    assert to_etcd.send(Resolve(id, fence, State.SUCCEEDED, found, "ana: it ran")) == Done()
    assert to_etcd.replayed(id) == found
    assert [one.id for one in to_etcd.copied().large] == [id]


def test_past_generations_that_do_not_fit_are_counted(to_etcd: Pair) -> None:
    id = to_etcd.ended(LARGE, to_etcd.wide)
    to_etcd.clock.advance(LEASE + KEEP)
    owner = token("own")
    fence = to_etcd.send(claim(id, owner), to_etcd.wide).fence
    to_etcd.send(Finish(id, owner, fence, State.SUCCEEDED, b"second"), to_etcd.wide)
    other = to_etcd.ended(LARGE, to_etcd.wide)  # it has expired, and is in its audit time
    to_etcd.clock.advance(KEEP // 2)
    progress = to_etcd.copied()
    assert (progress.past, progress.past_large, len(progress.large)) == (0, 1, 1)
    assert progress.large[0].id == other
    assert to_etcd.replayed(id, to_etcd.narrow) == b"second"


# --- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.PENDING, State.ABSENT, State.FAILED])
def test_i1_a_copy_gives_the_new_store_the_steps_that_it_lacks(state: State) -> None:
    """A process died after it had claimed the key in both stores, before it gave the new one the
    steps that an earlier attempt had saved in the old one. Without them the next attempt, with the
    new store alone, would pay again."""
    clock = FakeClock()
    both = DualStore(MemoryStore(clock=clock.wall), MemoryStore(clock=clock.wall))
    id, owner = token("id"), token("own")
    for store in (both.old, both.new):
        (claimed,) = store.apply([claim(id, owner, retry_safe=True)])
        assert isinstance(claimed, Claimed)
        step = SaveStep(id, owner, claimed.fence, "pay", True, b"paid")
        if store is both.old:
            assert store.apply([step]) == [Done()]
        if state is State.ABSENT:
            assert store.apply([Release(id, owner, claimed.fence)]) == [Done()]
        elif state is State.FAILED:
            failed = Finish(id, owner, claimed.fence, State.FAILED, b"no")
            assert store.apply([failed]) == [Done()]
    assert both.copy([id]) == [CopyResult.COPIED]
    assert both.copy([id]) == [CopyResult.THERE]
    (seen,) = both.new.apply([Look(id)])
    assert isinstance(seen, Seen)
    assert seen.record is not None
    assert [step.body for step in seen.record.steps] == [b"paid"]


def test_a_moved_step_is_shown_with_every_form_of_its_child_key() -> None:
    """The host that looks at it in the new store has another secret, or none."""
    both = DualStore(MemoryStore(), MemoryStore())

    def body(attempt: Any) -> None:
        attempt.step("pay", lambda key: 1 // 0)

    old = Once(both.old, secret="a secret of 32 characters at least")
    with pytest.raises(ZeroDivisionError):
        old.run("charge", "k", body, retry_safe=True)
    before = old.get("charge", "k")
    assert before is not None
    assert both.copy([bytes.fromhex(before.id)]) == [CopyResult.COPIED]
    after = run_plan(both.new, administration.look_at(bytes.fromhex(before.id), JSON))
    assert after is not None
    sent, shown = [[(s.intent, s.child_uuid) for s in one.steps] for one in (before, after)]
    assert shown == sent
    assert None not in sent[0]
