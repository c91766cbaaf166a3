"""Batches for threads, formed without timers.

Who comes while a lane of the store is free leads: it calls the store and hands out the replies. Who
comes while all lanes are taken queues up and is the next batch, led by its first member. A lone
command leaves at once; sixty-four share one commit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from oncekey.core.commands import Command, Reply
from oncekey.core.errors import StoreUnavailable
from oncekey.engine.batch import BATCH_MAX, Outcome, batch_size, check_replies, shared_by_all

Apply = Callable[[Sequence[Command]], list[Reply]]


class _Ticket:
    """One queued command; `turn` is held until there is an outcome or the lead.

    `next` is the neighbour in the batch to wake: one wakes the other, so that they come to the
    interpreter one after the other instead of all at once.
    """

    __slots__ = ("awake", "command", "leads", "next", "outcome", "turn")

    def __init__(self, command: Command) -> None:
        self.command = command
        self.outcome: Outcome | None = None
        self.leads = False
        self.awake = False
        self.next: _Ticket | None = None
        self.turn: threading.Lock | None = None


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
        self._queue: deque[_Ticket] = deque()
        self._taken = 0
        self._in_flight = 0

    def call(self, command: Command) -> Reply:
        """The store's reply; raises what the store raised for this command."""
        ticket = _Ticket(command)
        with self._lock:
            if self._taken < self._lanes:
                self._taken += 1
                ticket.leads = True
            else:
                ticket.turn = threading.Lock()
                ticket.turn.acquire()
                self._queue.append(ticket)
        if ticket.leads:
            self._lead(ticket)
        else:
            try:
                self._wait(ticket)
            except BaseException:
                # Interrupted (Ctrl-C): others count on this ticket's turn, so it is not left.
                if not ticket.awake:
                    threading.Thread(target=self._wait, args=(ticket,), daemon=True).start()
                raise
        assert ticket.outcome is not None
        if isinstance(ticket.outcome, Exception):
            raise ticket.outcome
        return ticket.outcome

    def _wait(self, ticket: _Ticket) -> None:
        """Until there is an outcome; where the lead is handed over, by leading."""
        assert ticket.turn is not None
        ticket.turn.acquire()  # released by whoever brings the outcome or the lead
        ticket.awake = True
        if ticket.leads:
            self._lead(ticket)
        else:
            self._wake(ticket.next)

    def call_many(self, commands: Sequence[Command]) -> list[Outcome]:
        """Outcomes of several commands of one caller, failures as values."""
        if not commands:
            return []
        outcomes: list[Outcome] = []
        for start in range(0, len(commands), self._most):
            outcomes += self._settle(commands[start : start + self._most])
        return outcomes

    def _lead(self, leader: _Ticket) -> None:
        """Send one batch, give everyone in it their outcome, pass the lead on."""
        with self._lock:
            waiting = 1 + len(self._queue)
            size = batch_size(waiting, self._in_flight, self._lanes, self._most)
            followers = [self._queue.popleft() for _ in range(size - 1)]
            self._in_flight += size
        outcomes: list[Outcome] = []
        try:
            commands = [leader.command, *(ticket.command for ticket in followers)]
            outcomes = self._settle(commands)
        finally:
            # Also when this thread is interrupted: nobody may be left waiting for ever.
            if not outcomes:
                lost = StoreUnavailable("the thread that led this batch was interrupted")
                outcomes = [lost] * size
            leader.outcome = outcomes[0]
            follower: _Ticket | None = None
            for ticket, outcome in zip(reversed(followers), reversed(outcomes[1:]), strict=True):
                ticket.outcome = outcome
                ticket.next, follower = follower, ticket
            with self._lock:
                self._in_flight -= size
            self._wake(follower)

    def _wake(self, follower: _Ticket | None) -> None:
        """Wake the next of this batch; after the last one, whoever leads the next batch.

        Until then most of the batch have queued up again, which makes for full batches.
        """
        if follower is None:
            self._pass_on()
        else:
            assert follower.turn is not None
            follower.turn.release()

    def _pass_on(self) -> None:
        with self._lock:
            if not self._queue:
                self._taken -= 1
                return
            heir = self._queue.popleft()
            heir.leads = True
        assert heir.turn is not None
        heir.turn.release()

    def _settle(self, commands: Sequence[Command]) -> list[Outcome]:
        try:
            replies = self._apply(commands)
            check_replies(commands, replies)
        except Exception as error:
            if len(commands) == 1 or shared_by_all(error):
                return [error] * len(commands)
            return [self._settle([command])[0] for command in commands]
        return list(replies)
