"""A thread may be interrupted anywhere in the coalescer or its queue: no caller hangs (I11).

Python runs signal handlers where a function begins, after a call and where a loop begins again. In
each case one caller is interrupted at one such place, in the next case at the next one.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

import pytest
from tests.support.coalescer_replies import reply_of

from oncekey.core.commands import Command, Look, Reply, Seen
from oncekey.core.errors import StoreUnavailable
from oncekey.engine import batch
from oncekey.engine.blocking import coalescer as module
from oncekey.engine.blocking.coalescer import Coalescer
from oncekey.testing.contract.engine_case import wait_until_true

TIMEOUT_SECONDS = 20.0
TRACED = (module.__file__, batch.__file__)
PLACES_MAX = 500
ROLES = ["leads alone", "leads others", "follows", "follows last"]


def _is_idle(coalescer: Coalescer) -> bool:
    return coalescer._batches_in_flight == coalescer._commands_in_flight == 0


def look(number: int) -> Look:
    return Look(number.to_bytes(16, "big"))


class Stop(BaseException):
    """Raised by a signal handler."""


class Caller(threading.Thread):
    """A thread that makes one call, interrupted at the given place in the coalescer, if any."""

    def __init__(self, coalescer: Coalescer, number: int, place: int = 0) -> None:
        super().__init__(daemon=True)
        self.coalescer = coalescer
        self.number = number
        self.place = place
        self.places = 0
        self.after: dict[FrameType, str] = {}
        self.outcome: Any = None

    def run(self) -> None:
        if self.place:
            sys.settrace(self._trace)
        try:
            self.outcome = reply_of(self.coalescer, look(self.number))
        except (Stop, StoreUnavailable) as error:
            self.outcome = error
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in TRACED:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = self.after.get(frame, "")
            self.after[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before.startswith(("CALL", "RESUME", "JUMP_BACKWARD")):
                self.places += 1
                if self.places == self.place:
                    raise Stop
        return self._trace


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


@pytest.mark.parametrize("role", ROLES)
def test_i11_a_caller_interrupted_anywhere_leaves_no_other_waiting(role: str) -> None:
    for place in range(1, PLACES_MAX):
        case = Case(role, place)
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
