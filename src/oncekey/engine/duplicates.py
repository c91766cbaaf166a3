"""Lets the duplicates of a key share claims and polls in one process.

With asyncio that is one event loop.

1. One claim of a key is on its way at a time. Who comes meanwhile waits for its reply, which
   usually answers it as well; else one of those who wait sends the next claim for all of them.
2. Of those who wait for a running attempt (`wait=`) one polls the store. The others sleep until it
   is told something, until it leaves and another one polls, or until the attempt ends here.
3. Whoever holds the key here answers all of them when it ends (while it runs: engine/holders.py).

Nobody is given a reply that was decided before it asked, except what cannot change: an outcome, or
that the claim was taken by an attempt of this very process. How one reply follows from another is
core/state_machine.py; correctness between processes stays with the store.

Owns the registry only. Waking is a callback, made outside the lock; it may come twice. Whoever is
in the registry must call `leave`, and its attempt `depart`, however it ends. Must not know threads
or event loops beyond its own lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from oncekey.core.commands import (
    Busy,
    Claim,
    Claimed,
    Command,
    Done,
    Finish,
    Replay,
    Reply,
    Unknown,
)
from oncekey.core.effects import CommandResult
from oncekey.core.errors import StoreUnavailable
from oncekey.core.record import State
from oncekey.core.state_machine import reply_to_duplicate

# A duplicate that waits beside a polling one looks for itself after this time: nothing hangs on
# one that was interrupted in the wrong place.
FOLLOWER_POLL_US: Final = 5_000_000

Told = Reply | StoreUnavailable


class Waiter:
    """One caller's claim while it is in the registry.

    reply   what it is told; None where it was woken to ask for itself
    leads   it sends its claim now, for itself and for those who wait
    behind  the claim that was on its way when it came, which may have been decided before
    caller  names its attempt, which may claim again as another owner
    unsure  it was told that nobody knows what became of the key: hearing that again is no news
    """

    __slots__ = ("behind", "caller", "claim", "leads", "reply", "unsure", "wake")

    def __init__(
        self,
        claim: Claim,
        wake: Callable[[], None] | None = None,
        caller: bytes = b"",
        *,
        unsure: bool = False,
    ) -> None:
        self.claim = claim
        self.unsure = unsure
        self.caller = caller or claim.owner
        self.wake = wake
        self.reply: Told | None = None
        self.leads = False
        self.behind: Waiter | None = None


class _Room:
    """Those who wait for one key: for a claim's reply, or for the attempt's end."""

    __slots__ = ("asking", "asleep", "poller")

    def __init__(self) -> None:
        self.asking: dict[Waiter, None] = {}
        self.asleep: dict[Waiter, None] = {}
        self.poller: bytes | None = None  # the caller that polls

    def is_empty(self) -> bool:
        return not self.asking and not self.asleep and self.poller is None


class Duplicates:
    """Who claims, and who waits, by key; one per process, with asyncio one per event loop."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """At the start, and after a fork: nobody waits, and the lock may have been held."""
        self._lock = threading.Lock()
        self._leaders: dict[bytes, Waiter] = {}
        self._rooms: dict[bytes, _Room] = {}

    # --- a claim ------------------------------------------------------------------------------

    def lead(self, waiter: Waiter) -> bool:
        """True where no claim of this key is on its way: the waiter sends its own now."""
        with self._lock:
            if waiter.claim.id in self._leaders:
                return False
            waiter.leads, self._leaders[waiter.claim.id] = True, waiter
            return True

    def join(self, waiter: Waiter) -> bool:
        """The same; where it is False, the waiter will be woken, with a reply or to lead."""
        id = waiter.claim.id
        with self._lock:
            leader = self._leaders.get(id)
            if leader is None:
                waiter.leads, self._leaders[id] = True, waiter
                return True
            waiter.behind = leader
            self._room(id).asking[waiter] = None
            return False

    def take_lead(self, waiter: Waiter) -> None:
        """The one that leads does not come back: this one sends its own claim."""
        id = waiter.claim.id
        with self._lock:
            if waiter.reply is None:
                self._room(id).asking.pop(waiter, None)
                waiter.leads, self._leaders[id] = True, waiter

    def answered(self, leader: Waiter, reply: Told) -> None:
        """The leader's claim was answered: tell all who are answered by that."""
        with self._lock:
            if self._leaders.get(leader.claim.id) is not leader:
                return
            woken = self._tell(leader, reply) if leader.claim.id in self._rooms else []
            self._pass_on(leader.claim.id, woken)
        _wake(woken)

    def leave(self, waiter: Waiter) -> None:
        """The waiter is gone, answered or not."""
        id = waiter.claim.id
        woken: list[Waiter] = []
        with self._lock:
            room = self._rooms.get(id)
            if room is not None:
                room.asking.pop(waiter, None)
                room.asleep.pop(waiter, None)
            if self._leaders.get(id) is waiter:
                self._pass_on(id, woken)
            else:
                self._tidy(id)
        _wake(woken)

    # --- waiting for an attempt's end ---------------------------------------------------------

    def fall_asleep(self, waiter: Waiter) -> bool:
        """Enter those who sleep; True for the one that polls."""
        id = waiter.claim.id
        with self._lock:
            room = self._room(id)
            waiter.behind = self._leaders.get(id)
            room.asleep[waiter] = None
            if room.poller is None:
                room.poller = waiter.caller
            return room.poller == waiter.caller

    def ended(self, claim: Claim, outcome: Replay | None) -> None:
        """The attempt that held this key has ended here. With its outcome all are answered; with
        none, one asks what came of it."""
        id = claim.id
        if id not in self._rooms:
            return
        woken: list[Waiter] = []
        with self._lock:
            room = self._rooms.get(id)
            if room is None:
                return
            if outcome is not None:
                for waiter in [*room.asking, *room.asleep]:
                    waiter.reply = reply_to_duplicate(claim, outcome, waiter.claim)
                    woken.append(waiter)
                room.asking.clear()
                room.asleep.clear()
                self._tidy(id)
            else:
                self._rouse(room, woken)
        _wake(woken)

    def depart(self, id: bytes, caller: bytes) -> None:
        """An attempt is over: if it was the one that polled, another one does so now."""
        if id not in self._rooms:
            return
        woken: list[Waiter] = []
        with self._lock:
            room = self._rooms.get(id)
            if room is not None and room.poller == caller:
                room.poller = None
                self._rouse(room, woken)
                self._tidy(id)
        _wake(woken)

    # --- under the lock -----------------------------------------------------------------------

    def _room(self, id: bytes) -> _Room:
        room = self._rooms.get(id)
        if room is None:
            room = self._rooms[id] = _Room()
        return room

    def _tidy(self, id: bytes) -> None:
        room = self._rooms.get(id)
        if room is not None and room.is_empty():
            del self._rooms[id]

    def _tell(self, leader: Waiter, reply: Told) -> list[Waiter]:
        """Give the reply to all whom it answers, and take them out."""
        room = self._rooms[leader.claim.id]
        woken = _told(room.asking, leader, reply)
        for waiter in woken:
            del room.asking[waiter]
        if not isinstance(reply, (Busy, Claimed)):  # those who sleep know that much
            asleep: Iterable[Waiter] = room.asleep
            if isinstance(reply, Unknown):
                asleep = [waiter for waiter in room.asleep if not waiter.unsure]
            roused = _told(asleep, leader, reply)
            for waiter in roused:
                del room.asleep[waiter]
            woken += roused
        return woken

    def _pass_on(self, id: bytes, woken: list[Waiter]) -> None:
        """No claim is on its way any more: whoever still waits for a reply sends the next."""
        room = self._rooms.get(id)
        if room is None or not room.asking:
            del self._leaders[id]
            self._tidy(id)
            return
        heir = next(iter(room.asking))
        del room.asking[heir]
        heir.leads, self._leaders[id] = True, heir
        woken.append(heir)

    def _rouse(self, room: _Room, woken: list[Waiter]) -> None:
        """Have one of the sleeping ask now, and poll from now on."""
        for waiter in room.asleep:
            if room.poller is None or room.poller == waiter.caller:
                room.poller = waiter.caller
                del room.asleep[waiter]
                woken.append(waiter)
                return


