"""Sends the commands of many tasks to the store in batches, without timers.

Up to `max_in_flight` batches are in flight at once; commands that come while all are in flight
queue up and form the next batch. A pump task sends one batch after the other and ends when nothing
is queued; a single command is sent in the same iteration of the loop. Which commands go first is in
batch.py. Every caller learns when its batch was sent: a lease counts from then.

A caller that is cancelled while its command is in flight stays until the reply is there: otherwise
it would not be known what the store did.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context

from oncekey.core.commands import Command, Reply
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.batches.batch import (
    BATCH_BYTES_MAX,
    BATCH_MAX,
    Limits,
    Queue,
    ReplyOrError,
    Sent,
    answered,
    batch_size,
    check_replies,
    shared_by_all,
    unavailable,
)
from oncekey.engine.clock import SystemClock
from oncekey.engine.event_bus import EventBus

_SYSTEM_CLOCK = SystemClock()

Apply = Callable[[Sequence[Command]], Awaitable[list[Reply]]]


class _Ticket:
    """One command. `sent_at` is when its batch was sent, `waiter` what its caller waits for."""

    __slots__ = ("command", "deadline", "reply", "sent_at", "waiter")

    def __init__(self, command: Command, deadline: int | None) -> None:
        self.command = command
        self.deadline = deadline
        self.reply: ReplyOrError | None = None
        self.sent_at = 0
        self.waiter: asyncio.Future[None] | None = None


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
        events: EventBus | None = None,
    ) -> None:
        self._apply = apply
        self._events = events or EventBus(_SYSTEM_CLOCK)
        self._limits = Limits(most, most_bytes)
        self._max_in_flight = max_in_flight
        self._now = now
        self._queue: Queue[_Ticket] = Queue()
        # Each pump with its batch in flight; with an empty one it is about to look at the queue.
        self._pumps: dict[asyncio.Task[None], list[_Ticket]] = {}
        self._commands_in_flight = 0

    async def send(
        self, command: Command, interrupted: Callable[[], None], deadline: int | None = None
    ) -> Sent:
        """Have the store apply one command: its reply, or that it is unavailable; raises other
        errors that are oncekey's own.

        A cancellation meanwhile does not end the wait; it is reported to `interrupted`. `deadline`
        is that of the command's owner: the nearest goes first."""
        ticket = _Ticket(command, deadline)
        loop = asyncio.get_running_loop()
        try:
            self._queue.list_for(command).append(ticket)
            if len(self._pumps) < self._max_in_flight:
                self._start_pump(loop)
            if ticket.reply is None:  # an eager task may have sent it already
                ticket.waiter = loop.create_future()
                try:
                    await ticket.waiter
                except asyncio.CancelledError:
                    interrupted()
                    await self._wait_for_reply(ticket, interrupted)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException:
            # A signal's handler raised. The command may be in flight, and its caller's next
            # command about its key must not overtake it.
            if ticket in self._queue or any(ticket in batch for batch in self._pumps.values()):
                self._start_pump(loop)
                await self._wait_for_reply(ticket, interrupted)
            raise
        return answered(ticket.reply), ticket.sent_at

    async def apply_many(self, commands: Sequence[Command]) -> list[Sent]:
        """Apply several commands of one caller, in batches of their own beside those in flight.
        Whatever the store raised, it counts as unavailable for that command."""
        tickets = [_Ticket(command, None) for command in commands]
        queue = Queue(list(tickets))
        while queue:
            batch, queue = queue.split(self._limits.count, self._limits.size)
            await self._send(batch)
        return [(unavailable(ticket.reply), ticket.sent_at) for ticket in tickets]

    async def _wait_for_reply(self, ticket: _Ticket, interrupted: Callable[[], None]) -> None:
        """Wait on, after an interruption, however often the caller is cancelled."""
        loop = asyncio.get_running_loop()
        while ticket.reply is None:
            ticket.waiter = loop.create_future()
            try:
                await ticket.waiter
            except asyncio.CancelledError:
                interrupted()

    def _start_pump(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start a pump if one more batch may be in flight and no pump is about to look anyway."""
        if len(self._pumps) < self._max_in_flight and all(self._pumps.values()):
            # In an empty context: it serves every caller, not only the one that started it.
            pump = Context().run(loop.create_task, self._send_all())
            self._pumps[pump] = []
            pump.add_done_callback(self._ended)

    async def _send_all(self) -> None:
        pump = asyncio.current_task()
        assert pump is not None
        while self._queue:
            size = batch_size(
                len(self._queue), self._commands_in_flight, self._max_in_flight, self._limits.count
            )
            batch, self._queue = self._queue.split(size, self._limits.size)
            self._pumps[pump] = batch
            self._commands_in_flight += len(batch)
            if self._queue:
                self._start_pump(pump.get_loop())
            try:
                await self._send(batch)
            finally:
                self._commands_in_flight -= len(batch)
            self._pumps[pump] = []
            # One iteration of the loop: most callers queue up again, so that batches are full.
            await asyncio.sleep(0)
        del self._pumps[pump]
        pump.remove_done_callback(self._ended)

    def _ended(self, pump: asyncio.Task[None]) -> None:
        """Let no caller wait for ever, however a pump ended (the end of the loop cancels it).

        What the store did is not known, so callers may repeat their commands.
        """
        if not pump.cancelled() and pump.exception() is None:
            return
        tickets = self._pumps.pop(pump, [])
        if not pump.cancelled():
            if self._queue:  # a signal's handler raised in it; another pump goes on
                self._start_pump(pump.get_loop())
        elif not self._pumps:
            queued, self._queue = self._queue.split(len(self._queue), sys.maxsize)
            tickets += queued  # there is no other pump to send them
        lost = StoreUnavailable("the event loop ended while the store was being called")
        for ticket in tickets:  # also those that have a reply and were not woken any more
            if ticket.reply is None:
                ticket.sent_at, ticket.reply = self._now(), lost
            _wake(ticket)
        self._commands_in_flight = sum(map(len, self._pumps.values()))

    async def _send(self, batch: Sequence[_Ticket]) -> None:
        """Send a batch; each ticket gets its reply, and the time when it was sent last."""
        commands = [ticket.command for ticket in batch]
        replies: Sequence[ReplyOrError]
        sent_at = self._now()
        try:
            replies = await self._apply(commands)
            check_replies(commands, replies)
        except Exception as error:
            if len(batch) > 1 and not shared_by_all(error):
                for ticket in batch:
                    await self._send([ticket])
                return
            self._limits.failed(batch, error)
            replies = [error] * len(batch)
        else:
            if self._limits.lowered:
                self._limits.grow()
        if self._events.observers:
            self._events.batch_sent(len(batch), self._now() - sent_at)
        for place, ticket in enumerate(batch):
            ticket.sent_at, ticket.reply = sent_at, replies[place]
            _wake(ticket)


def _wake(ticket: _Ticket) -> None:
    """Let the caller of a ticket that has its reply go on."""
    waiter = ticket.waiter
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
