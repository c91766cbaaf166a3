"""Shares the claims and waits of one attempt with its duplicates in other threads.

Owns the blocking answers to a claim and to a sleep that watches a key. What is shared and with
whom is engine/duplicates.py; the rules of an attempt are core/attempt_flow.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from oncekey.core.commands import Claim, Command
from oncekey.core.effects import ApplyCommand, CommandResult, Sleep
from oncekey.engine.clock import Clock
from oncekey.engine.duplicates import FOLLOWER_POLL_US, AttemptEnd, Duplicates, Told, Waiter
from oncekey.engine.holders import Holders

# A claim that takes longer than this is not waited for any more: its thread may be gone.
LEADER_PATIENCE_US: Final = 10_000_000


class SharedClaims:
    """For one attempt, from its first claim to its end."""

    __slots__ = ("_clock", "_duplicates", "_end", "_handed", "_holders", "_send")

    def __init__(
        self,
        duplicates: Duplicates,
        holders: Holders,
        clock: Clock,
        send: Callable[[Command, int | None], CommandResult],
    ) -> None:
        self._duplicates = duplicates
        self._holders = holders
        self._clock = clock
        self._send = send
        self._handed: Told | None = None
        self._end = AttemptEnd()

    def apply(self, effect: ApplyCommand, deadline: int | None) -> CommandResult:
        """The answer to a claim: an attempt's that runs here, a duplicate's, or the store's. To any
        other command: the store's; one of them ends the attempt."""
        claim = effect.command
        if type(claim) is not Claim:
            result = self._send(claim, deadline)
            self._end.answered(claim, result)
            return result
        self._end.asked(claim)
        result = self._send(claim, None) if effect.repeated else self._shared(claim)
        self._end.claimed(claim, result)
        return result

    def _shared(self, claim: Claim) -> CommandResult:
        now = self._clock.now()
        told, self._handed = self._handed, None
        if told is None:
            told = self._holders.reply(claim, now)
        if told is not None:
            return CommandResult(told, now, now, shared=True)
        waiter = Waiter(claim)
        try:
            if not self._duplicates.lead(waiter):
                told = self._wait_for_reply(waiter)
                if told is not None:
                    return CommandResult(told, now, self._clock.now(), shared=True)
            result = self._send(claim, None)
            self._duplicates.answered(waiter, result.reply)
        except BaseException:
            self._duplicates.leave(waiter)
            raise
        return result

    def _wait_for_reply(self, waiter: Waiter) -> Told | None:
        """What the claim that is on its way told this one; None where it must send its own."""
        event = threading.Event()
        waiter.wake = event.set
        if self._duplicates.join(waiter):
            return None
        if not self._clock.wait(event, LEADER_PATIENCE_US):
            self._duplicates.take_lead(waiter)
        return waiter.reply

    def sleep(self, effect: Sleep) -> int:
        """Wait for the end of the attempt that holds the key, or for the time to poll again."""
        claim = self._end.claim
        assert claim is not None
        event = threading.Event()
        waiter = Waiter(claim, event.set, self._end.caller, unsure=self._end.unsure)
        clock = self._clock
        try:
            if self._duplicates.fall_asleep(waiter):
                # Only now, for an attempt that ends after this wakes those who sleep.
                left = self._holders.left(claim.id, clock.now())
                us = (
                    clock.jitter(effect.us)
                    if not left
                    else min(left, effect.most, FOLLOWER_POLL_US)
                )
            else:
                us = min(effect.most, FOLLOWER_POLL_US)
            clock.wait(event, us)
        finally:
            self._duplicates.leave(waiter)
        self._handed = waiter.reply
        return clock.now()

    def end(self) -> None:
        """The attempt is over, however it ended."""
        self._end.tell((self._duplicates,))