def _told(waiters: Iterable[Waiter], leader: Waiter, reply: Told) -> list[Waiter]:
    """Those of the waiters whom this reply to the leader answers, their own replies set."""
    lasting = isinstance(reply, (Claimed, Replay))
    found = []
    for waiter in waiters:
        if waiter.behind is leader and not lasting:
            continue  # it may have been decided before this one came
        if isinstance(reply, StoreUnavailable):
            waiter.reply = reply
        else:
            waiter.reply = reply_to_duplicate(leader.claim, reply, waiter.claim)
        if waiter.reply is not None:
            found.append(waiter)
    return found


def _wake(waiters: Iterable[Waiter]) -> None:
    for waiter in waiters:
        assert waiter.wake is not None
        with suppress(RuntimeError):  # its event loop is closed: nobody waits there any more
            waiter.wake()


class AttemptEnd:
    """How one attempt came to its end, for its duplicates."""

    __slots__ = ("_number", "_unanswered", "caller", "claim", "outcome", "unsure")

    def __init__(self) -> None:
        self.claim: Claim | None = None
        self.caller = b""
        self.outcome: Replay | None = None
        self._number = 0  # of the attempt, once it holds the key
        self._unanswered = False  # a claim was sent, and interrupted before its reply
        self.unsure = False  # the last reply was that nobody knows

    def asked(self, claim: Claim) -> None:
        self.caller = self.caller or claim.owner
        self.claim, self._unanswered = claim, True

    def claimed(self, claim: Claim, answer: CommandResult) -> None:
        self.claim, self._unanswered = claim, False
        self.unsure = isinstance(answer.reply, Unknown)
        if isinstance(answer.reply, Claimed):
            self._number = answer.reply.attempt

    def answered(self, command: Command, answer: CommandResult) -> None:
        if type(command) is not Finish or type(answer.reply) is not Done or self.claim is None:
            return
        if command.state is not State.UNKNOWN:
            # Counted from before it was stored: it never outlives the record.
            left = max(0, self.claim.keep - (answer.at - answer.sent_at))
            number, fence = self._number, command.fence
            self.outcome = Replay(command.state, command.body, number, fence, left)

    def tell(self, duplicates: Iterable[Duplicates]) -> None:
        """Answer those who wait for this key, or have one of them ask."""
        if self.claim is None:
            return
        for some in duplicates:
            if self._number or self._unanswered:
                some.ended(self.claim, self.outcome)
            some.depart(self.claim.id, self.caller)
