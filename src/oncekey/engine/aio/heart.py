"""Keeps one running attempt alive on its event loop.

Until a third of the lease has passed this is a single timer; only then a task drives
`flow.heartbeat`. Renewals of many attempts meet in the coalescer and share their round trips.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from oncekey.core.asks import Answer, Call, Extended, Sleep
from oncekey.core.commands import Command
from oncekey.core.flow import RENEWALS_PER_LEASE, heartbeat
from oncekey.engine.attempt import AttemptBase
from oncekey.engine.clock import Clock, Timer


class AsyncHeart:
    def __init__(
        self,
        attempt: AttemptBase,
        clock: Clock,
        answer: Callable[[Command], Awaitable[Answer]],
    ) -> None:
        self._attempt = attempt
        self._clock = clock
        self._answer = answer
        self._task: asyncio.Task[None] | None = None
        first = attempt._grant.lease // RENEWALS_PER_LEASE
        self._timer: Timer = clock.later(first, self._start)

    def stop(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        flow = heartbeat(self._attempt._grant)
        next(flow)  # the first sleep is over: the timer was it
        answer: object = self._clock.now()
        while True:
            try:
                ask = flow.send(answer)
            except StopIteration:
                self._attempt._mark_lost()
                return
            answer = None
            if type(ask) is Call:
                answer = await self._answer(ask.command)
            elif type(ask) is Extended:
                self._attempt._extend(ask.deadline)
            else:
                assert type(ask) is Sleep
                await sleep(self._clock, ask.us)


async def sleep(clock: Clock, us: int) -> None:
    """asyncio.sleep on the engine's own clock."""
    future = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    timer = clock.later(us, wake)
    try:
        await future
    finally:
        timer.cancel()
