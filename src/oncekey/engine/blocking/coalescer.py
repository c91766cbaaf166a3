"""Batches for threads, formed without timers.

Who comes while a lane of the store is free leads: it calls the store and hands out the replies. Who
comes while all lanes are taken queues up and is the next batch, led by its first member. A lone
command leaves at once; sixty-four share one commit.

A caller may be interrupted anywhere (Ctrl-C, a task's time limit) while others count on it. So what
changes hands does so in one assignment, which no signal can split, and whatever a ticket still owes
the others can be read from it and made up for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from oncekey.core.commands import Command, Reply
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.batch import BATCH_MAX, Outcome, batch_size, check_replies, shared_by_all

Apply = Callable[[Sequence[Command]], list[Reply]]


class _Ticket:
    """One command, and what its caller owes the others.

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
        "ended",
        "followers",
        "leads",
        "next",
        "outcome",
        "settled",
        "turn",
    )

    def __init__(self, command: Command) -> None:
        self.command = command
        self.outcome: Outcome | None = None
        self.turn: threading.Lock | None = None
        self.called = False
        self.leads = False
        self.followers: list[_Ticket] | None = None
        self.settled = False
        self.next: _Ticket | None = None
        self.ended = False


class Coalescer:
    """A lane is taken from the start of a batch until its lead has been passed on or given up.

    While anyone is queued all lanes are taken: only then is queued, and a lane is given up only
    where nobody is. So no command waits beside a free lane.
    """

    def __init__(self, apply: Apply, *, most: int = BATCH_MAX, lanes: int = 1) -> None:
        self._apply = apply
        self._most = most
        self._lanes = lanes
        self._lock = threading.Lock()
        self._queue: list[_Ticket] = []
        self._taken = 0
        self._in_flight = 0

    def call(self, command: Command) -> Reply:
        """The store's reply; raises what the store raised for this command."""
        ticket = _Ticket(command)
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
        assert ticket.outcome is not None
        if isinstance(ticket.outcome, Exception):
            raise ticket.outcome
        return ticket.outcome

    def call_many(self, commands: Sequence[Command]) -> list[Outcome]:
        """Outcomes of several commands of one caller, failures as values."""
        outcomes: list[Outcome] = []
        for start in range(0, len(commands), self._most):
            outcomes += self._settle(commands[start : start + self._most])
        return outcomes

    # --- one ticket's way ---------------------------------------------------------------------

    def _enter(self, ticket: _Ticket) -> None:
        """Take a free lane, or queue up."""
        with self._lock:
            if self._taken < self._lanes:
                self._taken, ticket.leads = self._taken + 1, True
            else:
                turn = threading.Lock()
                turn.acquire()
                ticket.turn = turn
                self._queue.append(ticket)

    def _lead(self, leader: _Ticket) -> None:
        """Send one batch and give everyone in it their outcome."""
        followers = self._take(leader, self._most)
        commands = [leader.command, *(ticket.command for ticket in followers)]
        self._give(leader, self._settle(commands))

    def _take(self, leader: _Ticket, most: int) -> list[_Ticket]:
        with self._lock:
            if leader.followers is None:
                queue = self._queue
                size = batch_size(1 + len(queue), self._in_flight, self._lanes, most)
                rest, flying = queue[size - 1 :], self._in_flight + size
                self._queue, self._in_flight, leader.followers = rest, flying, queue[: size - 1]
            return leader.followers

    def _give(self, leader: _Ticket, outcomes: Sequence[Outcome]) -> None:
        assert leader.followers is not None
        last = leader
        leader.outcome = outcomes[0]
        for ticket, outcome in zip(leader.followers, outcomes[1:], strict=True):
            ticket.outcome = outcome
            last.next = ticket
            last = ticket
        with self._lock:
            self._in_flight, leader.settled = self._in_flight - len(outcomes), True

    def _move_on(self, ticket: _Ticket) -> None:
        """Call the next of this batch; after the last one, whoever leads the next batch.

        Until then most of the batch have queued up again, which makes for full batches.
        """
        if ticket.next is None:
            with self._lock:
                if not self._queue:
                    self._taken, ticket.ended = self._taken - 1, True
                    return
                heir, rest = self._queue[0], self._queue[1:]
                self._queue, ticket.next, heir.leads = rest, heir, True
        following = ticket.next
        assert following.turn is not None
        following.called = True
        with suppress(RuntimeError):  # called already, just before an interruption
            following.turn.release()
        ticket.ended = True

    # --- interrupted --------------------------------------------------------------------------

    def _leave(self, ticket: _Ticket) -> None:
        """The caller goes: what it owes is done now, or by a thread if it must be waited for."""
        if ticket.ended:
            return
        if ticket.leads or ticket.called:
            self._make_up(ticket)
        elif ticket.turn is not None:
            threading.Thread(target=self._stand_in, args=(ticket,), daemon=True).start()

    def _make_up(self, ticket: _Ticket) -> None:
        if ticket.leads and not ticket.settled:
            followers = self._take(ticket, most=1)
            lost = StoreUnavailable("the thread that led this batch was interrupted")
            self._give(ticket, [lost] * (1 + len(followers)))
        self._move_on(ticket)

    def _stand_in(self, ticket: _Ticket) -> None:
        """In a thread of its own: wait for the ticket's turn in its caller's place."""
        assert ticket.turn is not None
        ticket.turn.acquire()
        if ticket.leads:
            self._lead(ticket)
        self._move_on(ticket)

    # --- the store ----------------------------------------------------------------------------

    def _settle(self, commands: Sequence[Command]) -> list[Outcome]:
        try:
            replies = self._apply(commands)
            check_replies(commands, replies)
        except Exception as error:
            if len(commands) == 1 or shared_by_all(error):
                return [error] * len(commands)
            return [self._settle([command])[0] for command in commands]
        return list(replies)
