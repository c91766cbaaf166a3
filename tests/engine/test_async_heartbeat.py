"""The heartbeat of an event loop: one timer for all attempts, a task for each that runs long."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from tests.engine.engine_parts import attempt_with, grant_of

from oncekey.core.commands import Command, Done, Renew, Reply
from oncekey.core.effects import CommandResult
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.attempts.attempt_base import AttemptBase
from oncekey.engine.background.heartbeat import AsyncHeartbeat, Heartbeat
from oncekey.engine.clock import Clock, SystemClock, Timer
from oncekey.stores.memory import AsyncMemoryStore
from oncekey.testing.sync_facade import yield_until

SECOND = 1_000_000
request: ContextVar[str] = ContextVar("request")


class _Timer:
    def __init__(self, due: int, call: Callable[[], None]) -> None:
        self.due = due
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Hand:
    """A clock whose timers are fired by hand."""

    def __init__(self) -> None:
        self.time = 0
        self.timers: list[_Timer] = []

    def now(self) -> int:
        return self.time

    def later(self, us: int, call: Callable[[], None]) -> Timer:
        timer = _Timer(self.time + us, call)
        self.timers.append(timer)
        return timer

    @property
    def planned(self) -> list[int]:
        return [timer.due for timer in self.timers if not timer.cancelled]

    def fire(self) -> None:
        """Fire the next timer, at its time."""
        timer = min((t for t in self.timers if not t.cancelled), key=lambda t: t.due)
        self.timers.remove(timer)
        self.time = timer.due
        timer.call()


class Case:
    def __init__(self) -> None:
        self.clock = Hand()
        self.renewed: list[bytes] = []
        clock: Any = self.clock
        self.heartbeat = AsyncHeartbeat(clock, self.answer)

    async def answer(self, command: Command) -> CommandResult:
        assert isinstance(command, Renew)
        self.renewed.append(command.id)
        return CommandResult(Done(), self.clock.time, self.clock.time)

    def attempt(self, name: bytes, *, lease: int = 30 * SECOND) -> AttemptBase:
        """An attempt that is claimed now and watched."""
        grant = grant_of(name, lease, self.clock.time + lease)
        attempt = attempt_with(self.clock, grant)
        self.heartbeat.watch(attempt)
        return attempt


def test_attempts_that_end_early_share_one_timer() -> None:
    async def main() -> None:
        case = Case()
        for number in range(100):
            case.clock.time += 1_000
            case.heartbeat.forget(case.attempt(b"%d" % number))
        assert len(case.clock.timers) == 1
        case.clock.fire()
        assert case.clock.timers == [], "nobody waits, so nothing is planned"
        assert case.renewed == []

    asyncio.run(main())


def test_a_long_attempt_is_renewed_at_each_third_of_its_lease() -> None:
    async def main() -> None:
        case = Case()
        attempt = case.attempt(b"a")
        assert case.clock.planned == [10 * SECOND]
        case.clock.fire()
        await yield_until(lambda: case.clock.planned == [20 * SECOND])
        assert case.renewed == [b"a"]
        assert attempt._deadline == 40 * SECOND
        case.clock.fire()
        await yield_until(lambda: case.renewed == [b"a", b"a"])
        case.heartbeat.forget(attempt)
        await yield_until(lambda: case.clock.planned == [])

    asyncio.run(main())


def test_an_attempt_with_a_shorter_lease_is_renewed_before_one_with_a_longer() -> None:
    async def main() -> None:
        case = Case()
        case.attempt(b"long")
        case.attempt(b"short", lease=3 * SECOND)
        assert case.clock.planned == [SECOND]
        case.clock.fire()
        assert case.clock.planned == [10 * SECOND], "and the longer one's is planned again"
        await yield_until(lambda: case.renewed == [b"short"])
        case.heartbeat.forget(next(iter(case.heartbeat._beats)))
        await yield_until(lambda: case.clock.planned == [10 * SECOND])
        case.clock.fire()
        await yield_until(lambda: case.renewed == [b"short", b"long"])
        case.heartbeat.forget(next(iter(case.heartbeat._beats)))

    asyncio.run(main())


def test_attempts_that_are_due_soon_are_renewed_together() -> None:
    async def main() -> None:
        case = Case()
        for number in range(5):
            case.clock.time = number * SECOND
            case.attempt(b"%d" % number)
        case.clock.fire()
        await yield_until(lambda: len(case.renewed) == 3)
        assert sorted(case.renewed) == [b"0", b"1", b"2"], "within a twelfth of their lease"
        assert case.clock.planned.count(13 * SECOND) == 1
        for attempt in [*case.heartbeat._beats, *case.heartbeat._waiting]:
            case.heartbeat.forget(attempt)

    asyncio.run(main())


def test_a_stopped_heartbeat_leaves_no_timer_behind() -> None:
    async def main() -> None:
        case = Case()
        case.heartbeat.forget(case.attempt(b"a"))
        case.heartbeat.stop()
        assert case.clock.planned == []
        case.attempt(b"b")
        assert case.clock.planned == [10 * SECOND], "and it may be used again"

    asyncio.run(main())


# --- loops and contexts ---------------------------------------------------------------------------


async def body(attempt: Any) -> int:
    return 1


def test_the_state_of_a_closed_event_loop_is_dropped() -> None:
    once = AsyncOnce("memory://")
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def use(number: int) -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await once.run("op", f"k{number}", body)

    for number in range(4):
        asyncio.run(use(number))
    gc.collect()
    assert [loop() is not None for loop in loops[:-1]] == [False, False, False]
    assert len(once._runner._loop_states) == 1


class Curious(AsyncMemoryStore):
    """A store that records the context it is called in."""

    immediate = False
    seen: list[str]

    async def apply(self, commands: Any, /) -> list[Reply]:
        self.seen.append(request.get("nobody's"))
        return await super().apply(commands)


class Impatient(SystemClock):
    """A clock whose timers fire at once."""

    def later(self, us: int, call: Callable[[], None]) -> Timer:
        return super().later(0, call)


def test_the_coalescer_runs_in_an_empty_context() -> None:
    """A task that outlives a request must not keep its objects alive, nor be traced with it."""
    store = Curious()
    store.seen = []
    clock: Clock = Impatient()
    once = AsyncOnce(store, clock=clock)

    async def lasting(attempt: Any) -> int:
        await yield_until(lambda: len(store.seen) >= 3)  # the claim and two renewals
        return 1

    async def main() -> None:
        request.set("alice's")
        await once.run("op", "k", lasting, lease="1s")
        await once.close()

    asyncio.run(main())
    assert set(store.seen) == {"nobody's"}


def test_the_heartbeat_runs_in_an_empty_context() -> None:
    seen: list[str] = []

    async def main() -> None:
        clock: Clock = Impatient()
        ended = asyncio.Event()

        async def answer(command: Command) -> CommandResult:
            seen.append(request.get("nobody's"))
            ended.set()
            return CommandResult(Done(), clock.now(), clock.now())

        heartbeat = AsyncHeartbeat(clock, answer)
        grant = grant_of(b"a", 10, clock.now() + 10)
        attempt = attempt_with(clock, grant)
        request.set("alice's")
        heartbeat.watch(attempt)
        await ended.wait()
        heartbeat.forget(attempt)

    asyncio.run(main())
    assert set(seen) == {"nobody's"}


# --- a store that raises --------------------------------------------------------------------------


def _attempt(clock: Any, lease: int) -> AttemptBase:
    grant = grant_of(b"a", lease, clock.now() + lease)
    return attempt_with(clock, grant)


def test_a_heartbeat_task_goes_on_whatever_the_store_raises() -> None:
    async def main() -> None:
        case = Case()
        answer = case.heartbeat._apply
        # Some drivers cancel their own calls when they lose a connection.
        raised = [RuntimeError("a bug"), asyncio.CancelledError(), OSError("a socket")]

        async def failing(command: Command) -> CommandResult:
            if raised:
                raise raised.pop(0)
            return await answer(command)

        case.heartbeat._apply = failing
        attempt = case.attempt(b"a")
        case.clock.fire()
        for left in (2, 1, 0):
            await yield_until(lambda: len(raised) == left and bool(case.clock.planned))  # noqa: B023
            case.clock.fire()
        await yield_until(lambda: case.renewed == [b"a"])
        assert not attempt.lost
        case.heartbeat.forget(attempt)
        await yield_until(lambda: case.clock.planned == [])

    asyncio.run(main())


def test_the_heartbeat_thread_goes_on_whatever_the_store_raises() -> None:
    renewed = threading.Event()
    clock = SystemClock()
    raised: list[Exception] = [RuntimeError("a bug"), OSError("a socket")]

    def apply_many(commands: Sequence[Command]) -> list[CommandResult]:
        if raised:
            raise raised.pop(0)
        renewed.set()
        return [CommandResult(Done(), clock.now(), clock.now()) for _ in commands]

    heartbeat = Heartbeat(apply_many, clock)
    attempt = _attempt(clock, 30 * SECOND)
    attempt._grant = replace(attempt._grant, deadline=clock.now() + SECOND)  # overdue
    heartbeat.watch(attempt)
    assert renewed.wait(60)
    heartbeat.stop()
    assert not attempt.lost
