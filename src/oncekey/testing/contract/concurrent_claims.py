"""Store tests of claims at the same time: by many threads, and by two stores on the same data.

What a store does between reading a record and writing it shows only if somebody else comes in
between. So the clock, which stores read there, moves or lets others go first (S1, S9, I1, I5).
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress

import pytest

from oncekey.core.commands import Busy, Claimed, Reply
from oncekey.testing.contract.store_case import LEASE, SECOND, StoreCase, claim, token

CROWD = 4
BATCHES = 5
IN_ONE_BATCH = 96
HOUR = 3_600 * SECOND
STRIDE = 2 * HOUR
# Longer than the clock moves while each thread sends one batch.
LONG_LEASE = (CROWD + 1) * STRIDE
# How long a store is held up for another one, which may have to wait for the lock of the first.
HELD_UP_SECONDS = 0.5


class ConcurrentClaims:
    """Claims of the same keys at once: each key is granted to one of them."""

    def test_s9_many_threads_claim_the_same_new_keys_while_the_clock_moves(
        self, case: StoreCase
    ) -> None:
        """A store may keep records in different places at different times, and have each key once
        all the same."""
        moves: list[int] = []
        barrier = threading.Barrier(CROWD, action=lambda: moves.extend([STRIDE] * CROWD))
        batches = [[token("id") for _ in range(IN_ONE_BATCH)] for _ in range(BATCHES)]

        def one(_: int) -> list[Reply]:
            replies: list[Reply] = []
            for ids in batches:
                claims = [claim(id, token("own"), lease=LONG_LEASE, audit=HOUR) for id in ids]
                barrier.wait(30)
                replies += case.store.apply(claims)
            return replies

        def move() -> None:
            with suppress(IndexError):  # other stores read it once for each command
                case.clock.advance(moves.pop())

        with before_readings(case, move), ThreadPoolExecutor(CROWD) as pool:
            replies = list(pool.map(one, range(CROWD)))
        for got in zip(*replies, strict=True):
            assert kinds(*got) == {Claimed: 1, Busy: CROWD - 1}

    @pytest.mark.parametrize("reading", [1, 2])
    def test_s1_a_store_on_the_same_data_comes_in_between_two_takeovers(
        self, case: StoreCase, beside: StoreCase, reading: int
    ) -> None:
        """As another process does: it claims when the first store reads the clock. A store that
        has decided before it takes its lock grants the key twice."""
        held = case.claimed(retry_safe=True)
        case.wait(LEASE)
        claims = [held.rival(retry_safe=True) for _ in range(2)]
        with ThreadPoolExecutor(1) as pool:
            other: list[Future[Reply]] = []
            numbers = itertools.count(1)

            def let_the_other_go_first() -> None:
                if next(numbers) == reading:
                    other.append(pool.submit(beside.send, claims[1]))
                    wait(other, HELD_UP_SECONDS)

            with before_readings(case, let_the_other_go_first):
                replies = [case.send(claims[0])]
            replies.append(other[0].result(30) if other else beside.send(claims[1]))
        assert kinds(*replies) == {Claimed: 1, Busy: 1}
        ((winner, granted),) = [
            (one.owner, reply.fence)
            for one, reply in zip(claims, replies, strict=True)
            if isinstance(reply, Claimed)
        ]
        record = case.record(held.id)
        assert (record.owner, record.fence) == (winner, granted)


@contextmanager
def before_readings(case: StoreCase, call: Callable[[], None]) -> Iterator[None]:
    """Calls something whenever the store is about to read its clock."""
    wall = case.clock.wall

    def reading() -> int:
        call()
        return wall()

    case.clock.wall = reading  # type: ignore[method-assign]
    try:
        yield
    finally:
        case.clock.wall = wall  # type: ignore[method-assign]


def kinds(*replies: Reply) -> dict[type[Reply], int]:
    """How many replies there are of each type."""
    return dict(Counter(type(reply) for reply in replies))
