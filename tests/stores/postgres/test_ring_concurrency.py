"""Rotation while other sessions work: explicit statement orders on real locks (I1, I2, I12, I14).

`begin...` executes a statement and leaves its transaction open; the others then continue or wait,
and the server reports which.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.stores.postgres.ring_sessions import AUDIT, KEEP, LEASE, RING, SECOND, SLOTS, Ring
from tests.support.postgres_stores import DATABASE, server

from oncekey.core.commands import Busy, Claimed, Done, Lost, Replay
from oncekey.core.record import State
from oncekey.testing.contract.store_case import claim, token

TERMS = {"lease": LEASE, "keep": KEEP, "audit": AUDIT, "keep_unknown": KEEP}
STALL_MAX = 0.1
VERBS = ["finish", "renew", "step", "release"]
LEAVES = {"finish": State.SUCCEEDED, "renew": State.PENDING, "step": State.PENDING}


# The order in which a server takes locks and snapshots matters here, so an older one is asked too.
KINDS = {
    "transactional": (None, True),
    "not transactional": (None, False),
    "server 15": (15, False),
}


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest) -> Iterator[Ring]:
    major, guard = KINDS[request.param]
    ring = Ring(server(major).url(DATABASE), guard=guard)
    yield ring
    ring.close()


@pytest.fixture
def ring(made: Ring) -> Ring:
    made.start()
    return made


# --- the owner and the move ----------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_i14_an_owners_command_during_a_move_has_its_effect_after_it(ring: Ring, verb: str) -> None:
    key, _ = ring.due()
    removed, sweeper = ring.begin_sweep()
    assert removed == 1
    command = dict(zip(VERBS, key.verbs(), strict=True))[verb]
    asked, session = ring.in_thread(ring.program.apply([command]))
    ring.wait_until_blocked(asked, session)
    sweeper.commit()
    assert asked.result(60) == [Done()]
    record = ring.record(key.id)
    assert record is not None
    assert record.state is LEAVES.get(verb, State.ABSENT)
    assert ring.slot_of(key) == SLOTS - 1


@pytest.mark.parametrize("verb", VERBS)
def test_i12_an_owners_open_transaction_keeps_its_slot_from_being_emptied(
    ring: Ring, verb: str
) -> None:
    key, _ = ring.due()
    command = dict(zip(VERBS, key.verbs(), strict=True))[verb]
    _, owner = ring.begin(command)
    assert ring.sweep() == 0
    assert ring.slot_of(key) == 0
    owner.commit()
    assert ring.sweep() == 1
    record = ring.record(key.id)
    assert record is not None
    assert record.state is LEAVES.get(verb, State.ABSENT)


def test_i2_an_outcome_stored_just_before_the_move_is_replayed_after_it(ring: Ring) -> None:
    key, _ = ring.due()
    assert ring.apply(key.finish(b"in time")) == [Done()]
    assert ring.sweep() == 1
    assert ring.apply(key.finish(b"in time")) == [Done()]  # its reply was lost (I9)
    assert ring.apply(key.renew()) == [Lost()]
    (reply,) = ring.apply(claim(key.id, token(), **TERMS))
    assert isinstance(reply, Replay)
    assert reply.body == b"in time"


# --- claims and the move -------------------------------------------------------------------------


def test_i1_a_claim_of_a_moving_key_waits_and_finds_it(ring: Ring) -> None:
    key, _ = ring.due()
    _, sweeper = ring.begin_sweep()
    asked, session = ring.in_thread(ring.program.apply([claim(key.id, token(), **TERMS)]))
    ring.wait_until_blocked(asked, session)
    sweeper.commit()
    (reply,) = asked.result(60)
    assert isinstance(reply, Busy)
    assert ring.record(key.id) is not None


def test_i1_a_claim_of_a_removed_key_waits_and_is_a_first_claim(ring: Ring) -> None:
    _, garbage = ring.due()
    _, sweeper = ring.begin_sweep()
    asked, session = ring.in_thread(ring.program.apply([claim(garbage.id, token(), **TERMS)]))
    ring.wait_until_blocked(asked, session)
    sweeper.commit()
    (reply,) = asked.result(60)
    assert isinstance(reply, Claimed)
    assert (reply.attempt, reply.taken_over) == (1, False)
    assert reply.fence > garbage.fence  # I6: also across deletion
    assert ring.record(garbage.id) is not None


def test_i1_a_claim_of_a_new_key_waits_no_longer_than_the_move(ring: Ring) -> None:
    ring.due()
    _, sweeper = ring.begin_sweep()
    new = token()
    asked, session = ring.in_thread(ring.program.apply([claim(new, token(), **TERMS)]))
    ring.wait_until_blocked(asked, session)
    sweeper.commit()
    (reply,) = asked.result(60)
    assert isinstance(reply, Claimed)


def test_i12_an_open_claim_keeps_the_slot_from_being_emptied(ring: Ring) -> None:
    """The claim renews a record that would have been removed."""
    _, garbage = ring.due()
    _, claimer = ring.begin(claim(garbage.id, token(), **TERMS))
    assert ring.sweep() == 0
    claimer.commit()
    assert ring.sweep() == 0  # now both of its records are live
    record = ring.record(garbage.id)
    assert record is not None
    assert record.state is State.PENDING


def test_i5_a_takeover_and_a_move_of_its_record_are_serialized(ring: Ring) -> None:
    ring.garbage()
    key = ring.claimed(retry_safe=True, lease=SECOND, keep=2 * SECOND, audit=SECOND)
    for _ in range(SLOTS - 2):
        ring.wait(SECOND)
        assert ring.apply(key.renew(SECOND + 1)) == [Done()]
    ring.wait(SECOND + 1)  # its lease is over
    again = {**TERMS, "retry_safe": True}
    _, sweeper = ring.begin_sweep()
    asked, session = ring.in_thread(ring.program.apply([claim(key.id, token(), **again)]))
    ring.wait_until_blocked(asked, session)
    sweeper.commit()
    (reply,) = asked.result(60)
    assert isinstance(reply, Claimed)
    assert reply.taken_over
    assert ring.apply(key.finish()) == [Lost()]
    assert ring.record(key.id) is not None


# --- two sweepers --------------------------------------------------------------------------------


def test_i11_two_sweepers_remove_everything_once(ring: Ring) -> None:
    for number in range(3):
        for _ in range(number + 1):
            ring.garbage()
        ring.wait(SECOND)
    ring.wait(SECOND)
    removed, first = ring.begin_sweep()
    assert removed == 1
    assert ring.sweep() == 0  # another session rotates: it does not wait
    first.commit()
    with ThreadPoolExecutor(4) as threads:
        sweepers = [ring.connect() for _ in range(4)]
        counts = threads.map(lambda one: ring.run(ring.program.sweep(1_000), one), sweepers)
        removed += sum(counts)
    removed += ring.sweep_all()
    assert removed == 1 + 2 + 3
    assert ring.ask("SELECT count(*) FROM {schema}.records") == [(0,)]


def test_a_second_rotation_at_the_same_time_does_nothing(ring: Ring) -> None:
    key, _ = ring.due()
    assert [ring.sweep(), ring.sweep()] == [1, 0]
    ring.wait((SLOTS + 2) * SECOND)  # the record that was moved is garbage now
    assert [ring.sweep(), ring.sweep()] == [1, 0]
    assert ring.record(key.id) is None


# --- somebody reads for long ---------------------------------------------------------------------


def test_i11_an_open_reader_delays_rotation_and_nothing_else(ring: Ring) -> None:
    """The sweeper gives up after a while; claims that queued behind it have waited no longer."""
    _, garbage = ring.due()
    reader = ring.connect()
    reader.connection.execute(b"BEGIN")
    reader.connection.execute(f"SELECT count(*) FROM {RING.quoted}.records".encode())  # noqa: S608
    stalls = [_stalled_claim(ring) for _ in range(8)]
    assert ring.record(garbage.id) is not None
    reader.commit()
    assert ring.sweep() == 1
    # A busy machine adds to each of them, but hardly to all: with a longer wait none were short.
    assert min(stalls) < STALL_MAX
    assert min(stalls) > 0


def _stalled_claim(ring: Ring) -> float:
    """How long a claim takes that arrived while a rotation was waiting for its lock."""
    claimer = ring.connect()
    ring.run(
        ring.program.apply([claim(token(), token(), **TERMS)]), claimer
    )  # its plans are cached
    sweeping, session = ring.in_thread(ring.program.sweep(1_000))
    while not sweeping.done() and not ring.database.blocks(session):
        pass
    began = time.monotonic()
    (reply,) = ring.run(ring.program.apply([claim(token(), token(), **TERMS)]), claimer)
    took = time.monotonic() - began
    assert isinstance(reply, Claimed)
    assert sweeping.result(60) == 0
    return took


def test_rotation_does_not_change_the_sessions_lock_timeout(ring: Ring) -> None:
    """Its lock_timeout ends with its transaction."""
    ring.due()
    session = ring.connect()
    session.connection.execute(b"SET lock_timeout = '1700ms'")
    assert ring.run(ring.program.sweep(1_000), session) == 1
    assert session.connection.execute(b"SHOW lock_timeout").fetchone() == ("1700ms",)
