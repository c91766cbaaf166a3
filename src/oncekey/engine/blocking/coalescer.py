"""Sends the commands of many threads to the store in batches, without timers.

A caller that comes while fewer than `max_in_flight` batches are in flight leads one: it calls the
store and hands out the replies. Callers that come while all are in flight queue up and form the
next batch, led by its first member. So a single command is sent at once, and sixty-four share one
commit. Which commands go first is in batch.py. Every caller learns when its batch was sent: a lease
counts from then, not from when its claim was queued.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from oncekey.core.commands import Command, Reply
from oncekey.core.effects import CommandResult
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.batch import (
    BATCH_BYTES_MAX,
    BATCH_MAX,
    Limits,
    Queue,
    ReplyOrError,
    batch_size,
    check_replies,
    due,
    shared_by_all,
    size_of,
)
from oncekey.engine.clock import SystemClock

_SYSTEM_CLOCK = SystemClock()

Apply = Callable[[Sequence[Command]], list[Reply]]


class _Ticket:
    """One command, and what its caller has to do for the others.

    sent_at    when its batch was sent to the store, on the engine's clock
    gate       a lock that is held until the ticket is called: then it has its reply, or `leads`
    followers  the rest of its batch, once a leader has taken them from the queue
    delivered  as a leader, it has given everyone in its batch their reply
    next       the ticket to call next: one calls the other, so that their threads run one after
               the other instead of all at once
    ended      nothing more has to be done for the others
    """

    __slots__ = (
        "called",
        "command",
        "deadline",
        "delivered",
        "ended",
        "followers",
        "gate",
        "leads",
        "next",
        "reply",
        "sent_at",
        "size",
    )

    def __init__(self, command: Command, deadline: int | None = None) -> None:
        self.command = command
        self.deadline = due(command, deadline)
        self.size = size_of(command)
        self.sent_at = 0
        self.reply: ReplyOrError | None = None
        self.gate: threading.Lock | None = None
        self.called = False
        self.leads = False
        self.followers: list[_Ticket] | None = None
        self.delivered = False
        self.next: _Ticket | None = None
        self.ended = False


class Coalescer:
    """A batch is in flight from its start until its lead has been passed on or given up.

    Commands are queued only while `max_in_flight` batches are in flight, and a lead is given up
    only when nobody is queued. So no command waits while another batch could be sent.
    """

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
        self._lock = threading.Lock()
        self._queue: Queue[_Ticket] = Queue()
        self._batches_in_flight = 0
        self._commands_in_flight = 0

    def apply(self, command: Command, deadline: int | None = None) -> CommandResult:
        """Apply one command: the store's reply, or that it is unavailable; raises any other error
        of the store. `deadline` is that of the command's owner: the nearest goes first."""
        ticket = _Ticket(command, deadline)
        try:
            self._enter(ticket)
            if ticket.gate is not None:
                ticket.gate.acquire()
            if ticket.leads:
                self._lead(ticket)
            self._call_next(ticket)
        except BaseException:
            self._leave(ticket)
            raise
        return _result(ticket, self._now())

    def apply_many(self, commands: Sequence[Command]) -> list[CommandResult]:
        """Apply several commands of one caller, in batches of their own beside those in flight.
        Whatever the store raised, it counts as unavailable for that command."""
        tickets = [_Ticket(command) for command in commands]
        queue = Queue(list(tickets))
        while queue:
            batch, queue = queue.split(self._limits.count, self._limits.size)
            self._send(batch)
        at = self._now()
        return [CommandResult(_unavailable(ticket.reply), ticket.sent_at, at) for ticket in tickets]

    # --- a ticket -----------------------------------------------------------------------------

    def _enter(self, ticket: _Ticket) -> None:
        """Lead a batch if another one may be in flight, else queue up."""
        with self._lock:
            if self._batches_in_flight < self._max_in_flight:
                self._batches_in_flight, ticket.leads = self._batches_in_flight + 1, True
            else:
                gate = threading.Lock()
                gate.acquire()
                queued = self._queue.list_for(ticket)
                # Python runs no signal handler between these two: a ticket with a gate is queued.
                ticket.gate = gate
                queued.append(ticket)

    def _lead(self, leader: _Ticket) -> None:
        """Send one batch and give everyone in it their reply."""
        followers = self._take(leader, self._limits.count)
        batch = [leader, *followers]
        self._send(batch)
        self._hand_out(batch)

    def _take(self, leader: _Ticket, most: int) -> list[_Ticket]:
        with self._lock:
            if leader.followers is None:
                queued, in_flight = 1 + len(self._queue), self._commands_in_flight
                count = batch_size(queued, in_flight, self._max_in_flight, most)
                room = self._limits.size - leader.size
                batch, rest = self._queue.split(count - 1, room, some=False)
                in_flight += 1 + len(batch)
                self._queue, self._commands_in_flight, leader.followers = rest, in_flight, batch
            return leader.followers

    def _hand_out(self, batch: Sequence[_Ticket]) -> None:
        leader = last = batch[0]
        for ticket in batch[1:]:
            last.next = ticket
            last = ticket
        with self._lock:
            self._commands_in_flight, leader.delivered = self._commands_in_flight - len(batch), True

    def _call_next(self, ticket: _Ticket) -> None:
        """Call the next ticket of this batch; after the last one, the leader of the next batch.

        By then most callers of this batch have queued up again, so that batches are full.
        """
        if ticket.next is None:
            with self._lock:
                if not self._queue:
                    self._batches_in_flight, ticket.ended = self._batches_in_flight - 1, True
                    return
                (leader,), rest = self._queue.split(1, 0)
                self._queue, ticket.next, leader.leads = rest, leader, True
        following = ticket.next
        assert following.gate is not None
        following.called = True
        with suppress(RuntimeError):  # it was called already, directly before an interruption
            following.gate.release()
        ticket.ended = True

    # --- interrupted --------------------------------------------------------------------------

    def _leave(self, ticket: _Ticket) -> None:
        """Let an interrupted caller go, once its command was applied: if it were still in flight,
        the caller's next command about its key could overtake it. Interrupted again, the caller
        leaves a thread behind that waits in its place."""
        if ticket.ended:
            return
        if ticket.leads or ticket.called:
            self._finish_call(ticket)
        elif ticket.gate is not None:
            try:
                self._stand_in(ticket)
            except BaseException:
                self._leave_behind(ticket)

    def _leave_behind(self, ticket: _Ticket) -> None:
        if ticket.ended:  # else its lead would be given up twice
            return
        if ticket.leads or ticket.called:
            self._finish_call(ticket)
        else:
            threading.Thread(target=self._stand_in, args=(ticket,), daemon=True).start()

    def _finish_call(self, ticket: _Ticket) -> None:
        if ticket.leads and not ticket.delivered:
            followers = self._take(ticket, most=1)
            lost = StoreUnavailable("the thread that led this batch was interrupted")
            batch = [ticket, *followers]
            for one in batch:
                one.reply = lost
            self._hand_out(batch)
        self._call_next(ticket)

    def _stand_in(self, ticket: _Ticket) -> None:
        """Do what the ticket's caller would do, in its place."""
        assert ticket.gate is not None
        ticket.gate.acquire()
        if ticket.leads:
            self._lead(ticket)
        self._call_next(ticket)

    # --- the store ----------------------------------------------------------------------------

    def _send(self, batch: Sequence[_Ticket]) -> None:
        """Send a batch; each ticket gets its reply, and the time when it was sent last."""
        sent_at = self._now()
        for ticket in batch:
            ticket.sent_at = sent_at
        commands = [ticket.command for ticket in batch]
        replies: Sequence[ReplyOrError]
        try:
            replies = self._apply(commands)
            check_replies(commands, replies)
        except Exception as error:
            if len(batch) > 1 and not shared_by_all(error):
                for ticket in batch:
                    self._send([ticket])
                return
            self._limits.sent(batch, error)
            replies = [error] * len(batch)
        else:
            self._limits.sent(batch, None)
        for ticket, reply in zip(batch, replies, strict=True):
            ticket.reply = reply


def _result(ticket: _Ticket, at: int) -> CommandResult:
    reply = ticket.reply
    assert reply is not None
    if isinstance(reply, Exception) and not isinstance(reply, StoreUnavailable):
        raise reply
    return CommandResult(reply, ticket.sent_at, at)


def _unavailable(reply: ReplyOrError | None) -> Reply | StoreUnavailable:
    assert reply is not None
    if isinstance(reply, Exception) and not isinstance(reply, StoreUnavailable):
        return StoreUnavailable(f"{type(reply).__name__}: {reply}")
    return reply
