"""Batches for tasks, formed without timers.

As many batches as the store has lanes may be in flight; while all are, who comes queues up and is
the next batch. Each lane is a pump task that ends when nothing is queued; a lone command leaves in
the same turn of the loop. A caller that is cancelled while its command is on the way stays until
the reply is there: otherwise nobody would know what the store did.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context

from oncekey.core.commands import Command, Reply
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.batch import BATCH_MAX, Outcome, batch_size, check_replies, shared_by_all

Apply = Callable[[Sequence[Command]], Awaitable[list[Reply]]]


class _Ticket:
    __slots__ = ("command", "outcome", "waiter")

    def __init__(self, command: Command) -> None:
        self.command = command
        self.outcome: Outcome | None = None
        self.waiter: asyncio.Future[None] | None = None

    def settle(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class AsyncCoalescer:
    """One per event loop: all its calls must come from that loop."""

    def __init__(self, apply: Apply, *, most: int = BATCH_MAX, lanes: int = 1) -> None:
        self._apply = apply
        self._most = most
        self._lanes = lanes
        self._queue: deque[_Ticket] = deque()
        # Each with its batch in flight; with none, it is about to look at the queue.
        self._pumps: dict[asyncio.Task[None], list[_Ticket]] = {}
        self._in_flight = 0

    async def call(self, command: Command, interrupted: Callable[[], None]) -> Reply:
        """The store's reply; raises what the store raised. A cancellation meanwhile does not
        end the wait; it is told to `interrupted`."""
        ticket = _Ticket(command)
        self._queue.append(ticket)
        loop = asyncio.get_running_loop()
        self._use_lanes(loop)
        while ticket.outcome is None:
            ticket.waiter = loop.create_future()
            try:
                await ticket.waiter
            except asyncio.CancelledError:
                interrupted()
        if isinstance(ticket.outcome, Exception):
            raise ticket.outcome
        return ticket.outcome

    def _use_lanes(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start one more pump if a lane is free and no pump is about to look anyway."""
        if len(self._pumps) < self._lanes and all(self._pumps.values()):
            # In no context: it serves everyone, not only who happened to start it.
            pump = Context().run(loop.create_task, self._send_all())
            self._pumps[pump] = []
            pump.add_done_callback(self._ended)

    async def _send_all(self) -> None:
        pump = asyncio.current_task()
        assert pump is not None
        while self._queue:
            size = batch_size(len(self._queue), self._in_flight, self._lanes, self._most)
            batch = self._pumps[pump] = [self._queue.popleft() for _ in range(size)]
            self._in_flight += size
            if self._queue:
                self._use_lanes(pump.get_loop())
            try:
                outcomes = await self._settle([ticket.command for ticket in batch])
            finally:
                self._in_flight -= size
            for ticket, outcome in zip(batch, outcomes, strict=True):
                ticket.settle(outcome)
            self._pumps[pump] = []
            # One turn of the loop: most of the batch queue up again, which makes for full batches.
            await asyncio.sleep(0)
        del self._pumps[pump]

    def _ended(self, pump: asyncio.Task[None]) -> None:
        """However a pump ended (the loop's end cancels it): nobody may wait for ever.

        What the store did is not known, so callers may repeat their commands.
        """
        if not pump.cancelled() and pump.exception() is None:
            return
        tickets = self._pumps.pop(pump)
        if not self._pumps:
            tickets += self._queue  # there is no other lane to serve them
            self._queue.clear()
        lost = StoreUnavailable("the event loop ended while the store was being called")
        for ticket in tickets:
            if ticket.outcome is None:
                ticket.settle(lost)

    async def _settle(self, commands: Sequence[Command]) -> list[Outcome]:
        try:
            replies = await self._apply(commands)
            check_replies(commands, replies)
        except Exception as error:
            if len(commands) == 1 or shared_by_all(error):
                return [error] * len(commands)
            return [(await self._settle([command]))[0] for command in commands]
        return list(replies)
