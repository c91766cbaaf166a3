"""Who waits for which key: woken once, by the right key, and forgotten."""

from __future__ import annotations

import threading

from oncekey.engine.waiters import Waiters

A, B = b"a" * 16, b"b" * 16


def test_all_who_wait_for_a_key_are_woken_and_nobody_else() -> None:
    waiters = Waiters()
    woken: list[str] = []
    waiters.add(A, lambda: woken.append("a1"))
    waiters.add(A, lambda: woken.append("a2"))
    waiters.add(B, lambda: woken.append("b"))
    waiters.ended(A)
    assert woken == ["a1", "a2"]


def test_a_waiter_is_woken_once() -> None:
    waiters = Waiters()
    woken: list[int] = []
    waiters.add(A, lambda: woken.append(1))
    waiters.ended(A)
    waiters.ended(A)
    assert woken == [1]


def test_who_left_is_not_woken() -> None:
    waiters = Waiters()
    stays, leaves = threading.Event(), threading.Event()
    waiters.add(A, stays.set)
    waiters.add(A, leaves.set)
    waiters.remove(A, leaves.set)
    waiters.ended(A)
    assert stays.is_set()
    assert not leaves.is_set()


def test_removing_twice_or_after_waking_is_harmless() -> None:
    waiters = Waiters()
    event = threading.Event()
    waiters.add(A, event.set)
    waiters.ended(A)
    waiters.remove(A, event.set)
    waiters.remove(A, event.set)
    waiters.remove(B, event.set)
    waiters.ended(A)
    assert waiters._wakes == {}


def test_i11_nothing_stays_behind_of_keys_nobody_waits_for() -> None:
    waiters = Waiters()
    for number in range(100):
        event = threading.Event()
        id = number.to_bytes(16, "big")
        waiters.add(id, event.set)
        waiters.remove(id, event.set)
    assert waiters._wakes == {}


def test_a_waker_may_wait_again_at_once() -> None:
    """Waking happens outside the lock."""
    waiters = Waiters()
    again = threading.Event()
    waiters.add(A, lambda: waiters.add(A, again.set))
    waiters.ended(A)
    assert not again.is_set()
    waiters.ended(A)
    assert again.is_set()


def test_after_a_fork_nobody_waits_and_the_lock_is_free() -> None:
    waiters = Waiters()
    woken: list[int] = []
    waiters.add(A, lambda: woken.append(1))
    waiters._lock.acquire()
    waiters.reset()
    waiters.ended(A)
    assert woken == []
    waiters.add(A, lambda: woken.append(2))
    waiters.ended(A)
    assert woken == [2]
