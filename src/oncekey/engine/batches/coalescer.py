"""Sends the commands of many threads to the store in batches, without timers.

A caller that comes while fewer than `max_in_flight` batches are in flight leads one: it calls the
store with its own command alone. Callers that come while all are in flight queue up and form the
next batch, led by its first member. So a single command is sent at once, and sixty-four share one
commit. Which commands go first is in batch.py. Every caller learns when its batch was sent: a lease
counts from then, not from when its claim was queued.

Those who have their reply are woken one after the other, whatever batch they were in: each wakes
the next and goes on. If many were woken at once, they would only wait again, for the interpreter's
lock, and keep the thread from it that has to call the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from oncekey.core.commands import Command, Reply
from oncekey.core.effects import CommandResult
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
    size_of,
    unavailable,
)
from oncekey.engine.clock import SystemClock
from oncekey.engine.event_bus import EventBus

_SYSTEM_CLOCK = SystemClock()

Apply = Callable[[Sequence[Command]], list[Reply]]


class _Ticket:
    """One command, and what its caller has to do for the others.

    sent_at    when its batch was sent to the store, on the engine's clock
    gate       a lock that is held until the ticket is called: then it has its reply, or `leads`
    called     somebody is about to release the gate, or has done so
    followers  as a leader: the rest of its batch, once it has taken them from the queue
    delivered  as a leader: everyone in its batch has their reply
    next       the ticket to call next
    ends       as the last one of a batch: its number of commands, until the lead is passed on
    heir       the leader to whom it passes the lead on
    ended      nothing more has to be done for the others
    """

    __slots__ = (
        "called",
        "command",
        "deadline",
        "delivered",
        "ended",
        "ends",
        "followers",
        "gate",
        "heir",
        "leads",
        "next",
        "reply",
        "sent_at",
    )

    def __init__(self, command: Command, deadline: int | None = None) -> None:
        self.command = command
        self.deadline = deadline
        self.sent_at = 0
        self.reply: ReplyOrError | None = None
        self.gate: threading.Lock | None = None
        self.called = False
        self.leads = False
        self.followers: list[_Ticket] | None = None
        self.delivered = False
        self.next: _Ticket | None = None
        self.ends = 0
        self.heir: _Ticket | None = None
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
        events: EventBus | None = None,
    ) -> None:
        self._apply = apply
        self._events = events or EventBus(_SYSTEM_CLOCK)
        self._limits = Limits(most, most_bytes)
        self._max_in_flight = max_in_flight
        self._now = now
        self._lock = threading.Lock()
        self._queue: Queue[_Ticket] = Queue()
        self._batches_in_flight = 0
        self._commands_in_flight = 0
        self._tail: _Ticket | None = None  # the last of those who are called one after the other

    def send(self, command: Command, deadline: int | None = None) -> Sent:
        """Have the store apply one command: its reply, or that it is unavailable; raises other
        errors that are oncekey's own. `deadline` is that of the command's owner: the nearest goes
        first."""
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
        return answered(ticket.reply), ticket.sent_at

    def apply_many(self, commands: Sequence[Command]) -> list[CommandResult]:
        """Apply several commands of one caller, in batches of their own beside those in flight.
        Whatever the store raised, it counts as unavailable for that command."""
        tickets = [_Ticket(command) for command in commands]
        queue = Queue(list(tickets))
        while queue:
            batch, queue = queue.split(self._limits.count, self._limits.size)
            self._send(batch)
        at = self._now()
        return [CommandResult(unavailable(ticket.reply), ticket.sent_at, at) for ticket in tickets]

    # --- a ticket -----------------------------------------------------------------------------

    def _enter(self, ticket: _Ticket) -> None:
        """Lead a batch if another one may be in flight, else queue up."""
        with self._lock:
            if self._batches_in_flight < self._max_in_flight:
                # Nobody is queued, so this one has no followers.
                followers: list[_Ticket] = []
                batches, commands = self._batches_in_flight + 1, self._commands_in_flight + 1
                self._batches_in_flight, self._commands_in_flight = batches, commands
                ticket.followers, ticket.leads = followers, True
            else:
                gate = threading.Lock()
                gate.acquire()
                queued = self._queue.list_for(ticket.command)
                # Python runs no signal handler between these two: a ticket with a gate is queued.
                ticket.gate = gate
                queued.append(ticket)

    def _lead(self, leader: _Ticket) -> None:
        """Send one batch and give everyone in it their reply."""
        followers = leader.followers
        if followers is None:
            followers = self._take(leader, self._limits.count)
        batch = [leader, *followers]
        self._send(batch)
        self._hand_out(batch)

    def _take(self, leader: _Ticket, most: int) -> list[_Ticket]:
        """Take the others of a leader's batch from the queue."""
        with self._lock:
            queued, in_flight = 1 + len(self._queue), self._commands_in_flight
            count = batch_size(queued, in_flight, self._max_in_flight, most)
            room = self._limits.size - size_of(leader.command)
            batch, rest = self._queue.split(count - 1, room, False)
            in_flight += 1 + len(batch)
            self._queue, self._commands_in_flight, leader.followers = rest, in_flight, batch
        return batch

    def _hand_out(self, batch: Sequence[_Ticket]) -> None:
        """Let a leader's followers be called, after those of other batches that still are."""
        leader = batch[0]
        if len(batch) == 1:
            leader.ends, leader.delivered = 1, True
            return
        first, last = batch[1], batch[-1]
        before = first
        for ticket in batch[2:]:
            before.next = before = ticket
        last.ends = len(batch)
        with self._lock:
            caller = self._tail or leader
            self._tail, caller.next, leader.delivered = last, first, True

    def _call_next(self, ticket: _Ticket) -> None:
        """Pass the lead on, if this is the last one of its batch, and call the next one.

        By then most callers of its batch have queued up again, so that batches are full.
        """
        if ticket.ends:
            self._pass_lead(ticket)
        if ticket.next is None and self._tail is ticket:
            with self._lock:
                if ticket.next is None:
                    self._tail = None
        following = ticket.next
        if following is not None:
            _call(following)
        ticket.ended = True

    def _pass_lead(self, ticket: _Ticket) -> None:
        """Make the first of the queue the leader of the next batch, if anybody is queued."""
        if ticket.heir is None:
            with self._lock:
                queue = self._queue
                commands = self._commands_in_flight - ticket.ends
                if not queue.others and not queue.urgent:
                    batches = self._batches_in_flight - 1
                    self._batches_in_flight, self._commands_in_flight = batches, commands
                    ticket.ends = 0
                    return
                (leader,), rest = queue.split(1, 0)
                self._queue, self._commands_in_flight = rest, commands
                ticket.heir, leader.leads = leader, True
        _call(ticket.heir)
        ticket.ends = 0

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
            followers = self._take(ticket, 1) if ticket.followers is None else ticket.followers
            lost = StoreUnavailable("the thread that led this batch was interrupted")
            batch = [ticket, *followers]
            _deliver(batch, [lost] * len(batch), self._now())
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
        commands = [ticket.command for ticket in batch]
        replies: Sequence[ReplyOrError]
        sent_at = self._now()
        try:
            replies = self._apply(commands)
            check_replies(commands, replies)
        except Exception as error:
            if len(batch) > 1 and not shared_by_all(error):
                for ticket in batch:
                    self._send([ticket])
                return
            self._limits.failed(batch, error)
            replies = [error] * len(batch)
        else:
            if self._limits.lowered:
                self._limits.grow()
        if self._events.observers:
            self._events.batch_sent(len(batch), self._now() - sent_at)
        _deliver(batch, replies, sent_at)


def _deliver(batch: Sequence[_Ticket], replies: Sequence[ReplyOrError], sent_at: int) -> None:
    for place, ticket in enumerate(batch):
        ticket.reply = replies[place]
        ticket.sent_at = sent_at


def _call(ticket: _Ticket) -> None:
    """Wake the thread of a ticket."""
    assert ticket.gate is not None
    ticket.called = True
    try:
        ticket.gate.release()
    except RuntimeError:
        pass  # it was called already, directly before an interruption
