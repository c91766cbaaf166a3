"""Batches for tasks, formed without timers.

Up to `max_in_flight` batches are in flight at once; commands that arrive while all are queue up and
form the next batch. Each batch in flight is a pump task that ends when nothing is queued; a lone
command leaves in the same iteration of the loop. What keeps or ends a claim goes before new claims
(see engine/batch.py). Every caller is told when its batch left: a lease counts from then.

A caller that is cancelled while its command is on the way stays until the reply is there: otherwise
nobody would know what the store did.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context

from oncekey.core.commands import Command, Reply
from oncekey.core.effects import CommandResult
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.batch import (
    BATCH_BYTES_MAX,
    BATCH_MAX,
    Limits,
    Outcome,
    Queue,
    batch_size,
    check_replies,
    due,
    shared_by_all,
    size_of,
)
from oncekey.engine.clock import SystemClock

_SYSTEM_CLOCK = SystemClock()

Apply = Callable[[Sequence[Command]], Awaitable[list[Reply]]]


class _Ticket:
    __slots__ = ("command", "deadline", "outcome", "sent_at", "size", "waiter")

    def __init__(self, command: Command, deadline: int | None, queued_at: int) -> None:
        self.command = command
        self.deadline = due(command, deadline)
        self.size = size_of(command)
        self.sent_at = queued_at
        self.outcome: Outcome | None = None
        self.waiter: asyncio.Future[None] | None = None

    def settle(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class AsyncCoalescer:
    """One per event loop: all its calls must come from that loop."""

    def __init__(
        self,
        apply: Apply,
        *,
        most: int = BATCH_MAX,
        most_bytes: int = BATCH_BYTES_MAX,
        max_in_flight: int = 1,
        now: Callable[[], int] = _SYSTEM_CLOCK.now,
    ) -> None:
        self._apply = apply
        self._limits = Limits(most, most_bytes)
        self._max_in_flight = max_in_flight
        self._now = now
        self._queue: Queue[_Ticket] = Queue()
        # Each with its batch in flight; with none, it is about to look at the queue.
        self._pumps: dict[asyncio.Task[None], list[_Ticket]] = {}
        self._in_flight = 0

    async def apply(
        self, command: Command, interrupted: Callable[[], None], deadline: int | None = None
    ) -> CommandResult:
        """The store's reply, or that it is unavailable; raises what else the store raised.

        A cancellation meanwhile does not end the wait; it is told to `interrupted`. `deadline` is
        the command's owner's: what is nearest goes first."""
        ticket = _Ticket(command, deadline, self._now())
        try:
            self._queue.add(ticket)
            await self._through(ticket, interrupted)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException:
            # A signal's handler. The command may be on its way, and what its caller does next
            # about its key must not overtake it.
            if ticket in self._queue or any(ticket in batch for batch in self._pumps.values()):
                await self._through(ticket, interrupted)
            raise
        outcome = ticket.outcome
        assert outcome is not None
        if isinstance(outcome, Exception) and not isinstance(outcome, StoreUnavailable):
            raise outcome
        return CommandResult(outcome, ticket.sent_at, self._now())

    async def _through(self, ticket: _Ticket, interrupted: Callable[[], None]) -> None:
        """Wait for the ticket's outcome."""
        loop = asyncio.get_running_loop()
        self._use_lanes(loop)
        while ticket.outcome is None:
            ticket.waiter = loop.create_future()
            try:
                await ticket.waiter
            except asyncio.CancelledError:
                interrupted()

    def _use_lanes(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start one more pump if a lane is free and no pump is about to look anyway."""
        if len(self._pumps) < self._max_in_flight and all(self._pumps.values()):
            # In no context: it serves everyone, not only who happened to start it.
            pump = Context().run(loop.create_task, self._send_all())
            self._pumps[pump] = []
            pump.add_done_callback(self._ended)

    async def _send_all(self) -> None:
        pump = asyncio.current_task()
        assert pump is not None
        while self._queue:
            size = batch_size(
                len(self._queue), self._in_flight, self._max_in_flight, self._limits.count
            )
            batch, self._queue = self._queue.split(size, self._limits.size)
            self._pumps[pump] = batch
            self._in_flight += len(batch)
            if self._queue:
                self._use_lanes(pump.get_loop())
            try:
                outcomes = await self._settle(batch)
            finally:
                self._in_flight -= len(batch)
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
        tickets = self._pumps.pop(pump, [])
        if not pump.cancelled():
            if self._queue:  # a signal's handler raised in it; another one goes on
                self._use_lanes(pump.get_loop())
        elif not self._pumps:
            queued, self._queue = self._queue.split(len(self._queue), sys.maxsize)
            tickets += queued  # there is no other lane to serve them
        lost = StoreUnavailable("the event loop ended while the store was being called")
        for ticket in tickets:  # also who has an outcome, and was not woken any more
            ticket.settle(lost if ticket.outcome is None else ticket.outcome)
        self._in_flight = sum(map(len, self._pumps.values()))

    async def _settle(self, batch: Sequence[_Ticket]) -> list[Outcome]:
        """The outcome for each ticket; notes on it the moment its command was last sent."""
        sent_at = self._now()
        for ticket in batch:
            ticket.sent_at = sent_at
        commands = [ticket.command for ticket in batch]
        try:
            replies = await self._apply(commands)
            check_replies(commands, replies)
        except Exception as error:
            if len(batch) > 1 and not shared_by_all(error):
                return [(await self._settle([ticket]))[0] for ticket in batch]
            self._limits.sent(batch, error)
            return [error] * len(batch)
        self._limits.sent(batch, None)
        return list(replies)
