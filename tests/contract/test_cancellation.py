"""Cancellation at every await point of an attempt (I14), by asyncio and by anyio.

The first test records every point where an attempt waits, and compares them with `POINTS`. So no
point can be missing from the other tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from oncekey.core.commands import Command, Reply, Seen
from oncekey.core.policy import Policy
from oncekey.core.record import Record, State
from oncekey.engine.async_once import AsyncOnce
from oncekey.stores.memory import AsyncMemoryStore, MemoryStore
from oncekey.testing.sync_facade import yield_until

STEP = ["before SaveStep", "after SaveStep", "in step", "before SaveStep", "after SaveStep"]
POINTS = [
    "before bind",
    "after bind",
    "before Claim",
    "after Claim",
    "in body",
    *STEP,
    *STEP,
    "end of body",
    "before Finish",
    "after Finish",
]
FIRST_IN_BODY = POINTS.index("in body")


class PointTracker:
    """Records every point where an attempt waits, and holds the attempt at one of them."""

    def __init__(self, hold_at: int | None = None) -> None:
        self.names: list[str] = []
        self.hold_at = hold_at
        self.arrived = asyncio.Event()
        self.gate = asyncio.Event()

    async def pass_point(self, name: str) -> None:
        number = len(self.names)
        self.names.append(name)
        await asyncio.sleep(0)
        if number == self.hold_at:
            self.arrived.set()
            await self.gate.wait()


class TrackedStore(AsyncMemoryStore):
    """A memory store whose calls are points, before and after, as those of a remote store."""

    immediate = False

    def __init__(self, memory: MemoryStore, tracker: PointTracker) -> None:
        super().__init__(memory)
        self.tracker = tracker

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        kind = "+".join(type(command).__name__ for command in commands)
        await self.tracker.pass_point(f"before {kind}")
        replies = self.memory.apply(commands)
        await self.tracker.pass_point(f"after {kind}")
        return replies

    async def bind(self, check: bytes, /) -> Seen:
        await self.tracker.pass_point("before bind")
        mark = self.memory.bind(check)
        await self.tracker.pass_point("after bind")
        return mark


class TrackedAttempt:
    """One attempt on a tracked store."""

    def __init__(self, hold_at: int | None = None, *, retry_safe: bool = False) -> None:
        self.tracker = PointTracker(hold_at)
        self.memory = MemoryStore()
        self.retry_safe = retry_safe
        self.once = AsyncOnce(TrackedStore(self.memory, self.tracker), policy=Policy(lease="1h"))
        self.runs = 0
        self.sent: list[str] = []

    async def body(self, attempt: Any) -> list[str]:
        self.runs += 1
        await self.tracker.pass_point("in body")
        values = [await attempt.step(name, self.call) for name in ("reserve", "pay")]
        await self.tracker.pass_point("end of body")
        return values

    async def call(self, key: str) -> str:
        await self.tracker.pass_point("in step")
        self.sent.append(key)
        return key

    async def run(self) -> Any:
        return await self.once.run("op", "k", self.body, retry_safe=self.retry_safe)

    def record(self) -> Record | None:
        (record,) = self.memory._records.values() or (None,)
        return record

    async def retry(self) -> Any:
        """Retry with another engine on the same records."""
        other = AsyncOnce(AsyncMemoryStore(self.memory), policy=Policy(lease="1h"))
        return await other.run("op", "k", self.body, retry_safe=self.retry_safe)


def test_an_attempt_waits_at_these_points() -> None:
    async def main() -> None:
        case = TrackedAttempt()
        await case.run()
        assert case.tracker.names == POINTS

    asyncio.run(main())


async def cancel_task(case: TrackedAttempt) -> None:
    caller = asyncio.create_task(case.run())
    await case.tracker.arrived.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller  # it returns at once, though the attempt is still held


async def cancel_by_scope(case: TrackedAttempt) -> None:
    async with anyio.create_task_group() as group:

        async def caller() -> None:
            await case.run()
            raise AssertionError("the caller was not cancelled")

        group.start_soon(caller)
        await case.tracker.arrived.wait()
        group.cancel_scope.cancel()


async def cancel_by_timeout(case: TrackedAttempt) -> None:
    async def run_with_timeout() -> None:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            await case.run()

    limits: list[asyncio.Timeout] = []
    caller = asyncio.create_task(run_with_timeout())
    await case.tracker.arrived.wait()
    limits[0].reschedule(0)
    with pytest.raises(TimeoutError):
        await caller


@pytest.mark.parametrize("point", range(len(POINTS)), ids=lambda n: f"{n}-{POINTS[n]}")
@pytest.mark.parametrize("cancel", [cancel_task, cancel_by_scope, cancel_by_timeout])
def test_i14_an_attempt_goes_on_after_its_caller_was_cancelled(
    cancel: Callable[[TrackedAttempt], Any], point: int
) -> None:
    async def main() -> None:
        case = TrackedAttempt(point)
        await cancel(case)
        case.tracker.gate.set()
        await case.once.close()
        record, begun = case.record(), point >= FIRST_IN_BODY
        assert case.runs == int(begun)
        if begun:
            assert record is not None
            assert record.state is State.SUCCEEDED
        else:
            assert record is None or record.state is State.ABSENT
        case.tracker.hold_at = None
        result = await case.retry()
        assert result.replayed is begun
        assert (result.value, case.runs) == (case.sent, 1)
        assert len(case.sent) == 2

    asyncio.run(main())


@pytest.mark.parametrize("retry_safe", [False, True])
@pytest.mark.parametrize("point", range(2, len(POINTS)), ids=lambda n: f"{n}-{POINTS[n]}")
def test_i14_close_without_a_drain_leaves_no_key_pending(point: int, retry_safe: bool) -> None:
    """The body is cancelled; its key is then finished, unknown or free, as the policy says."""

    async def main() -> None:
        case = TrackedAttempt(point, retry_safe=retry_safe)
        caller = asyncio.create_task(case.run())
        await case.tracker.arrived.wait()
        closing = asyncio.create_task(case.once.close(drain="0s"))
        (attempt,) = case.once._runner.loop_state().tasks
        # wait until the attempt is cancelled or past this point
        await yield_until(lambda: attempt.cancelling() > 0 or len(case.tracker.names) > point + 1)
        case.tracker.gate.set()
        await closing
        await asyncio.gather(caller, return_exceptions=True)
        record = case.record()
        assert record is not None
        if point < FIRST_IN_BODY:
            assert (case.runs, record.state) == (0, State.ABSENT)
        elif point <= POINTS.index("end of body"):
            interrupted = State.ABSENT if retry_safe else State.UNKNOWN
            assert (case.runs, record.state) == (1, interrupted)
        else:
            assert (case.runs, record.state) == (1, State.SUCCEEDED)

    asyncio.run(main())


def test_i14_close_waits_for_running_attempts() -> None:
    async def main() -> None:
        case = TrackedAttempt(FIRST_IN_BODY)
        caller = asyncio.create_task(case.run())
        await case.tracker.arrived.wait()
        closing = asyncio.create_task(case.once.close())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not closing.done()
        case.tracker.gate.set()
        await closing
        assert (await caller).value == case.sent

    asyncio.run(main())


def test_i14_close_goes_on_when_its_own_caller_is_cancelled() -> None:
    async def main() -> None:
        case = TrackedAttempt(FIRST_IN_BODY)
        caller = asyncio.create_task(case.run())
        await case.tracker.arrived.wait()
        closing = asyncio.create_task(case.once.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        case.tracker.gate.set()
        assert (await caller).value == case.sent

    asyncio.run(main())


def test_a_timeout_inside_the_body_does_not_cancel_the_attempt() -> None:
    async def main() -> None:
        async def body(attempt: Any) -> str:
            with anyio.move_on_after(0):
                await anyio.sleep_forever()
            try:
                async with asyncio.timeout(0):
                    await asyncio.sleep(60)
            except TimeoutError:
                return "timed out inside"
            return "never"

        once = AsyncOnce("memory://")
        assert (await once.run("op", "k", body)).value == "timed out inside"
        assert (await once.run("op", "k", body)).replayed

    asyncio.run(main())


def test_a_body_that_cancels_itself_leaves_the_outcome_unknown() -> None:
    async def main() -> None:
        async def body(attempt: Any) -> None:
            raise asyncio.CancelledError

        case = TrackedAttempt()
        with pytest.raises(asyncio.CancelledError):
            await case.once.run("op", "k", body)
        record = case.record()
        assert record is not None
        assert record.state is State.UNKNOWN

    asyncio.run(main())


class SlowStore(AsyncMemoryStore):
    """A memory store that replies some iterations of the loop after it has applied a command."""

    immediate = False

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        replies = await super().apply(commands)
        for _ in range(5):
            await asyncio.sleep(0)
        return replies


@pytest.mark.parametrize("cancelled", [True, False])
def test_i14_a_claim_under_way_when_its_loop_ends_leaves_no_key_pending(cancelled: bool) -> None:
    """The end of `asyncio.run` cancels the tasks that are left, and waits for those alone."""
    memory = MemoryStore()
    runs: list[int] = []

    async def body(attempt: Any) -> str:
        runs.append(attempt.number)
        return "done"

    async def main(iterations: int) -> None:
        once = AsyncOnce(SlowStore(memory))
        caller = asyncio.create_task(once.run("op", f"k{iterations}", body))
        for _ in range(iterations):
            await asyncio.sleep(0)
        if cancelled:
            caller.cancel()

    for iterations in range(1, 20):
        asyncio.run(main(iterations))
        assert State.PENDING not in {record.state for record in memory._records.values()}, (
            f"after {iterations} iterations"
        )
    assert runs, "in the end the body has run"
