"""Shares the claims and waits of one attempt with its duplicates on the same event loop.

Performs two effects of the attempt flow: a claim, and a sleep that watches a key. What is shared
with whom is in duplicates.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from oncekey.core.commands import Claim, Command, Finish
from oncekey.core.effects import ApplyCommand, CommandResult, Sleep
from oncekey.engine.clock import Clock
from oncekey.engine.duplicates import FOLLOWER_POLL_US, ClaimReply, Duplicates, Waiter
from oncekey.engine.shared_claims_base import RunningAttempts, SharedClaimsBase

Send = Callable[[Command, Callable[[], None], int | None], Awaitable[CommandResult]]


class AsyncSharedClaims(SharedClaimsBase):
    """One attempt's claims, in its task. A cancellation of its caller is reported to `interrupted`
    and ends no wait for a reply."""

    __slots__ = ("_interrupted", "_send")

    def __init__(
        self,
        duplicates: Duplicates,
        running: RunningAttempts,
        clock: Clock,
        send: Send,
        interrupted: Callable[[], None],
    ) -> None:
        super().__init__(duplicates, running, clock)
        self._send = send
        self._interrupted = interrupted

    async def apply(self, effect: ApplyCommand, deadline: int | None) -> CommandResult:
        """Apply a command. The reply to a claim may come from an attempt that runs here or from a
        duplicate's claim; every other reply comes from the store."""
        command = effect.command
        if type(command) is not Claim:
            result = await self._send(command, self._interrupted, deadline)
            if type(command) is Finish:
                self._finished(command, result)
            return result
        self._caller = self._caller or command.owner
        self._claim, self._unanswered = command, True
        if effect.repeated:
            result = await self._send(command, self._interrupted, None)
        else:
            result = await self._share(command)
        self._claimed(command, result)
        return result

    async def _share(self, claim: Claim) -> CommandResult:
        now = self._clock.now()
        reply, self._handed = self._handed, None
        if reply is None:
            reply = self._running.reply(claim, now)
        if reply is not None:
            return CommandResult(reply, now, now, shared=True)
        waiter = Waiter(claim)
        try:
            if not self._duplicates.lead(waiter):
                reply = await self._wait_for_reply(waiter)
                if reply is not None:
                    return CommandResult(reply, now, self._clock.now(), shared=True)
            result = await self._send(claim, self._interrupted, None)
            self._duplicates.replied(waiter, result.reply)
        except BaseException:
            self._duplicates.leave(waiter)
            raise
        return result

    async def _wait_for_reply(self, waiter: Waiter) -> ClaimReply | None:
        """The reply that follows from the claim under way; None if this one must be sent too."""
        alarm = _Alarm()
        waiter.wake = alarm.ring
        if self._duplicates.lead_or_wait(waiter):
            return None
        while waiter.reply is None and not waiter.leads:
            try:
                await alarm.wait()
            except asyncio.CancelledError:
                self._interrupted()
        return waiter.reply

    async def sleep(self, effect: Sleep) -> int:
        """Wait for the end of the attempt that holds the key, or for the time to poll again."""
        claim = self._claim
        assert claim is not None
        alarm = _Alarm()
        waiter = Waiter(claim, alarm.ring, self._caller, unknown=self._unknown)
        clock = self._clock
        us = min(effect.most, FOLLOWER_POLL_US)
        try:
            if self._duplicates.start_sleep(waiter):
                # Read only now: an attempt that ends after this wakes those who sleep.
                left = self._running.time_left(claim.id, clock.now())
                us = min(left, us) if left else clock.jitter(effect.us)
            timer = clock.later(us, alarm.ring)
            try:
                await alarm.wait()
            except asyncio.CancelledError:
                self._interrupted()
            finally:
                timer.cancel()
        finally:
            self._duplicates.leave(waiter)
        self._handed = waiter.reply
        return clock.now()


class _Alarm:
    """Wakes one task of this loop, from any thread."""

    __slots__ = ("_loop", "_ringing")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ringing: asyncio.Future[None] = self._loop.create_future()

    async def wait(self) -> None:
        if self._ringing.cancelled():  # with its task, which waits again
            self._ringing = self._loop.create_future()
        await self._ringing

    def ring(self) -> None:
        if asyncio._get_running_loop() is self._loop:
            self._ring()
        else:
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        if not self._ringing.done():
            self._ringing.set_result(None)
