"""Shares the claims and waits of attempts with their duplicates in other threads.

Performs two effects of the attempt flow: a claim, and a sleep that watches a key. What is shared
with whom is in duplicates.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from oncekey.core.commands import Claim, Command
from oncekey.core.effects import CommandResult, Sleep
from oncekey.engine.batch import Sent
from oncekey.engine.clock import Clock
from oncekey.engine.duplicates import FOLLOWER_POLL_US, ClaimReply, Duplicates, Waiter
from oncekey.engine.progress import Progress
from oncekey.engine.shared_claims_base import RunningAttempts, SharedClaimsBase

# A claim that takes longer than this is not waited for any more: its thread may be gone.
LEADER_PATIENCE_US: Final = 10_000_000


class SharedClaims(SharedClaimsBase):
    """The claims and waits of all attempts of a process, each in its caller's thread."""

    def __init__(
        self,
        duplicates: Duplicates,
        running: RunningAttempts,
        clock: Clock,
        send: Callable[[Command], Sent],
    ) -> None:
        super().__init__(duplicates, running, clock)
        self._send = send

    def apply(self, progress: Progress, claim: Claim) -> CommandResult:
        """Apply a claim. Its reply may come from an attempt that runs here or from a duplicate's
        claim; if there is none of them, it is sent."""
        progress.claim, progress.reply = claim, None
        try:
            result = self._share(progress, claim)
        except BaseException:
            self.duplicates.leave(claim)
            raise
        progress.reply = result.reply
        return result

    def _share(self, progress: Progress, claim: Claim) -> CommandResult:
        now = self._clock.now()
        reply, progress.handed = progress.handed, None
        if reply is None:
            reply = self._running.reply(claim, now)
        if reply is None and not self.duplicates.lead(claim):
            reply = self._wait_for_reply(claim)
        if reply is not None:
            return CommandResult(reply, now, self._clock.now(), shared=True)
        reply, sent_at = self._send(claim)
        self.duplicates.replied(claim, reply)
        return CommandResult(reply, sent_at, self._clock.now())

    def _wait_for_reply(self, claim: Claim) -> ClaimReply | None:
        """The reply that follows from the claim under way; None if this one must be sent too."""
        event = threading.Event()
        waiter = Waiter(claim, event.set)
        try:
            if self.duplicates.lead_or_wait(waiter):
                return None
            if not self._clock.wait(event, LEADER_PATIENCE_US):
                self.duplicates.take_lead(waiter)
        except BaseException:
            self.duplicates.leave(claim, waiter)
            raise
        return waiter.reply

    def sleep(self, progress: Progress, effect: Sleep) -> int:
        """Wait for the end of the attempt that holds the key, or for the time to poll again."""
        event = threading.Event()
        waiter = self._sleeper(progress)
        waiter.wake = event.set
        clock = self._clock
        us = min(effect.most, FOLLOWER_POLL_US)
        try:
            if self.duplicates.start_sleep(waiter):
                # Read only now: an attempt that ends after this wakes those who sleep.
                left = self._running.time_left(waiter.claim.id, clock.now())
                us = min(left, us) if left else clock.jitter(effect.us)
            clock.wait(event, us)
        finally:
            self.duplicates.leave(waiter.claim, waiter)
        progress.handed = waiter.reply
        return clock.now()
