"""Cancellation at every await point of an attempt (I14), by asyncio and by anyio.

The points are not chosen by hand: a dry run names every place where an attempt waits, and the
test fails if that list is not the one that is tested.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from oncekey.core.commands import Command, Reply
from oncekey.core.policy import Policy
from oncekey.core.record import Record, State
from oncekey.engine.aio.once import AsyncOnce
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


class Track:
    """Where an attempt waits: notes every place, and holds it at one of them."""

    def __init__(self, hold_at: int | None = None) -> None:
        self.names: list[str] = []
        self.hold_at = hold_at
        self.arrived = asyncio.Event()
        self.gate = asyncio.Event()

    async def stop(self, name: str) -> None:
        number = len(self.names)
        self.names.append(name)
        await asyncio.sleep(0)
        if number == self.hold_at:
            self.arrived.set()
            await self.gate.wait()


class TrackedStore(AsyncMemoryStore):
    """A memory store that waits before and after every call, as a server far away does."""

    immediate = False

    def __init__(self, memory: MemoryStore, track: Track) -> None:
        super().__init__(memory)
        self.track = track

    async def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        kind = "+".join(type(command).__name__ for command in commands)
        await self.track.stop(f"before {kind}")
        replies = self.memory.apply(commands)
        await self.track.stop(f"after {kind}")
        return replies

    async def bind(self, check: bytes, /) -> None:
        await self.track.stop("before bind")
        self.memory.bind(check)
        await self.track.stop("after bind")


class Scene:
    """One attempt on a tracked store."""

    def __init__(self, hold_at: int | None = None, *, retry_safe: bool = False) -> None:
        self.track = Track(hold_at)
        self.memory = MemoryStore()
        self.retry_safe = retry_safe
        self.once = AsyncOnce(TrackedStore(self.memory, self.track), policy=Policy(lease="1h"))
        self.runs = 0
        self.sent: list[str] = []

    async def body(self, attempt: Any) -> list[str]:
        self.runs += 1
        await self.track.stop("in body")
        done = [await attempt.step(name, self.call) for name in ("reserve", "pay")]
        await self.track.stop("end of body")
        return done

    async def call(self, key: str) -> str:
        await self.track.stop("in step")
        self.sent.append(key)
        return key

    async def run(self) -> Any:
        return await self.once.run("op", "k", self.body, retry_safe=self.retry_safe)

    def record(self) -> Record | None:
        (record,) = self.memory._records.values() or (None,)
        return record

    async def retry(self) -> Any:
        """A later retry, in a new engine on the same records."""
        other = AsyncOnce(AsyncMemoryStore(self.memory), policy=Policy(lease="1h"))
        return await other.run("op", "k", self.body, retry_safe=self.retry_safe)


def test_the_points() -> None:
    async def main() -> None:
        scene = Scene()
        await scene.run()
        assert scene.track.names == POINTS

    asyncio.run(main())


async def cancel_plainly(scene: Scene) -> None:
    caller = asyncio.create_task(scene.run())
    await scene.track.arrived.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller  # it leaves at once, the gate is still shut


async def cancel_by_scope(scene: Scene) -> None:
    async with anyio.create_task_group() as group:

        async def caller() -> None:
            await scene.run()
            raise AssertionError("the caller was not cancelled")

        group.start_soon(caller)
        await scene.track.arrived.wait()
        group.cancel_scope.cancel()


async def cancel_by_timeout(scene: Scene) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            await scene.run()

    limits: list[asyncio.Timeout] = []
    caller = asyncio.create_task(in_time())
    await scene.track.arrived.wait()
    limits[0].reschedule(0)
    with pytest.raises(TimeoutError):
        await caller


@pytest.mark.parametrize("point", range(len(POINTS)), ids=lambda n: f"{n}-{POINTS[n]}")
@pytest.mark.parametrize("cancel", [cancel_plainly, cancel_by_scope, cancel_by_timeout])
def test_i14_a_cancelled_caller_loses_nothing(cancel: Callable[[Scene], Any], point: int) -> None:
    async def main() -> None:
        scene = Scene(point)
        await cancel(scene)
        scene.track.gate.set()
        await scene.once.close()
        record, begun = scene.record(), point >= FIRST_IN_BODY
        assert scene.runs == int(begun)
        if begun:
            assert record is not None
            assert record.state is State.SUCCEEDED
        else:
            assert record is None or record.state is State.ABSENT
        scene.track.hold_at = None
        result = await scene.retry()
        assert result.replayed is begun
        assert (result.value, scene.runs) == (scene.sent, 1)
        assert len(scene.sent) == 2

    asyncio.run(main())


@pytest.mark.parametrize("retry_safe", [False, True])
@pytest.mark.parametrize("point", range(2, len(POINTS)), ids=lambda n: f"{n}-{POINTS[n]}")
def test_i14_a_shutdown_without_patience_leaves_no_key_pending(
    point: int, retry_safe: bool
) -> None:
    """The body is cancelled; what it did is stored, unknown or given back, by its own policy."""

    async def main() -> None:
        scene = Scene(point, retry_safe=retry_safe)
        caller = asyncio.create_task(scene.run())
        await scene.track.arrived.wait()
        closing = asyncio.create_task(scene.once.close(drain="0s"))
        (attempt,) = scene.once._runner.loop_state().tasks
        # until the cancellation has come
        await yield_until(lambda: attempt.cancelling() > 0 or len(scene.track.names) > point + 1)
        scene.track.gate.set()
        await closing
        await asyncio.gather(caller, return_exceptions=True)
        record = scene.record()
        assert record is not None
        if point < FIRST_IN_BODY:
            assert (scene.runs, record.state) == (0, State.ABSENT)
        elif point <= POINTS.index("end of body"):
            interrupted = State.ABSENT if retry_safe else State.UNKNOWN
            assert (scene.runs, record.state) == (1, interrupted)
        else:
            assert (scene.runs, record.state) == (1, State.SUCCEEDED)

    asyncio.run(main())


def test_i14_close_waits_for_running_attempts() -> None:
    async def main() -> None:
        scene = Scene(FIRST_IN_BODY)
        caller = asyncio.create_task(scene.run())
        await scene.track.arrived.wait()
        closing = asyncio.create_task(scene.once.close())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not closing.done()
        scene.track.gate.set()
        await closing
        assert (await caller).value == scene.sent

    asyncio.run(main())


def test_i14_close_goes_on_when_its_own_caller_is_cancelled() -> None:
    async def main() -> None:
        scene = Scene(FIRST_IN_BODY)
        caller = asyncio.create_task(scene.run())
        await scene.track.arrived.wait()
        closing = asyncio.create_task(scene.once.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        scene.track.gate.set()
        assert (await caller).value == scene.sent

    asyncio.run(main())


def test_a_bodys_own_timeouts_are_its_own_business() -> None:
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

        scene = Scene()
        with pytest.raises(asyncio.CancelledError):
            await scene.once.run("op", "k", body)
        record = scene.record()
        assert record is not None
        assert record.state is State.UNKNOWN

    asyncio.run(main())
