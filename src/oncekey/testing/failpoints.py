"""Failpoints: places between an engine and its store where a test lets something go wrong.

    failpoints = Failpoints()
    once = Once(failpoints.wrap(MemoryStore()))
    failpoints.crash(after="claim")          # the next attempt dies when it holds its key

A place is a verb of the store, such as "claim" or "finish", before or after its nth call from then
on. Each failpoint acts once. Knows stores by their commands only, and no test.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args, overload

from oncekey.core.commands import Claim, Command
from oncekey.core.step_flow import RETRY_MAX_US
from oncekey.core.store import AsyncStore, Store
from oncekey.testing.fake_clock import FakeClock
from oncekey.testing.faulty_store import AsyncFaultyStore, Fault, FaultyStore
from oncekey.testing.sync_facade import is_async

Verb = Literal["claim", "finish", "release", "renew", "save_step", "look", "resolve", "any"]
PAUSE_BEGINS_SECONDS: Final = 2.0  # within this time after a failed call
VERBS: Final[tuple[str, ...]] = get_args(Verb)


@dataclass
class _Failpoint:
    verb: str
    nth: int
    fault: Fault
    calls: int = 0

    def is_reached(self, verb: str) -> bool:
        """Counts a call of a verb; True if it is the one to fail."""
        if self.verb not in (verb, "any"):
            return False
        self.calls += 1
        return self.calls == self.nth


class Failpoints:
    """Lets calls of a store crash, lose their reply, be refused or be held, as a test says.

    clock    the clock of the stores, if a test can move it; `assert_idempotent` ends leases with it
    """

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._points: list[_Failpoint] = []
        self._commands: list[Command] = []
        self._stores: list[FaultyStore | AsyncFaultyStore] = []

    @overload
    def wrap(self, store: Store) -> FaultyStore: ...

    @overload
    def wrap(self, store: AsyncStore) -> AsyncFaultyStore: ...

    def wrap(self, store: Any) -> FaultyStore | AsyncFaultyStore:
        """A store with these failpoints, to be given to `Once` or `AsyncOnce`. Its commands come
        one by one, so that a failpoint concerns one attempt and no other."""
        kind = AsyncFaultyStore if is_async(store) else FaultyStore
        wrapped: FaultyStore | AsyncFaultyStore = kind(store, self._script, immediate=True)
        self._stores.append(wrapped)
        return wrapped

    # --- what a test sets ---------------------------------------------------------------------

    def crash(self, *, before: Verb | None = None, after: Verb | None = None, nth: int = 1) -> None:
        """The attempt that makes this call dies there: it gets SimulatedCrash, and the store hears
        nothing of it any more. Its lease is held until it ends."""
        self._add(before, after, nth, Fault.CRASH_BEFORE, Fault.CRASH_AFTER)

    def hold(self, *, before: Verb | None = None, after: Verb | None = None, nth: int = 1) -> None:
        """The call waits there for `release()`: a delay that lasts exactly as long as a test
        needs it."""
        self._add(before, after, nth, Fault.HOLD_BEFORE, Fault.HOLD_AFTER)

    def lose_reply(self, verb: Verb, *, nth: int = 1) -> None:
        """The call is applied, and its reply is lost on the way."""
        self._add(None, verb, nth, Fault.LOSE_REPLY, Fault.LOSE_REPLY)

    def refuse(self, verb: Verb, *, nth: int = 1) -> None:
        """The call is not applied, and the engine is told so."""
        self._add(verb, None, nth, Fault.REFUSE, Fault.REFUSE)

    def clear(self) -> None:
        """Forgets all failpoints and calls, and lets held calls go on."""
        with self._lock:
            self._points.clear()
            self._commands.clear()
        self.release()

    def release(self) -> None:
        """Lets every held call go on; may be called from any thread."""
        for store in self._stores:
            store.release()

    def wait_held(self) -> None:
        """Blocks until a call is held in the store that was wrapped last."""
        self._stores[-1].wait_held()

    def is_held(self) -> bool:
        """True while a call is held."""
        return any(store.held for store in self._stores)

    # --- what a test sees ---------------------------------------------------------------------

    def verbs(self) -> list[str]:
        """The verbs of all calls since the last `clear`, in their order."""
        with self._lock:
            return [verb_of(command) for command in self._commands]

    def longest_lease(self) -> int:
        """The longest lease, in microseconds, that was asked for since the last `clear`."""
        with self._lock:
            return max((c.lease for c in self._commands if isinstance(c, Claim)), default=0)

    # --- what the stores call -----------------------------------------------------------------

    def _script(self, number: int, commands: Sequence[Command]) -> Fault | None:
        with self._lock:
            self._commands.extend(commands)
            reached = [
                point
                for command in commands
                for point in self._points
                if point.is_reached(verb_of(command))
            ]
            self._points = [point for point in self._points if point not in reached]
        fault = reached[0].fault if reached else None
        if fault in (Fault.LOSE_REPLY, Fault.REFUSE) and self.clock is not None:
            threading.Thread(target=_pass_pause, args=(self.clock,), daemon=True).start()
        return fault

    def _add(
        self, before: str | None, after: str | None, nth: int, early: Fault, late: Fault
    ) -> None:
        if (before is None) == (after is None):
            raise ValueError("say either before= or after= which verb")
        verb = before if before is not None else after
        if verb not in VERBS:
            raise ValueError(f"{verb!r} is no verb of a store; known are {', '.join(VERBS)}")
        if nth < 1:
            raise ValueError(f"nth={nth} must be 1 or more: calls are counted from 1")
        fault = early if before is not None else late
        with self._lock:
            self._points.append(_Failpoint(verb, nth, fault))


def _pass_pause(clock: FakeClock) -> None:
    """Moves the clock over the pause that an engine makes before it repeats a call; otherwise it
    would last until the test moves the clock, and the test waits for the engine."""
    with suppress(AssertionError):  # it makes none
        clock.wait_until_due(RETRY_MAX_US, timeout=PAUSE_BEGINS_SECONDS)
        clock.advance(RETRY_MAX_US)


def verb_of(command: Command) -> str:
    """The verb of a command: "save_step" for a SaveStep."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(command).__name__).lower()
