"""Batches for tasks, formed without timers.

While a batch is in flight, who comes queues up and is the next batch. One pump task per event
loop sends them and ends when nothing is queued; a lone command leaves in the same turn of the
loop. A caller that is cancelled while its command is on the way stays until the reply is there:
otherwise nobody would know what the store did.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from oncekey.core.commands import Command, Reply
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.batch import BATCH_MAX, Outcome, check_replies, shared_by_all

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

    def __init__(self, apply: Apply, most: int = BATCH_MAX) -> None:
        self._apply = apply
        self._most = most
        self._queue: deque[_Ticket] = deque()
        self._batch: list[_Ticket] = []
        self._pump: asyncio.Task[None] | None = None

    async def call(self, command: Command, interrupted: Callable[[], None]) -> Reply:
        """The store's reply; raises what the store raised. A cancellation meanwhile does not
        end the wait; it is told to `interrupted`."""
        ticket = _Ticket(command)
        self._queue.append(ticket)
        loop = asyncio.get_running_loop()
        if self._pump is None:
            self._pump = loop.create_task(self._send_all())
            self._pump.add_done_callback(self._ended)
        while ticket.outcome is None:
            ticket.waiter = loop.create_future()
            try:
                await ticket.waiter
            except asyncio.CancelledError:
                interrupted()
        if isinstance(ticket.outcome, Exception):
            raise ticket.outcome
        return ticket.outcome

    async def _send_all(self) -> None:
        while self._queue:
            size = min(len(self._queue), self._most)
            self._batch = [self._queue.popleft() for _ in range(size)]
            outcomes = await self._settle([ticket.command for ticket in self._batch])
            for ticket, outcome in zip(self._batch, outcomes, strict=True):
                ticket.settle(outcome)
        self._pump = None

    def _ended(self, pump: asyncio.Task[None]) -> None:
        """However the pump ended (the loop's end cancels it): nobody may wait for ever.

        What the store did is not known, so callers may repeat their commands.
        """
        if not pump.cancelled() and pump.exception() is None:
            return
        self._pump = None
        lost = StoreUnavailable("the event loop ended while the store was being called")
        for ticket in [*self._batch, *self._queue]:
            if ticket.outcome is None:
                ticket.settle(lost)
        self._queue.clear()

    async def _settle(self, commands: Sequence[Command]) -> list[Outcome]:
        try:
            replies = await self._apply(commands)
            check_replies(commands, replies)
        except Exception as error:
            if len(commands) == 1 or shared_by_all(error):
                return [error] * len(commands)
            return [(await self._settle([command]))[0] for command in commands]
        return list(replies)
