"""Keeps the running attempts of one event loop alive.

An attempt that ends before a third of its lease never costs more than an entry in a dict; one timer
serves them all. For each that lasts, a task drives `core/heartbeat_flow.py`. Renewals of many
attempts meet in the coalescer and share their round trips.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context

from oncekey.core.commands import Command
from oncekey.core.effects import ApplyCommand, CommandResult, DeadlineExtended, Sleep
from oncekey.core.errors import StoreUnavailable
from oncekey.core.heartbeat_flow import RENEWALS_PER_LEASE, heartbeat
from oncekey.engine.attempt_base import AttemptBase
from oncekey.engine.clock import Clock, Timer

_log = logging.getLogger("oncekey")

# What is due this part of its lease later is renewed along: so the attempts are looked through
# a few times per lease, however many there are.
_ALONG = 4 * RENEWALS_PER_LEASE


class AsyncHeartbeat:
    """One per event loop: all its calls must come from that loop."""

    def __init__(self, clock: Clock, apply: Callable[[Command], Awaitable[CommandResult]]) -> None:
        self._clock = clock
        self._apply = apply
        self._waiting: dict[AttemptBase, int] = {}  # when each is due first
        self._beats: dict[AttemptBase, asyncio.Task[None]] = {}
        self._timer: Timer | None = None
        self._planned = 0

    def watch(self, attempt: AttemptBase) -> None:
        """Keep this attempt alive until `forget`."""
        grant = attempt._grant
        due = grant.deadline - grant.lease + grant.lease // RENEWALS_PER_LEASE
        self._waiting[attempt] = due
        if self._timer is None or due < self._planned:
            self._plan(due)

    def forget(self, attempt: AttemptBase) -> None:
        # The timer stays: the next attempt most likely needs it, and making one costs.
        if self._waiting.pop(attempt, None) is None:
            beat = self._beats.pop(attempt, None)
            if beat is not None:
                beat.cancel()

    def stop(self) -> None:
        """The engine is being closed: no attempt is left to keep alive."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self, due: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._planned = due
        left = max(0, due - self._clock.now())
        # In no context: it serves everyone's attempts, not only those of who planned it.
        self._timer = Context().run(self._clock.later, left, self._look)

    def _look(self) -> None:
        """Begin to beat for all that are due, or nearly."""
        self._timer = None
        now = self._clock.now()
        for attempt, due in list(self._waiting.items()):
            if due <= now + attempt._grant.lease // _ALONG:
                del self._waiting[attempt]
                beat = asyncio.get_running_loop().create_task(self._beat(attempt))
                self._beats[attempt] = beat
        if self._waiting:
            self._plan(min(self._waiting.values()))

    async def _beat(self, attempt: AttemptBase) -> None:
        flow = heartbeat(attempt._grant._replace(deadline=attempt._deadline))
        next(flow)  # the first sleep is over: the timer was it
        result: object = self._clock.now()
        while True:
            try:
                effect = flow.send(result)
            except StopIteration:
                attempt._mark_lost()
                return
            result = None
            if type(effect) is ApplyCommand:
                result = await self._renewed(effect.command)
            elif type(effect) is DeadlineExtended:
                attempt._extend(effect.deadline)
            else:
                assert type(effect) is Sleep
                await sleep(self._clock, effect.us)

    async def _renewed(self, command: Command) -> CommandResult:
        """The store's answer; whatever it raised counts as none, and is tried again."""
        sent_at = self._clock.now()
        try:
            return await self._apply(command)
        except Exception as error:
            _log.exception("a heartbeat could not be sent; it is tried again")
            failed = StoreUnavailable(f"{type(error).__name__}: {error}")
            return CommandResult(failed, sent_at, self._clock.now())


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
