"""Renews the leases of the running attempts of one event loop.

An attempt that ends before a third of its lease costs no more than an entry in a dict; one timer
serves them all. For each attempt that runs longer, a task drives core/heartbeat_flow.py. Renewals
of many attempts are sent by the coalescer in one batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import replace
from typing import cast

from oncekey.core.commands import Command
from oncekey.core.effects import CommandResult, DeadlineExtended, Sleep
from oncekey.core.errors import StoreUnavailable
from oncekey.core.heartbeat_flow import RENEWALS_PER_LEASE, heartbeat
from oncekey.engine.attempt_base import AttemptBase
from oncekey.engine.clock import Clock, Timer

_log = logging.getLogger("oncekey")

# An attempt that is due within this part of its lease is renewed with the others, so that all are
# looked through a few times per lease, however many there are.
_DUE_SOON_PART = 4 * RENEWALS_PER_LEASE


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
        """Renew this attempt until `forget`."""
        lease = attempt._grant.claim.lease
        due = attempt._grant.deadline - lease + lease // RENEWALS_PER_LEASE
        self._waiting[attempt] = due
        if self._timer is None or due < self._planned:
            self._plan(due)

    def forget(self, attempt: AttemptBase) -> None:
        # The timer stays: the next attempt probably needs it, and a new one has a cost.
        if self._waiting.pop(attempt, None) is None:
            beat = self._beats.pop(attempt, None)
            if beat is not None:
                beat.cancel()

    def stop(self) -> None:
        """The engine is being closed: no attempt is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self, due: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._planned = due
        left = max(0, due - self._clock.now())
        # In an empty context: it serves all attempts, not only that of the caller.
        self._timer = Context().run(self._clock.later, left, self._start_beats)

    def _start_beats(self) -> None:
        """Start the heartbeats of all attempts that are due now or soon."""
        self._timer = None
        now = self._clock.now()
        for attempt, due in list(self._waiting.items()):
            if due <= now + attempt._grant.lease // _DUE_SOON_PART:
                del self._waiting[attempt]
                beat = asyncio.get_running_loop().create_task(self._beat(attempt))
                self._beats[attempt] = beat
        if self._waiting:
            self._plan(min(self._waiting.values()))

    async def _beat(self, attempt: AttemptBase) -> None:
        flow = heartbeat(replace(attempt._grant, deadline=attempt._deadline))
        next(flow)  # up to its first Sleep, which was the timer's
        result: object = self._clock.now()
        while True:
            try:
                effect = flow.send(result)
            except StopIteration:
                attempt._mark_lost()
                return
            result = None
            if type(effect) is DeadlineExtended:
                attempt._extend(effect.deadline)
            elif type(effect) is Sleep:
                await sleep(self._clock, effect.us)
            else:
                result = await self._renewed(cast(Command, effect))

    async def _renewed(self, command: Command) -> CommandResult:
        """The result of a renewal. Whatever the store raised, it is tried again."""
        sent_at = self._clock.now()
        try:
            return await self._apply(command)
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the attempt has ended; else a store's driver has cancelled its own call
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
