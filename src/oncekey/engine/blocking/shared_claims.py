"""Shares the claims and waits of one attempt with its duplicates in other threads.

Performs two effects of the attempt flow: a claim, and a sleep that watches a key. What is shared
with whom is in duplicates.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from oncekey.core.commands import Claim, Command, Finish
from oncekey.core.effects import ApplyCommand, CommandResult, Sleep
from oncekey.engine.clock import Clock
from oncekey.engine.duplicates import FOLLOWER_POLL_US, ClaimReply, Duplicates, Waiter
from oncekey.engine.shared_claims_base import RunningAttempts, SharedClaimsBase

# A claim that takes longer than this is not waited for any more: its thread may be gone.
LEADER_PATIENCE_US: Final = 10_000_000


class SharedClaims(SharedClaimsBase):
    """One attempt's claims, in its caller's thread."""

    __slots__ = ("_send",)

    def __init__(
        self,
        duplicates: Duplicates,
        running: RunningAttempts,
        clock: Clock,
        send: Callable[[Command, int | None], CommandResult],
    ) -> None:
        super().__init__(duplicates, running, clock)
        self._send = send

    def apply(self, effect: ApplyCommand, deadline: int | None) -> CommandResult:
        """Apply a command. The reply to a claim may come from an attempt that runs here or from a
        duplicate's claim; every other reply comes from the store."""
        command = effect.command
        if type(command) is not Claim:
            result = self._send(command, deadline)
            if type(command) is Finish:
                self._finished(command, result)
            return result
        self._caller = self._caller or command.owner
        self._claim, self._unanswered = command, True
        result = self._send(command, None) if effect.repeated else self._share(command)
        self._claimed(command, result)
        return result

    def _share(self, claim: Claim) -> CommandResult:
        now = self._clock.now()
        reply, self._handed = self._handed, None
        if reply is None:
            reply = self._running.reply(claim, now)
        if reply is not None:
            return CommandResult(reply, now, now, shared=True)
        waiter = Waiter(claim)
        try:
            if not self._duplicates.lead(waiter):
                reply = self._wait_for_reply(waiter)
                if reply is not None:
                    return CommandResult(reply, now, self._clock.now(), shared=True)
            result = self._send(claim, None)
            self._duplicates.replied(waiter, result.reply)
        except BaseException:
            self._duplicates.leave(waiter)
            raise
        return result

    def _wait_for_reply(self, waiter: Waiter) -> ClaimReply | None:
        """The reply that follows from the claim under way; None if this one must be sent too."""
        event = threading.Event()
        waiter.wake = event.set
        if self._duplicates.lead_or_wait(waiter):
            return None
        if not self._clock.wait(event, LEADER_PATIENCE_US):
            self._duplicates.take_lead(waiter)
        return waiter.reply

    def sleep(self, effect: Sleep) -> int:
        """Wait for the end of the attempt that holds the key, or for the time to poll again."""
        claim = self._claim
        assert claim is not None
        event = threading.Event()
        waiter = Waiter(claim, event.set, self._caller, unknown=self._unknown)
        clock = self._clock
        us = min(effect.most, FOLLOWER_POLL_US)
        try:
            if self._duplicates.start_sleep(waiter):
                # Read only now: an attempt that ends after this wakes those who sleep.
                left = self._running.time_left(claim.id, clock.now())
                us = min(left, us) if left else clock.jitter(effect.us)
            clock.wait(event, us)
        finally:
            self._duplicates.leave(waiter)
        self._handed = waiter.reply
        return clock.now()
