"""Buckets, the floor and sessions' lengths: what several processes do to them (I6, I11, I12)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aetcd import rpc
from tests.stores.etcd.two_stores import Process, fresh_prefix

from oncekey.core.commands import Claimed, Done, Finish, Look, Seen
from oncekey.core.record import State
from oncekey.stores.etcd.garbage import NET_SECONDS, Buckets
from oncekey.stores.etcd.keyspace import Keys, pack_bucket, unpack_bucket
from oncekey.stores.etcd.sessions import session_seconds, ttl_seconds
from oncekey.stores.etcd.shared_store import SharedStore
from oncekey.stores.etcd.transactions import put, range_of, transaction
from oncekey.testing.contract.store_case import AUDIT, KEEP, SECOND, claim, token
from oncekey.testing.fake_clock import FakeClock

MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND
BUCKET = 10 * MINUTE


@pytest.fixture
def clocks() -> tuple[FakeClock, FakeClock]:
    return FakeClock(), FakeClock()


@pytest.fixture
def pair(clocks: tuple[FakeClock, FakeClock]) -> Iterator[tuple[Process, Process]]:
    prefix = fresh_prefix()
    one, other = Process(prefix, clocks[0]), Process(prefix, clocks[1])
    yield one, other
    one.close()
    other.close()


def finished(process: Process, id: bytes, **changes: Any) -> int:
    owner = token("own")
    reply = process.send(claim(id, owner, **changes))
    assert isinstance(reply, Claimed)
    assert process.send(Finish(id, owner, reply.fence, State.SUCCEEDED, b"done")) == Done()
    return reply.fence


def is_stored(process: Process, id: bytes) -> bool:
    seen = process.send(Look(id))
    assert isinstance(seen, Seen)
    return seen.record is not None


def test_i6_a_fence_grows_though_another_process_with_another_clock_swept_the_record(
    pair: tuple[Process, Process], clocks: tuple[FakeClock, FakeClock]
) -> None:
    """The process that claims again knew an older floor, and its clock is behind."""
    one, other = pair
    id = token("id")
    finished(one, token("id"))  # it knows a floor now
    clocks[1].advance(100 * HOUR)
    fence = finished(other, id)
    clocks[1].advance(100 * HOUR)
    assert other.store.sweep() == 2
    assert finished(one, id) > fence


def test_i12_a_bucket_that_another_process_has_removed_is_made_again(
    pair: tuple[Process, Process], clocks: tuple[FakeClock, FakeClock]
) -> None:
    one, other = pair
    first, second = token("id"), token("id")
    finished(one, first)
    clocks[1].advance(KEEP + AUDIT + 2 * BUCKET)
    assert other.store.sweep() == 1
    finished(one, second)
    assert not is_stored(one, first)
    assert is_stored(one, second)


def test_i12_nothing_is_added_to_a_bucket_that_a_sweeper_has_begun_to_remove(
    pair: tuple[Process, Process], clocks: tuple[FakeClock, FakeClock]
) -> None:
    """The sweeper died between its two steps; the next one goes on."""
    one, other = pair
    first, second = token("id"), token("id")
    finished(one, first)
    (end,) = one.run(_close_buckets)
    finished(one, second)
    clocks[1].advance(end - clocks[1].wall())
    assert other.store.sweep() == 1
    assert not is_stored(one, first)
    assert is_stored(one, second)


async def _close_buckets(cluster: SharedStore) -> list[int]:
    keys, end = cluster.keys, cluster.members.deadline()
    found = (await cluster.members.call("Range", range_of(keys.buckets), end)).kvs
    for one in found:
        lease, _ = unpack_bucket(one.value)
        close = put(one.key, pack_bucket(lease, True), lease)
        await cluster.members.call("Txn", transaction((), [close]), end)
    return [keys.parse_bucket(one.key) for one in found]


def test_i11_a_bucket_ends_by_itself_if_nobody_sweeps(pair: tuple[Process, Process]) -> None:
    one, _ = pair
    finished(one, token("id"))
    (ttl,) = one.run(_bucket_ttls)
    wanted = (KEEP + AUDIT) // SECOND + NET_SECONDS
    assert wanted - 60 <= ttl <= wanted + BUCKET // SECOND


async def _bucket_ttls(cluster: SharedStore) -> list[int]:
    members, end = cluster.members, cluster.members.deadline()
    found = (await members.call("Range", range_of(cluster.keys.buckets), end)).kvs
    requests = [rpc.LeaseTimeToLiveRequest(ID=one.lease) for one in found]
    return [(await members.call("LeaseTimeToLive", one, end)).TTL for one in requests]


@pytest.mark.parametrize("kept", [HOUR, 8 * DAY, 100 * DAY, 3_650 * DAY])
def test_i11_a_long_keep_makes_no_more_buckets_than_a_short_one(kept: int) -> None:
    now = 1_700_000_000 * SECOND
    buckets = Buckets(None, Keys("/x/"), BUCKET)  # type: ignore[arg-type]
    steps = range(0, kept, max(kept // 5_000, SECOND))
    ends = {buckets._end(now + step + kept, now + step) for step in steps}
    assert len(ends) <= 520
    for step in steps:
        end = buckets._end(now + step + kept, now + step)
        assert 0 <= end - (now + step + kept) < max(BUCKET, kept // 256)


def test_sessions_have_few_lengths_and_outlast_their_claims() -> None:
    leases = [2 * SECOND, 2 * SECOND + 1, 3 * SECOND, 5 * SECOND, 30 * SECOND, 24 * HOUR]
    assert [session_seconds(lease) for lease in leases] == [2, 3, 3, 6, 32, 98_304]
    lengths = {session_seconds(lease * SECOND) for lease in range(2, 86_401)}
    assert len(lengths) == 32
    for length in lengths:
        assert ttl_seconds(length) >= length + max(2, length // 4)


def test_s7_a_sweep_takes_a_claim_that_lapses_meanwhile(
    pair: tuple[Process, Process], clocks: tuple[FakeClock, FakeClock]
) -> None:
    """The background work takes the claim out of its session after the sweep has read it."""
    one, _ = pair
    id = token("id")
    lease = one.store.lease_min
    claimed = one.send(claim(id, token("own"), lease=lease, keep=1, audit=0, keep_unknown=1))
    assert isinstance(claimed, Claimed)

    async def sweep(cluster: SharedStore) -> int:
        assert cluster._beats is not None
        cluster._beats.cancel()  # its work is done by `read`, when this test wants it
        await asyncio.gather(cluster._beats, return_exceptions=True)
        clocks[0].advance(lease + 1 + one.store.sweep_lag)
        reader = cluster._garbage._reader
        real = reader._get

        async def read(keys: Any, end: float) -> list[Any]:
            reader._get = real  # type: ignore[method-assign]
            found = await real(keys, end)
            await cluster.let_lapse()
            return found

        reader._get = read  # type: ignore[method-assign]
        return await cluster.sweep(10)

    assert one.run(sweep) == 1
    assert not is_stored(one, id)
