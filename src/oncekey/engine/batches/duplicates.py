"""Lets the duplicates of a key share claims and polls in one process, or on one event loop.

1. One claim of a key is under way at a time. Callers that come meanwhile wait for its reply, which
   usually is a reply to their claims as well; if it is not, one of them sends the next claim for
   all of them.
2. Of the callers that wait for a running attempt (`wait=`) one polls the store. The others sleep
   until the poller gets a reply, until it leaves and another one polls, or until the attempt ends
   in this process.
3. An attempt of this process replies to all of them when it ends (while it runs, see
   shared_claims.py).

No caller gets a reply that was decided before the caller came, except one that cannot change: an
outcome, or that an attempt of this process holds the key. How one reply follows from another is in
core/state_machine.py. Between processes the store alone decides.

Contains the registry of those who wait. Waking is a callback, made outside the lock; it may come
twice. Whoever is in the registry must call `leave`, and its attempt `poller_left`, however it ends.
Must not know threads or event loops beyond its own lock.

Nearly every claim is alone, so leading costs two operations on a dict, which need no lock: `lead`
enters the claim if the key has no leader; `replied` takes it out and then looks whether anybody
waits. Whoever wants to wait enters itself first and then looks for a leader, under the lock. So at
least one of the two sees the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from oncekey.core.commands import Busy, Claim, Claimed, Replay, Reply, Unknown
from oncekey.core.errors import StoreUnavailable
from oncekey.core.state_machine import reply_to_duplicate

# A duplicate that sleeps beside a poller asks the store itself after this time, so that nothing
# depends on a poller that was interrupted in the wrong place.
FOLLOWER_POLL_US: Final = 5_000_000

ClaimReply = Reply | StoreUnavailable


class Waiter:
    """One caller's claim while it is in the registry.

    reply    the reply it was given; None if it was woken to send its own claim
    leads    it was woken to send its claim, for itself and for those who wait
    behind   the claim that was under way when it came, whose reply may have been decided before
    caller   names its attempt, which may claim again as another owner
    unknown  its last reply was that the key is unknown, so the same reply again does not wake it
    """

    __slots__ = ("behind", "caller", "claim", "leads", "reply", "unknown", "wake")

    def __init__(
        self,
        claim: Claim,
        wake: Callable[[], None] | None = None,
        caller: bytes = b"",
        *,
        unknown: bool = False,
    ) -> None:
        self.claim = claim
        self.unknown = unknown
        self.caller = caller or claim.owner
        self.wake = wake
        self.reply: ClaimReply | None = None
        self.leads = False
        self.behind: Claim | None = None


class _KeyWaiters:
    """Those who wait for one key: for the reply to a claim, or, sleeping, for an attempt's end."""

    __slots__ = ("for_reply", "poller", "sleeping")

    def __init__(self) -> None:
        self.for_reply: dict[Waiter, None] = {}
        self.sleeping: dict[Waiter, None] = {}
        self.poller: bytes | None = None  # the caller that polls

    def is_empty(self) -> bool:
        return not self.for_reply and not self.sleeping and self.poller is None


