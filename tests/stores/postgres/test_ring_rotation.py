"""Rotation of the ring, without concurrency: what it removes, moves and refuses (I12)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.stores.postgres.ring_sessions import AUDIT, KEEP, LEASE, RING, SECOND, SLOTS, Key, Ring
from tests.support.postgres_stores import DATABASE, server

from oncekey.core.commands import (
    Busy,
    Claimed,
    Done,
    Lost,
    Release,
    Replay,
    SaveStep,
    Unknown,
)
from oncekey.core.errors import ConfigurationError
from oncekey.core.record import State
from oncekey.stores.postgres import PostgresStore
from oncekey.stores.postgres.program import MOVES_MAX
from oncekey.testing.contract.store_case import claim, token

TERMS = {"lease": LEASE, "keep": KEEP, "audit": AUDIT, "keep_unknown": KEEP}


@pytest.fixture(scope="module")
def made() -> Iterator[Ring]:
    ring = Ring(server().url(DATABASE))
    yield ring
    ring.close()


@pytest.fixture
def ring(made: Ring) -> Ring:
    made.start()
    return made


# --- slots ---------------------------------------------------------------------------------------


def test_each_period_fills_its_slot_and_slots_are_reused(ring: Ring) -> None:
    slots = []
    for _ in range(SLOTS + 2):
        slots.append(ring.slot_of(ring.claimed()))
        ring.wait(SECOND)
    assert slots == [0, 1, 2, 3, 4, 5, 0, 1]


def test_i11_an_emptied_slot_has_no_pages_left(ring: Ring) -> None:
    for _ in range(50):
        ring.garbage()
    assert ring.pages(0) > 0
    ring.wait(2 * SECOND)
    assert ring.sweep() == 50
    assert ring.pages(0) == 0


def test_rotation_leaves_the_current_and_the_previous_slot_alone(ring: Ring) -> None:
    ring.garbage()
    ring.wait(SECOND)
    ring.garbage()
    assert ring.sweep() == 0
    ring.wait(SECOND)
    assert [ring.sweep(), ring.sweep()] == [1, 0]


def test_i11_rotation_removes_garbage_of_every_age_slot_by_slot(ring: Ring) -> None:
    for number in range(4):
        for _ in range(number + 1):
            ring.garbage()
        ring.wait(SECOND)
    ring.wait(SECOND)
    assert [ring.sweep() for _ in range(5)] == [1, 2, 3, 4, 0]


# --- what is needed stays ------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, SECOND // 3, SECOND - 1])
@pytest.mark.parametrize("state", [State.ABSENT, State.PENDING, State.SUCCEEDED, State.UNKNOWN])
def test_i12_a_record_stays_until_its_audit_ends(ring: Ring, state: State, offset: int) -> None:
    ring.wait(offset)
    key = _in_state(ring, state)
    record = ring.record(key.id)
    assert record is not None
    while ring.now < record.audit_until:
        ring.garbage()  # so that every slot has something to remove
        ring.sweep_all()
        assert ring.record(key.id) == record
        ring.wait(min(SECOND // 3, max(1, record.audit_until - ring.now)))
    ring.wait(3 * SECOND)
    ring.sweep_all()
    assert ring.record(key.id) is None


def _in_state(ring: Ring, state: State) -> Key:
    key = ring.claimed(retry_safe=False)
    if state is State.ABSENT:
        assert ring.apply(Release(key.id, key.owner, key.fence)) == [Done()]
    elif state is State.SUCCEEDED:
        assert ring.apply(key.finish()) == [Done()]
    elif state is State.UNKNOWN:
        ring.wait(LEASE)
        (reply,) = ring.apply(claim(key.id, token(), **TERMS))
        assert isinstance(reply, Unknown)
    return key


def test_i12_a_long_renewed_record_moves_slots_and_its_owner_finishes(ring: Ring) -> None:
    key = ring.claimed(lease=SECOND)
    slots = {ring.slot_of(key)}
    for _ in range(3 * SLOTS):
        ring.garbage()
        ring.wait(SECOND // 2)
        assert ring.apply(key.renew(SECOND)) == [Done()]
        ring.sweep_all()
        slots.add(ring.slot_of(key))
    assert len(slots) > 1, "it was never moved"
    assert ring.apply(SaveStep(key.id, key.owner, key.fence, "pay", True, b"paid")) == [Done()]
    assert ring.apply(key.finish(b"at last")) == [Done()]
    (reply,) = ring.apply(claim(key.id, token(), **TERMS))
    assert isinstance(reply, Replay)
    assert reply.body == b"at last"


def test_i2_a_moved_record_is_the_same_record(ring: Ring) -> None:
    key, _ = ring.due()
    before = ring.database.records(key.id)
    assert ring.sweep() == 1
    assert ring.database.records(key.id) == before
    assert ring.slot_of(key) == SLOTS - 1
    assert ring.pages(0) == 0


def test_i12_a_slot_with_a_live_record_is_emptied_only_right_before_reuse(ring: Ring) -> None:
    ring.garbage()
    key = ring.claimed(lease=SECOND, keep=SECOND, audit=SECOND)
    for _ in range(SLOTS - 2):
        ring.wait(SECOND)
        assert ring.apply(key.renew(SECOND + 1)) == [Done()]
        assert ring.sweep() == 0
    ring.wait(SECOND)
    assert ring.sweep() == 1
    assert ring.slot_of(key) == SLOTS - 1


def test_rotation_does_not_move_a_slot_without_garbage(ring: Ring) -> None:
    key = ring.claimed(lease=SECOND, keep=SECOND, audit=SECOND)
    for _ in range(SLOTS + 1):
        ring.wait(SECOND)
        assert ring.apply(key.renew(SECOND + 1)) == [Done()]
        assert ring.sweep() == 0
    assert ring.slot_of(key) == 0


def test_i12_rotation_leaves_a_slot_with_too_many_live_records(ring: Ring) -> None:
    """Moving records takes time, under a lock that claims wait for."""
    ring.garbage()
    ids = [token("many") for _ in range(MOVES_MAX + 1)]
    terms = {"lease": SECOND, "keep": SECOND, "audit": 2 * SECOND, "retry_safe": True}
    replies = ring.apply(*(claim(id, id, **terms) for id in ids))
    ring.wait(3 * SECOND)
    renewals = [
        Key(id, id, reply.fence).renew(SECOND)
        for id, reply in zip(ids, replies, strict=True)
        if isinstance(reply, Claimed)
    ]
    assert ring.apply(*renewals) == [Done()] * (MOVES_MAX + 1)
    ring.wait(2 * SECOND)  # their slot is to be filled next
    assert ring.sweep() == 0
    assert ring.ask("SELECT count(*) FROM {schema}.records_0") == [(MOVES_MAX + 2,)]
    assert ring.apply(renewals[0]._replace(lease=1)) == [Done()]


def test_i12_any_number_of_undecided_records_outlive_their_slot(ring: Ring) -> None:
    """They are moved one by one, without a lock that claims wait for; then the slot is emptied."""
    garbage = ring.garbage()
    ids = [token("many") for _ in range(MOVES_MAX + 1)]
    ring.apply(*(claim(id, id, lease=SECOND, keep=SECOND, audit=SECOND) for id in ids))
    ring.wait(4 * SECOND)
    assert ring.sweep_all() == 1
    assert ring.record(garbage.id) is None
    assert ring.ask("SELECT count(*) FROM {schema}.records_0") == [(0,)]
    assert ring.ask("SELECT count(*) FROM {schema}.records_kept") == [(MOVES_MAX + 1,)]
    ring.wait(100 * SECOND)
    ring.sweep_all()
    (reply,) = ring.apply(claim(ids[0], token(), **TERMS))
    assert isinstance(reply, Unknown)


def test_a_key_claimed_again_in_an_old_slot_has_one_record(ring: Ring) -> None:
    """Its new generation is written in place and outlives the slot's first period (I1, I6)."""
    ring.garbage()
    terms = {"keep": SECOND, "audit": 2 * SECOND}
    key = ring.finished(**terms)
    ring.wait(SECOND + 1)
    fences = [key.fence]
    for _ in range(SLOTS):
        (reply,) = ring.apply(claim(key.id, token(), lease=1, retry_safe=True, **terms))
        assert isinstance(reply, Claimed)
        assert reply.attempt == 1
        fences.append(reply.fence)
        ring.garbage()
        ring.wait(SECOND + 1)
        ring.sweep_all()
        assert ring.record(key.id) is not None
    assert fences == sorted(set(fences))


