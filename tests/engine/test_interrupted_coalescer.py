"""A thread may be interrupted anywhere in the coalescer or its queue: no caller hangs (I11).

In each case one caller is interrupted at one place where a Python may run signal handlers (see
interrupter.py), in the next case at the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
from tests.engine.interrupter import Interrupter, Stop
from tests.support.coalescer_replies import reply_of

from oncekey.core.commands import Command, Look, Reply, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.batches import batch
from oncekey.engine.batches import coalescer as module
from oncekey.engine.batches.coalescer import Apply, Coalescer, _Ticket
from oncekey.testing.contract.engine_case import wait_until_true

TIMEOUT_SECONDS = 60.0
TRACED = (module.__file__, batch.__file__)
PLACES_MAX = 500
ROLES = ["leads alone", "leads others", "follows", "follows last"]


def _is_idle(coalescer: Coalescer) -> bool:
    in_flight = coalescer._batches_in_flight, coalescer._commands_in_flight
    return in_flight == (0, 0) and coalescer._tail is None


def look(number: int) -> Look:
    return Look(number.to_bytes(16, "big"))


class Caller(threading.Thread):
    """A thread that makes one call, interrupted at the given place in the coalescer, if any."""

    def __init__(self, coalescer: Coalescer, number: int, place: int = 0) -> None:
        super().__init__(daemon=True)
        self.coalescer = coalescer
        self.number = number
        self.place = place
        self.outcome: Any = None

    def run(self) -> None:
        interrupted: AbstractContextManager[object] = nullcontext()
        if self.place:
            interrupted = Interrupter(self.place, Stop, within=TRACED)
        with interrupted:
            try:
                self.outcome = reply_of(self.coalescer, look(self.number))
            except (Stop, StoreUnavailable) as error:
                self.outcome = error


class Case:
    """One leads a batch at the store, three queue up for the next; one of them is the victim."""

    def __init__(self, role: str, place: int) -> None:
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.coalescer = Coalescer(self.apply)
        self.victim = ROLES.index(role)
        self.callers = [
            Caller(self.coalescer, number, place if number == self.victim else 0)
            for number in range(4)
        ]

    def apply(self, commands: Sequence[Command]) -> list[Reply]:
        if not self.entered.is_set():
            self.entered.set()
            assert self.gate.wait(TIMEOUT_SECONDS)
        return [Seen(None, int.from_bytes(command.id, "big")) for command in commands]

    def play(self) -> None:
        first, *others = self.callers
        first.start()
        self._until(self.entered.is_set, first)
        for caller in others:
            if self.entered.is_set():
                self._start_queued(caller, len(self.coalescer._queue) + 1)
            else:  # the first one is gone, so this one leads
                caller.start()
                self._until(self.entered.is_set, caller)
        self.gate.set()
        for caller in self.callers:
            caller.join(TIMEOUT_SECONDS)
            assert not caller.is_alive(), f"{caller.number} is left waiting"

    def _start_queued(self, caller: Caller, count: int) -> None:
        caller.start()
        self._until(lambda: len(self.coalescer._queue) == count, caller)

    def _until(self, condition: Callable[[], bool], caller: Caller) -> None:
        """Wait for the condition, or until the caller has ended."""
        wait_until_true(lambda: condition() or not caller.is_alive())


class HeldCoalescer(Coalescer):
    """One of its callers waits before it calls the next one."""

    def __init__(self, apply: Apply, held: Look) -> None:
        super().__init__(apply, most=3, max_in_flight=2)
        self.held = held
        self.go_on = threading.Event()
        self.called: dict[int, _Ticket] = {}
        self.leading: set[_Ticket] = set()

    def _lead(self, leader: _Ticket) -> None:
        self.leading.add(leader)
        super()._lead(leader)

    def _hand_out(self, batch: Sequence[_Ticket]) -> None:
        try:
            super()._hand_out(batch)
        finally:
            self.leading.discard(batch[0])

    def _call_next(self, ticket: _Ticket) -> None:
        self.called[int.from_bytes(ticket.command.id, "big")] = ticket
        if ticket.command == self.held:
            assert self.go_on.wait(TIMEOUT_SECONDS)
        super()._call_next(ticket)


class TwoBatchesCase:
    """Two batches of three return from the store, the second one while those of the first are still
    being called, so that its callers are called after them; one of them is the victim."""

    FIRST_QUEUED = 2
    HELD = 3

    def __init__(self, victim: int, place: int) -> None:
        self.gates = [threading.Event(), threading.Event()]
        self.entered = [threading.Event(), threading.Event()]
        self.coalescer = HeldCoalescer(self.apply, look(self.HELD))
        self.victim = victim
        self.in_flight = 0
        self.callers = [
            Caller(self.coalescer, number, place if number == victim else 0) for number in range(8)
        ]

    def apply(self, commands: Sequence[Command]) -> list[Reply]:
        numbers = [int.from_bytes(command.id, "big") for command in commands]
        if numbers[0] < self.FIRST_QUEUED:
            self.entered[numbers[0]].set()
            assert self.gates[numbers[0]].wait(TIMEOUT_SECONDS)
        return [Seen(None, number) for number in numbers]

    def play(self) -> None:
        for caller, entered in zip(self.callers, self.entered, strict=False):
            caller.start()
            assert entered.wait(TIMEOUT_SECONDS)
        for caller in self.callers[self.FIRST_QUEUED :]:
            count = len(self.coalescer._queue) + 1
            caller.start()
            wait_until_true(partial(self._queued_or_ended, count, caller))
        self.gates[0].set()
        wait_until_true(lambda: self.is_left(queued=3, led=1))
        self.gates[1].set()
        wait_until_true(lambda: self.is_left(queued=0, led=0))
        self.in_flight = self.coalescer._commands_in_flight
        self.coalescer.go_on.set()
        for caller in self.callers:
            caller.join(TIMEOUT_SECONDS)
            assert not caller.is_alive(), f"{caller.number} is left waiting"

    def _queued_or_ended(self, count: int, caller: Caller) -> bool:
        return len(self.coalescer._queue) == count or not caller.is_alive()

    def is_left(self, queued: int, led: int) -> bool:
        """True if at most so many commands are queued, and so many batches are at the store."""
        return len(self.coalescer._queue) <= queued and len(self.coalescer.leading) == led


AnyCase = Case | TwoBatchesCase


@pytest.mark.parametrize("role", ROLES)
def test_i11_a_caller_interrupted_anywhere_leaves_no_other_waiting(role: str) -> None:
    interrupt_everywhere(partial(Case, role))


@pytest.mark.parametrize("victim", range(TwoBatchesCase.FIRST_QUEUED, 8))
def test_i11_a_caller_interrupted_between_two_batches_leaves_no_other_waiting(victim: int) -> None:
    interrupt_everywhere(partial(TwoBatchesCase, victim))


def test_callers_of_two_batches_are_called_one_after_the_other() -> None:
    case = TwoBatchesCase(victim=0, place=0)
    case.play()
    called = [number for number in case.coalescer.called if number in (3, 4, 6, 7)]
    assert called == [3, 4, 6, 7], "2 leads the first batch, 5 the second"
    assert case.in_flight == 6, "those still to be called count, so that batches stay full"
    assert [caller.outcome for caller in case.callers] == [Seen(None, n) for n in range(8)]


def test_a_batch_handed_out_as_the_last_caller_leaves_is_called_all_the_same() -> None:
    """The last one has seen that nobody comes after it, and does not hold the lock yet."""
    case = TwoBatchesCase(victim=0, place=0)
    last = case.callers[4]

    class LateLock:
        """Lets the last caller of the first batch in only after everyone has a reply."""

        def __init__(self) -> None:
            self.inner = threading.Lock()

        def __enter__(self) -> None:
            ticket = case.coalescer.called.get(last.number)
            if threading.current_thread() is last and ticket is not None and not ticket.ends:
                assert ticket.next is None
                wait_until_true(lambda: case.is_left(queued=0, led=0))
                assert ticket.next is not None
            self.inner.acquire()

        def __exit__(self, *_: object) -> None:
            self.inner.release()

    case.coalescer._lock = LateLock()  # type: ignore[assignment]
    case.coalescer.go_on.set()
    case.play()
    assert [caller.outcome for caller in case.callers] == [Seen(None, n) for n in range(8)]


def interrupt_everywhere(make: Callable[[int], AnyCase]) -> None:
    for place in range(1, PLACES_MAX):
        case = make(place)
        case.play()
        outcomes = [caller.outcome for caller in case.callers]
        for number, outcome in enumerate(outcomes):
            if number != case.victim:
                own = outcome == Seen(None, number)
                assert own or isinstance(outcome, StoreUnavailable), f"place {place}: {outcomes}"
        late = Caller(case.coalescer, 9)
        late.start()
        late.join(TIMEOUT_SECONDS)
        assert late.outcome == Seen(None, 9), f"place {place}: a batch counts as in flight for ever"
        wait_until_true(partial(_is_idle, case.coalescer))
        assert len(case.coalescer._queue) == 0
        if not isinstance(outcomes[case.victim], Stop):
            assert place > 5, "it was hardly interrupted at all"
            return
    raise AssertionError("there is no end of places")