class Duplicates:
    """Who claims and who waits, by key. One per process; with asyncio, one per event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leaders: dict[bytes, Claim] = {}
        self._waiting: dict[bytes, _KeyWaiters] = {}

    # --- a claim ------------------------------------------------------------------------------

    def lead(self, claim: Claim) -> bool:
        """True if no other claim of this key is under way: this one is sent now."""
        return self._leaders.setdefault(claim.id, claim) is claim

    def lead_or_wait(self, waiter: Waiter) -> bool:
        """The same; if it is False, the waiter will be woken, with a reply or to lead."""
        id = waiter.claim.id
        with self._lock:
            for_reply = self._waiters_of(id).for_reply
            for_reply[waiter] = None
            leader = self._leaders.setdefault(id, waiter.claim)
            if leader is waiter.claim:
                waiter.leads = True
                del for_reply[waiter]
                self._remove_if_empty(id)
                return True
            waiter.behind = leader
            return False

    def take_lead(self, waiter: Waiter) -> None:
        """The waiter sends its own claim, because the leader does not come back."""
        id = waiter.claim.id
        with self._lock:
            if waiter.reply is None:
                self._waiters_of(id).for_reply.pop(waiter, None)
                waiter.leads, self._leaders[id] = True, waiter.claim

    def replied(self, leader: Claim, reply: ClaimReply) -> None:
        """The leading claim got this reply: give it to all whose claims it answers."""
        id = leader.id
        if id not in self._waiting:
            self._leaders.pop(id, None)
            if id not in self._waiting:
                return
        with self._lock:
            if self._leaders.setdefault(id, leader) is not leader:
                return  # the next leader's reply is for those who wait
            woken = self._deliver(leader, reply) if id in self._waiting else []
            self._pass_lead(id, woken)
        _wake(woken)

    def leave(self, claim: Claim, waiter: Waiter | None = None) -> None:
        """A claim is not under way any more, or its waiter is gone, with or without a reply."""
        id = claim.id
        woken: list[Waiter] = []
        with self._lock:
            waiters = self._waiting.get(id)
            if waiters is not None and waiter is not None:
                waiters.for_reply.pop(waiter, None)
                waiters.sleeping.pop(waiter, None)
            if self._leaders.get(id) is claim:
                self._pass_lead(id, woken)
            else:
                self._remove_if_empty(id)
        _wake(woken)

    # --- waiting for an attempt's end ---------------------------------------------------------

    def start_sleep(self, waiter: Waiter) -> bool:
        """Add a sleeping waiter; True if it is the one that polls."""
        id = waiter.claim.id
        with self._lock:
            waiters = self._waiters_of(id)
            waiter.behind = self._leaders.get(id)
            waiters.sleeping[waiter] = None
            if waiters.poller is None:
                waiters.poller = waiter.caller
            return waiters.poller == waiter.caller

    def has_waiters(self, id: bytes) -> bool:
        return id in self._waiting

    def key_ended(self, claim: Claim, outcome: Replay | None) -> None:
        """The attempt that held this key has ended here. All get its outcome; if there is none,
        one of them asks the store."""
        id = claim.id
        woken: list[Waiter] = []
        with self._lock:
            waiters = self._waiting.get(id)
            if waiters is None:
                return
            if outcome is not None:
                for waiter in [*waiters.for_reply, *waiters.sleeping]:
                    waiter.reply = reply_to_duplicate(claim, outcome, waiter.claim)
                    woken.append(waiter)
                waiters.for_reply.clear()
                waiters.sleeping.clear()
                self._remove_if_empty(id)
            else:
                self._wake_poller(waiters, woken)
        _wake(woken)

    def poller_left(self, id: bytes, caller: bytes) -> None:
        """An attempt is over: if it was the poller, another one polls from now on."""
        woken: list[Waiter] = []
        with self._lock:
            waiters = self._waiting.get(id)
            if waiters is not None and waiters.poller == caller:
                waiters.poller = None
                self._wake_poller(waiters, woken)
                self._remove_if_empty(id)
        _wake(woken)

    # --- under the lock -----------------------------------------------------------------------

    def _waiters_of(self, id: bytes) -> _KeyWaiters:
        waiters = self._waiting.get(id)
        if waiters is None:
            waiters = self._waiting[id] = _KeyWaiters()
        return waiters

    def _remove_if_empty(self, id: bytes) -> None:
        waiters = self._waiting.get(id)
        if waiters is not None and waiters.is_empty():
            del self._waiting[id]

    def _deliver(self, leader: Claim, reply: ClaimReply) -> list[Waiter]:
        """Give the reply to all whose claims it answers, and remove them."""
        waiters = self._waiting[leader.id]
        woken = _set_replies(waiters.for_reply, leader, reply)
        for waiter in woken:
            del waiters.for_reply[waiter]
        if not isinstance(reply, (Busy, Claimed)):  # those who sleep know that much
            sleeping: Iterable[Waiter] = waiters.sleeping
            if isinstance(reply, Unknown):
                sleeping = [waiter for waiter in waiters.sleeping if not waiter.unknown]
            awakened = _set_replies(sleeping, leader, reply)
            for waiter in awakened:
                del waiters.sleeping[waiter]
            woken += awakened
        return woken

    def _pass_lead(self, id: bytes, woken: list[Waiter]) -> None:
        """No claim is under way any more: one of those who wait for a reply sends the next."""
        waiters = self._waiting.get(id)
        if waiters is None or not waiters.for_reply:
            self._leaders.pop(id, None)
            self._remove_if_empty(id)
            return
        leader = next(iter(waiters.for_reply))
        del waiters.for_reply[leader]
        leader.leads, self._leaders[id] = True, leader.claim
        woken.append(leader)

    def _wake_poller(self, waiters: _KeyWaiters, woken: list[Waiter]) -> None:
        """Let one of those who sleep ask the store now, and poll from now on."""
        for waiter in waiters.sleeping:
            if waiters.poller is None or waiters.poller == waiter.caller:
                waiters.poller = waiter.caller
                del waiters.sleeping[waiter]
                woken.append(waiter)
                return


def _set_replies(waiters: Iterable[Waiter], leader: Claim, reply: ClaimReply) -> list[Waiter]:
    """Derive the waiters' replies from the leader's; returns those that have got one."""
    cannot_change = isinstance(reply, (Claimed, Replay))
    found = []
    for waiter in waiters:
        if waiter.behind is leader and not cannot_change:
            continue  # the reply may have been decided before this waiter came
        if isinstance(reply, StoreUnavailable):
            waiter.reply = reply
        else:
            waiter.reply = reply_to_duplicate(leader, reply, waiter.claim)
        if waiter.reply is not None:
            found.append(waiter)
    return found


def _wake(waiters: Iterable[Waiter]) -> None:
    for waiter in waiters:
        assert waiter.wake is not None
        with suppress(RuntimeError):  # its event loop is closed: nobody waits there any more
            waiter.wake()
