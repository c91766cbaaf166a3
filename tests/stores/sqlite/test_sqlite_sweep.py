"""The sweeper removes a bounded number of garbage records at a time, and nothing else (S7, I12)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oncekey.core.commands import Claim, Claimed, Done, Finish, Look, Renew, Replay, Seen
from oncekey.core.record import State
from oncekey.stores.sqlite import SQLiteStore

SECOND = 1_000_000
LEASE, KEEP, AUDIT = 30 * SECOND, 60 * SECOND, 90 * SECOND


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000 * SECOND

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "keys.db", clock=clock)
    yield store
    store.close()


def claim(n: int, owner: bytes = b"o") -> Claim:
    terms = (LEASE, KEEP, AUDIT)
    return Claim(
        n.to_bytes(16, "big"), owner, b"\x01f", *terms, retry_safe=False, keep_unknown=KEEP
    )


def fences(store: SQLiteStore, numbers: range) -> dict[int, int]:
    replies = store.apply([claim(n) for n in numbers])
    found = {}
    for n, reply in zip(numbers, replies, strict=True):
        assert isinstance(reply, Claimed)
        found[n] = reply.fence
    return found


def present(store: SQLiteStore, numbers: range) -> list[int]:
    replies = store.apply([Look(claim(n).id) for n in numbers])
    return [
        n
        for n, reply in zip(numbers, replies, strict=True)
        if isinstance(reply, Seen) and reply.record is not None
    ]


def bodies(store: SQLiteStore) -> list[bytes]:
    return [past.body for past in store.history(claim(1).id)]


def test_sweep_removes_at_most_its_limit_and_ends(store: SQLiteStore, clock: Clock) -> None:
    fences(store, range(25))
    clock.now += LEASE + KEEP + AUDIT
    assert [store.sweep(10), store.sweep(10), store.sweep(10), store.sweep(10)] == [10, 10, 5, 0]
    assert present(store, range(25)) == []


def test_sweep_removes_nothing_before_its_time(store: SQLiteStore, clock: Clock) -> None:
    fences(store, range(3))
    clock.now += LEASE + KEEP + AUDIT - 1
    assert store.sweep() == 0
    assert present(store, range(3)) == [0, 1, 2]
    clock.now += 1
    assert store.sweep() == 3


def test_sweep_postpones_renewed_records_and_they_hide_no_garbage(
    store: SQLiteStore, clock: Clock
) -> None:
    held = fences(store, range(20))
    clock.now += LEASE - 1
    renew = [Renew(claim(n).id, b"o", held[n], LEASE) for n in range(10)]
    assert store.apply(renew) == [Done()] * 10
    clock.now += 1 + KEEP + AUDIT
    assert store.sweep(10) == 10
    assert present(store, range(20)) == list(range(10))
    clock.now += LEASE
    assert store.sweep(100) == 10


def test_sweep_keeps_live_claims_and_unexpired_outcomes(store: SQLiteStore, clock: Clock) -> None:
    held = fences(store, range(2))
    for _ in range(10):  # ten leases long, as a heartbeat would do it
        clock.now += LEASE - 1
        assert store.apply([Renew(claim(0).id, b"o", held[0], LEASE)]) == [Done()]
        assert store.sweep() <= 1
    finish = Finish(claim(0).id, b"o", held[0], State.SUCCEEDED, b"x")
    assert store.apply([finish]) == [Done()]
    clock.now += KEEP - 1
    store.sweep()
    assert isinstance(store.apply([claim(0, b"other")])[0], Replay)
    clock.now += AUDIT
    store.sweep()
    assert present(store, range(1)) == [0]
    clock.now += 1
    assert store.sweep() == 1


def test_sweep_removes_past_generations_after_their_audit_window(
    store: SQLiteStore, clock: Clock
) -> None:
    for owner in (b"a", b"b", b"c"):
        reply = store.apply([claim(1, owner)])[0]
        assert isinstance(reply, Claimed)
        store.apply([Finish(claim(1).id, owner, reply.fence, State.SUCCEEDED, owner)])
        clock.now += KEEP
    store.apply([claim(1, b"d")])
    assert bodies(store) == [b"a", b"b", b"c"]  # "a" is past its window, and not yet swept
    assert [store.sweep(10), store.sweep(10)] == [1, 0]
    assert bodies(store) == [b"b", b"c"]
    clock.now += KEEP // 2
    assert store.sweep(10) == 1
    assert bodies(store) == [b"c"]
    clock.now += KEEP
    assert store.sweep(10) == 1
    assert bodies(store) == []
    assert present(store, range(1, 2)) == [1]


def test_sweep_takes_no_lock_if_nothing_is_due(store: SQLiteStore) -> None:
    fences(store, range(3))
    seen: list[str] = []
    connection = store._database._connection
    assert connection is not None
    connection.set_trace_callback(seen.append)
    assert store.sweep() == 0
    assert store.sweep(0) == 0
    assert not any(sql.startswith("BEGIN") for sql in seen)


def test_a_finish_changes_no_index(store: SQLiteStore) -> None:
    held = fences(store, range(1))
    connection = store._database._connection
    assert connection is not None
    before = connection.execute("SELECT sweep_at FROM oncekey_records").fetchall()
    store.apply([Finish(claim(0).id, b"o", held[0], State.SUCCEEDED, b"x")])
    assert connection.execute("SELECT sweep_at FROM oncekey_records").fetchall() == before


def test_sweep_returns_zero_only_if_no_garbage_is_left(store: SQLiteStore, clock: Clock) -> None:
    """S7: many renewed records in front must not make a sweeper that stops at 0 stop early."""
    renewed = fences(store, range(50))
    clock.now += SECOND
    (fence,) = fences(store, range(50, 51)).values()
    store.apply([Finish(claim(50).id, b"o", fence, State.SUCCEEDED, b"x")])
    long = 10 * (LEASE + KEEP + AUDIT)
    store.apply([Renew(claim(n).id, b"o", fence, long) for n, fence in renewed.items()])
    clock.now += LEASE + KEEP + AUDIT
    assert [store.sweep(1), store.sweep(1)] == [1, 0]
    assert present(store, range(51)) == list(range(50))