def test_i12_a_clock_set_back_over_a_period_boundary_loses_no_record(ring: Ring) -> None:
    ring.wait(3 * SECOND)
    keys = [ring.finished(), ring.claimed()]
    ring.garbage()
    ring.wait(-SECOND)
    keys.append(ring.claimed())
    ring.garbage()
    for _ in range(3):
        ring.sweep_all()
        assert all(ring.record(key.id) is not None for key in keys)
        ring.wait(-SECOND // 2)


# --- what is refused -----------------------------------------------------------------------------


def test_claims_longer_than_the_ring_are_refused_and_not_stored(ring: Ring) -> None:
    longest = (SLOTS - 2) * SECOND
    id = token()
    with pytest.raises(ConfigurationError, match="longer than the ring holds"):
        ring.apply(claim(id, token(), lease=1, keep=longest, audit=0))
    assert ring.record(id) is None
    (reply,) = ring.apply(claim(id, token(), lease=1, keep=longest - 1, audit=0))
    assert isinstance(reply, Claimed)


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"retention": "ring", "ring_slots": SLOTS + 1, "ring_period": "1s"},
        {"retention": "ring", "ring_slots": SLOTS, "ring_period": "2s"},
    ],
    ids=["plain", "more slots", "longer periods"],
)
def test_i1_a_store_with_another_ring_layout_is_refused(
    ring: Ring, other: dict[str, object]
) -> None:
    """It would look for keys in other slots."""
    store = PostgresStore(server().url(DATABASE), schema=RING.schema, **other)
    with pytest.raises(ConfigurationError, match="was made for retention 'ring 6 1000000'"):
        store.prepare()
    store.close()


def test_a_store_with_the_same_ring_layout_is_accepted(ring: Ring) -> None:
    same = {"retention": "ring", "ring_slots": SLOTS, "ring_period": "1s"}
    store = PostgresStore(server().url(DATABASE), schema=RING.schema, **same)
    key = ring.claimed()
    (reply,) = store.apply([claim(key.id, token(), **TERMS)])
    assert not isinstance(reply, Lost | Busy)  # by the server's clock it is long expired
    store.close()


def test_i12_the_finish_of_a_removed_record_is_lost(ring: Ring) -> None:
    key = ring.claimed(lease=1, keep=1, audit=0, keep_unknown=1)
    ring.wait(2 * SECOND)
    assert ring.sweep() == 1
    for command in key.verbs():
        assert ring.apply(command) == [Lost()]
