"""The replay cache is bounded in entries, bytes and age, and keeps keys apart (I8)."""

from __future__ import annotations

import gc
import random
import threading
from typing import Any

import pytest

from oncekey.engine.attempts.attempt_outcomes import ENTRY_OVERHEAD, Entry, ReplayCache

FOREVER = 10**15


def name(key: object, scope: str = "s") -> tuple[str, str, str]:
    return scope, "op", str(key)


def entry(*, size: int = 1, until: int = FOREVER, id: bytes = b"i" * 16) -> Entry:
    return id, b"\x01f", bytes(size), 1, 7, until, FOREVER


def put(cache: ReplayCache, key: object, **more: Any) -> None:
    cache.put(name(key), entry(**more))


def room(bytes_of_outcomes: int, entries: int = 1) -> int:
    """The smallest cache size for this many entries with this many bytes in all."""
    return bytes_of_outcomes + entries * ENTRY_OVERHEAD


def held(cache: ReplayCache, *keys: object) -> list[bool]:
    return [cache.get(name(key), 0) is not None for key in keys]


def test_an_entry_that_was_put_is_found() -> None:
    cache = ReplayCache()
    made = entry()
    cache.put(name("k"), made)
    assert cache.get(name("k"), 0) is made
    assert len(cache) == 1


def test_i8_entries_of_other_scopes_operations_and_keys_are_separate() -> None:
    cache = ReplayCache()
    put(cache, "k")
    for other in [("t", "op", "k"), ("s", "op2", "k"), ("s", "op", "k2"), ("", "sop", "k")]:
        assert cache.get(other, 0) is None


def test_the_least_recently_used_entry_is_dropped_first() -> None:
    cache = ReplayCache(entries=2)
    put(cache, "a")
    put(cache, "b")
    cache.get(name("a"), 0)
    put(cache, "c")
    assert held(cache, "a", "b", "c") == [True, False, True]


def test_putting_an_entry_again_replaces_it_and_counts_as_use() -> None:
    cache = ReplayCache(entries=2)
    put(cache, "a", until=5)
    put(cache, "b")
    put(cache, "a")
    put(cache, "c")
    assert held(cache, "a", "b", "c") == [True, False, True]
    got = cache.get(name("a"), 5)
    assert got is not None
    assert got[5] == FOREVER


def test_the_cache_is_bounded_in_bytes() -> None:
    cache = ReplayCache(size=room(10, entries=2))
    put(cache, "a", size=4)
    put(cache, "b", size=6)
    assert held(cache, "a", "b") == [True, True]
    put(cache, "b", size=7)
    assert held(cache, "a", "b") == [False, True]


def test_the_bytes_of_a_dropped_entry_are_free_again() -> None:
    cache = ReplayCache(size=room(10))
    for number in range(100):
        put(cache, "same", size=10)
        put(cache, number, size=10)
        assert len(cache) == 1
    put(cache, "old", size=10, until=3)
    assert cache.get(name("old"), 3) is None
    put(cache, "new", size=10)
    assert held(cache, "new") == [True]


def test_an_entry_larger_than_the_cache_is_not_added_and_drops_no_other() -> None:
    cache = ReplayCache(size=room(10))
    put(cache, "a", size=10)
    put(cache, "big", size=11)
    assert held(cache, "a", "big") == [True, False]


def test_the_garbage_collector_does_not_track_entries() -> None:
    cache = ReplayCache()
    put(cache, "k")
    gc.collect()
    assert not gc.is_tracked(cache.get(name("k"), 0))


def test_an_entry_is_valid_up_to_its_last_microsecond() -> None:
    cache = ReplayCache()
    put(cache, "k", until=100)
    assert cache.get(name("k"), 99) is not None
    assert cache.get(name("k"), 100) is None
    assert len(cache) == 0, "and is dropped when found expired"


def test_a_cache_of_no_entries_keeps_nothing() -> None:
    cache = ReplayCache(entries=0)
    put(cache, "k")
    assert (len(cache), cache.get(name("k"), 0)) == (0, None)


def test_a_reset_cache_has_no_entries_and_no_bytes() -> None:
    cache = ReplayCache(size=room(10))
    put(cache, "a", size=10)
    cache.reset()
    assert held(cache, "a") == [False]
    put(cache, "b", size=10)
    assert held(cache, "b") == [True]


@pytest.mark.parametrize("seed", [1, 2])
def test_many_threads_keep_the_bounds_and_get_the_right_entries(seed: int) -> None:
    cache = ReplayCache(entries=20, size=room(100, entries=15))
    wrong: list[object] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        dice = random.Random(seed * 100 + number)
        start.wait()
        for now in range(1_500):
            key = dice.randrange(40)
            if dice.random() < 0.4:
                until, id = dice.randint(1, 2_000), str(key).encode()
                put(cache, key, size=dice.randint(1, 12), until=until, id=id)
            else:
                got = cache.get(name(key), now)
                if got is not None and (got[0] != str(key).encode() or got[5] <= now):
                    wrong.append(got)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(cache) <= 20
