"""New keys are unique; sortable ones grow, whatever the clock and the threads do."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.interrupter import Interrupter, Stop

from oncekey.core.derived_keys import check_key, namespace_of
from oncekey.core.errors import InvalidKey
from oncekey.engine import new_key as new_key_module
from oncekey.engine.new_key import SortableUUIDs, new_key

NOW = 1_760_000_000_123_456_789
MS = 1_000_000


class Clock:
    def __init__(self, *readings: int) -> None:
        self.readings = list(readings)

    def __call__(self) -> int:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


def zeros(count: int) -> bytes:
    return bytes(count)


def ms_of(made: UUID) -> int:
    return made.int >> 80


# --- random -----------------------------------------------------------------------------------


def test_a_new_key_is_a_random_uuid() -> None:
    key = new_key()
    assert key == str(UUID(key))
    assert (UUID(key).version, UUID(key).variant) == (4, RFC_4122)
    assert len({new_key() for _ in range(1_000)}) == 1_000


@pytest.mark.parametrize("sortable", [False, True])
def test_a_namespace_is_a_prefix_of_the_key(sortable: bool) -> None:
    key = new_key(sortable=sortable, namespace="2026.10-eu_west1")
    assert namespace_of(key) == "2026.10-eu_west1"
    assert UUID(key.partition(":")[2]).version == (7 if sortable else 4)
    assert len(key) <= 64
    assert check_key(key, namespaces=["2026.10-eu_west1"]) == key
    assert namespace_of(new_key(sortable=sortable)) is None


@pytest.mark.parametrize("namespace", ["", "V2", "v2:", "n" * 17, 5])
def test_a_bad_namespace_is_refused(namespace: Any) -> None:
    with pytest.raises(InvalidKey, match="a namespace has 1 to 16"):
        new_key(namespace=namespace)


# --- sortable: the layout of RFC 9562 ---------------------------------------------------------


def test_a_sortable_key_has_the_bits_of_a_version_7_uuid() -> None:
    made = SortableUUIDs(Clock(NOW), lambda count: b"\xff" * count)()
    assert (made.version, made.variant) == (7, RFC_4122)
    assert ms_of(made) == NOW // MS
    assert made.int >> 64 & 0xFFF == 456_789 * 4_096 // MS
    assert made.int & (1 << 62) - 1 == (1 << 62) - 1
    assert SortableUUIDs(Clock(NOW), zeros)().int & (1 << 62) - 1 == 0


def test_a_sortable_key_contains_the_time_it_was_made() -> None:
    before = time.time_ns() // MS
    made = UUID(new_key(sortable=True))
    # Other tests of this process may have made keys some ticks ahead of the clock.
    assert before <= ms_of(made) <= time.time_ns() // MS + 1_000


def test_a_sortable_key_has_62_random_bits() -> None:
    draw = SortableUUIDs(Clock(NOW))
    tails = [draw().int & (1 << 62) - 1 for _ in range(300)]
    ever, always = 0, (1 << 62) - 1
    for tail in tails:
        ever |= tail
        always &= tail
    assert (ever, always) == ((1 << 62) - 1, 0)


# --- sortable: always greater -----------------------------------------------------------------


def _grows(made: list[UUID]) -> bool:
    texts = [str(one) for one in made]
    return all(one < other for one, other in pairwise(texts))


def test_sortable_keys_grow_while_the_clock_stands_still() -> None:
    draw = SortableUUIDs(Clock(NOW), zeros)
    made = [draw() for _ in range(10_000)]
    assert _grows(made)
    assert ms_of(made[-1]) - ms_of(made[0]) in (2, 3), "10,000 ticks are about 2.4 ms"


def test_sortable_keys_grow_when_the_clock_steps_back() -> None:
    draw = SortableUUIDs(Clock(NOW, NOW - 3_600_000 * MS, NOW - 1, NOW + 5 * MS), zeros)
    made = [draw() for _ in range(5)]
    assert _grows(made)
    assert ms_of(made[3]) == NOW // MS + 5, "the clock is followed again once it is ahead"


@given(st.lists(st.integers(0, 2**62), min_size=2, max_size=20))
def test_sortable_keys_grow_whatever_the_clock_reads(readings: list[int]) -> None:
    draw = SortableUUIDs(Clock(*readings), zeros)
    made = [draw() for _ in range(len(readings) + 3)]
    assert _grows(made)
    assert {one.version for one in made} == {7}


def test_sortable_keys_of_one_process_grow() -> None:
    keys = [new_key(sortable=True) for _ in range(5_000)]
    assert keys == sorted(set(keys))


def test_threads_get_different_sortable_keys_that_grow() -> None:
    """Ticks only, no random bits: any two equal ones were drawn from the same reading."""
    draw = SortableUUIDs(time.time_ns, zeros)
    begin = threading.Barrier(8)

    def many(_: int) -> list[UUID]:
        begin.wait()
        return [draw() for _ in range(5_000)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            drawn = list(pool.map(many, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert all(map(_grows, drawn))
    assert len({one for some in drawn for one in some}) == 40_000


def test_no_other_thread_makes_a_key_between_a_reading_and_its_use() -> None:
    """The threads of the test above would show this once in a million runs."""
    came_in: list[bool] = []

    def clock() -> int:
        other = threading.Thread(target=lambda: came_in.append(draw._lock.acquire(blocking=False)))
        other.start()
        other.join()
        return NOW

    draw = SortableUUIDs(clock)
    draw()
    assert came_in == [False]


@pytest.mark.skipif(not hasattr(signal, "raise_signal"), reason="there are no signals here")
def test_a_signal_handler_that_makes_a_key_does_not_deadlock() -> None:
    made: list[UUID] = []
    asked: list[int] = []

    def clock() -> int:
        asked.append(1)
        if len(asked) == 1:
            signal.raise_signal(signal.SIGTERM)
        return NOW

    draw = SortableUUIDs(clock)
    before = signal.signal(signal.SIGTERM, lambda *_: made.append(draw()))
    try:
        made.append(draw())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(made) == 2
    assert _grows(made)


def test_a_signal_handler_that_makes_a_key_anywhere_draws_another_tick() -> None:
    draw = SortableUUIDs(Clock(NOW), zeros)

    class Handler(Interrupter):
        def interrupt(self) -> None:
            made.append(draw())

    for place in range(1, 100):
        made: list[UUID] = []
        with Handler(place, Stop, within=(new_key_module.__file__,)) as handled:
            outer = draw()
        assert outer not in made, handled.came
        if not handled.came:
            assert place > 4, "it was hardly interrupted at all"
            return
    raise AssertionError("there is no end of places")


# --- forks ------------------------------------------------------------------------------------


def _in_a_child(work: Callable[[], bytes]) -> bytes:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, work())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        sent = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return sent


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("sortable", [False, True])
def test_a_forked_child_never_repeats_its_parents_keys(sortable: bool) -> None:
    def work() -> bytes:
        return b"".join(UUID(new_key(sortable=sortable)).bytes for _ in range(200))

    before = new_key(sortable=sortable)
    theirs = _in_a_child(work)
    ours = {UUID(new_key(sortable=sortable)).bytes for _ in range(200)}
    drawn = {theirs[i : i + 16] for i in range(0, len(theirs), 16)}
    assert len(drawn) == 200
    assert not drawn & ours
    if sortable:
        assert min(drawn) > UUID(before).bytes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_at_the_same_clock_reading_makes_other_keys() -> None:
    """The ticks of both are the same; the random bits must not be."""
    draw = SortableUUIDs(Clock(NOW))
    draw()
    theirs = _in_a_child(lambda: b"".join(draw().bytes for _ in range(50)))
    ours = [draw().bytes for _ in range(50)]
    drawn = [theirs[i : i + 16] for i in range(0, len(theirs), 16)]
    assert [one[:8] for one in drawn] == [one[:8] for one in ours]
    assert not set(drawn) & set(ours)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_a_key_is_made_does_not_deadlock() -> None:
    """Another thread holds the lock at the moment of the fork, and is not in the child."""
    from oncekey.engine.new_key import _sortable

    holding, done = threading.Event(), threading.Event()

    def hold() -> None:
        with _sortable._lock:
            holding.set()
            done.wait(60)

    def work() -> bytes:
        signal.alarm(20)  # a child that hangs is ended, and sends nothing
        return new_key(sortable=True).encode()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert holding.wait(60)
        sent = _in_a_child(work)
    finally:
        done.set()
        thread.join()
    assert UUID(sent.decode()).version == 7
