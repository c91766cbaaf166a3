"""Batches for threads, formed without timers.

A caller that arrives while fewer than `max_in_flight` batches are in flight leads one: it calls the
store and hands out the replies. Callers that arrive while all are in flight queue up and form the
next batch, led by its first member. A lone command leaves at once; sixty-four share one commit.
What keeps or ends a claim goes before new claims (see engine/batch.py). Every caller learns when
its batch was sent: a lease counts from then, not from when its claim was queued.
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

Apply = Callable[[Sequence[Command]], list[Reply]]


class _Ticket:
    """One command, and what its caller owes the others.

    sent_at    when its batch left for the store, on the engine's clock
    turn       held until the ticket is called: it has its outcome, or `leads`
    followers  the rest of its batch, once a leader has taken them from the queue
    settled    a leader has given everyone in its batch their outcome
    next       whom to call then: one calls the other, so that they come to the interpreter one
               after the other instead of all at once
    ended      it owes nothing more
    """

    __slots__ = (
        "called",
        "command",
        "deadline",
        "ended",
        "followers",
        "leads",
        "next",
        "outcome",
        "sent_at",
        "settled",
        "size",
        "turn",
    )

    def __init__(self, command: Command, deadline: int | None = None) -> None:
        self.command = command
        self.deadline = due(command, deadline)
        self.size = size_of(command)
        self.sent_at = 0
        self.outcome: Outcome | None = None
        self.turn: threading.Lock | None = None
        self.called = False
        self.leads = False
        self.followers: list[_Ticket] | None = None
        self.settled = False
        self.next: _Ticket | None = None
        self.ended = False


class Coalescer:
    """A batch counts as in flight from its start until its lead has been passed on or given up.

    Commands queue only while `max_in_flight` batches are in flight, and a lead is given up only
    when nobody is queued. So no command waits while another batch could be sent.
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
        self._taken = 0
        self._in_flight = 0

    def apply(self, command: Command, deadline: int | None = None) -> CommandResult:
        """The store's reply, or that it is unavailable; raises what else the store raised for
        this command. `deadline` is its owner's: what is nearest goes first."""
        ticket = _Ticket(command, deadline)
        try:
            self._enter(ticket)
            if ticket.turn is not None:
                ticket.turn.acquire()
            if ticket.leads:
                self._lead(ticket)
            self._move_on(ticket)
        except BaseException:
            self._leave(ticket)
            raise
        return _answer(ticket, self._now())

    def apply_many(self, commands: Sequence[Command]) -> list[CommandResult]:
        """Answers to several commands of one caller, in batches of their own beside those in
        flight; whatever the store raised, it counts as unavailable for that command."""
        tickets = [_Ticket(command) for command in commands]
        queue = Queue(list(tickets))
        while queue:
            batch, queue = queue.split(self._limits.count, self._limits.size)
            self._settle(batch)
        at = self._now()
        return [
            CommandResult(_unavailable(ticket.outcome), ticket.sent_at, at) for ticket in tickets
        ]

    # --- one ticket's way ---------------------------------------------------------------------

    def _enter(self, ticket: _Ticket) -> None:
        """Take a free lane, or queue up."""
        with self._lock:
            if self._taken < self._max_in_flight:
                self._taken, ticket.leads = self._taken + 1, True
            else:
                turn = threading.Lock()
                turn.acquire()
                line = self._queue.line_of(ticket)
                # No signal is looked for between these two: who has a turn is queued.
                ticket.turn = turn
                line.append(ticket)

    def _lead(self, leader: _Ticket) -> None:
        """Send one batch and give everyone in it their outcome."""
        followers = self._take(leader, self._limits.count)
        batch = [leader, *followers]
        self._settle(batch)
        self._give(batch)

    def _take(self, leader: _Ticket, most: int) -> list[_Ticket]:
        with self._lock:
            if leader.followers is None:
                count = batch_size(1 + len(self._queue), self._in_flight, self._max_in_flight, most)
                room = self._limits.size - leader.size
                batch, rest = self._queue.split(count - 1, room, some=False)
                flying = self._in_flight + 1 + len(batch)
                self._queue, self._in_flight, leader.followers = rest, flying, batch
            return leader.followers

    def _give(self, batch: Sequence[_Ticket]) -> None:
        leader = last = batch[0]
        for ticket in batch[1:]:
            last.next = ticket
            last = ticket
        with self._lock:
            self._in_flight, leader.settled = self._in_flight - len(batch), True

    def _move_on(self, ticket: _Ticket) -> None:
        """Call the next of this batch; after the last one, whoever leads the next batch.

        Until then most of the batch have queued up again, which makes for full batches.
        """
        if ticket.next is None:
            with self._lock:
                if not self._queue:
                    self._taken, ticket.ended = self._taken - 1, True
                    return
                (heir,), rest = self._queue.split(1, 0)
                self._queue, ticket.next, heir.leads = rest, heir, True
        following = ticket.next
        assert following.turn is not None
        following.called = True
        with suppress(RuntimeError):  # called already, just before an interruption
            following.turn.release()
        ticket.ended = True

    # --- interrupted --------------------------------------------------------------------------

    def _leave(self, ticket: _Ticket) -> None:
        """The caller goes, once its command is through: were it still on its way, what the caller
        does next about its key could overtake it. Told to go again, it leaves a thread behind."""
        if ticket.ended:
            return
        if ticket.leads or ticket.called:
            self._make_up(ticket)
        elif ticket.turn is not None:
            try:
                self._stand_in(ticket)
            except BaseException:
                self._leave_behind(ticket)

    def _leave_behind(self, ticket: _Ticket) -> None:
        if ticket.ended:  # else its lane would be given up twice
            return
        if ticket.leads or ticket.called:
            self._make_up(ticket)
        else:
            threading.Thread(target=self._stand_in, args=(ticket,), daemon=True).start()

    def _make_up(self, ticket: _Ticket) -> None:
        if ticket.leads and not ticket.settled:
            followers = self._take(ticket, most=1)
            lost = StoreUnavailable("the thread that led this batch was interrupted")
            batch = [ticket, *followers]
            for one in batch:
                one.outcome = lost
            self._give(batch)
        self._move_on(ticket)

    def _stand_in(self, ticket: _Ticket) -> None:
        """Wait for the ticket's turn, in its caller's place."""
        assert ticket.turn is not None
        ticket.turn.acquire()
        if ticket.leads:
            self._lead(ticket)
        self._move_on(ticket)

    # --- the store ----------------------------------------------------------------------------

    def _settle(self, batch: Sequence[_Ticket]) -> None:
        """Give each ticket its outcome, and the moment its command was last sent."""
        sent_at = self._now()
        for ticket in batch:
            ticket.sent_at = sent_at
        commands = [ticket.command for ticket in batch]
        outcomes: Sequence[Outcome]
        try:
            outcomes = self._apply(commands)
            check_replies(commands, outcomes)
        except Exception as error:
            if len(batch) > 1 and not shared_by_all(error):
                for ticket in batch:
                    self._settle([ticket])
                return
            self._limits.sent(batch, error)
            outcomes = [error] * len(batch)
        else:
            self._limits.sent(batch, None)
        for ticket, outcome in zip(batch, outcomes, strict=True):
            ticket.outcome = outcome


def _answer(ticket: _Ticket, at: int) -> CommandResult:
    outcome = ticket.outcome
    assert outcome is not None
    if isinstance(outcome, Exception) and not isinstance(outcome, StoreUnavailable):
        raise outcome
    return CommandResult(outcome, ticket.sent_at, at)


def _unavailable(outcome: Outcome | None) -> Reply | StoreUnavailable:
    assert outcome is not None
    if isinstance(outcome, Exception) and not isinstance(outcome, StoreUnavailable):
        return StoreUnavailable(f"{type(outcome).__name__}: {outcome}")
    return outcome
