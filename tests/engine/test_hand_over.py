"""Work in the caller's task goes on in another task if its caller is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engine.engine_parts import parts_with

from oncekey.engine.aio.body import AsyncProgress
from oncekey.engine.aio.hand_over import in_callers_task, resumed
from oncekey.engine.aio.loop_state import ClaimsUnderWay
from oncekey.testing.sync_facade import yield_until


class Exchange:
    """Waits for a reply, like a claim; a cancellation is noted and does not end the wait."""

    def __init__(self) -> None:
        self.reply = asyncio.Event()
        self.cancellations = 0
        self.task: asyncio.Task[str] | None = None

    async def run(self) -> str:
        while not self.reply.is_set():
            try:
                await self.reply.wait()
            except asyncio.CancelledError:
                self.cancellations += 1
        return "claimed"

    async def in_callers_task(self) -> str:
        work = self.run()

        async def rest() -> str:
            return await resumed(work)

        def hand_over() -> None:
            self.task = asyncio.create_task(rest())

        return await in_callers_task(work, hand_over)


def test_a_caller_that_is_not_cancelled_gets_the_value_and_nothing_is_handed_over() -> None:
    async def main() -> None:
        exchange = Exchange()
        caller = asyncio.create_task(exchange.in_callers_task())
        await asyncio.sleep(0)
        exchange.reply.set()
        assert await caller == "claimed"
        assert exchange.task is None

    asyncio.run(main())


def test_i14_a_cancelled_caller_leaves_at_once_and_its_work_goes_on() -> None:
    async def main() -> None:
        exchange = Exchange()
        caller = asyncio.create_task(exchange.in_callers_task())
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert exchange.task is not None
        assert not exchange.task.done()
        await asyncio.sleep(0)
        assert exchange.cancellations == 1, "what it waited for was cancelled with the caller"
        exchange.task.cancel()  # a second cancellation, of the task itself, is the work's to handle
        await asyncio.sleep(0)
        exchange.reply.set()
        assert await exchange.task == "claimed"
        assert exchange.cancellations == 2

    asyncio.run(main())


def test_an_error_of_the_work_itself_is_raised_and_nothing_is_handed_over() -> None:
    async def main() -> None:
        async def failing() -> str:
            await asyncio.sleep(0)
            raise LookupError("no store")

        handed: list[Any] = []
        with pytest.raises(LookupError, match="no store"):
            await in_callers_task(failing(), lambda: handed.append(1))
        assert handed == []

    asyncio.run(main())


def test_two_drains_at_once_both_end_with_the_last_claim() -> None:
    async def main() -> None:
        claims = ClaimsUnderWay()
        job = parts_with().jobs.make("op", "k", "", None, None, {})
        patient, late = AsyncProgress(None, job), AsyncProgress(None, job)
        claims.runs |= {patient, late}
        drains = [asyncio.create_task(claims.drain(seconds)) for seconds in (60.0, 0.0)]
        await yield_until(lambda: late.is_abandoned)
        claims.replied(patient)
        claims.replied(patient)
        assert not any(drain.done() for drain in drains)
        claims.replied(late)
        await asyncio.gather(*drains)
        await claims.drain(60.0)

    asyncio.run(main())
