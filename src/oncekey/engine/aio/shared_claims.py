"""Shares the claims and waits of attempts with their duplicates on the same event loop.

Performs two effects of the attempt flow: a claim, and a sleep that watches a key. What is shared
with whom is in duplicates.py. A cancellation of an attempt's caller is recorded in its progress and
ends no wait for a reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from oncekey.core.commands import Claim, Command, Reply
from oncekey.core.effects import CommandResult, Sleep
from oncekey.engine.aio.body import AsyncProgress
from oncekey.engine.batch import Sent, faults_in, not_answered
from oncekey.engine.clock import Clock
from oncekey.engine.duplicates import FOLLOWER_POLL_US, ClaimReply, Duplicates, Waiter
from oncekey.engine.shared_claims_base import RunningAttempts, SharedClaimsBase

# Has the store apply one command; with what to call if the caller is cancelled meanwhile, and the
# deadline of the command's owner.
Send = Callable[..., Awaitable[Sent]]


def send_at_once(
    apply: Callable[[Sequence[Command]], Awaitable[list[Reply]]],
    now: Callable[[], int],
    transaction: object,
) -> Send:
    """Sends single commands to a store that never waits, or in the caller's transaction."""
    faults = faults_in(transaction)

    async def send(
        command: Command, interrupted: Callable[[], None], deadline: int | None = None
    ) -> Sent:
        sent_at = now()
        try:
            return (await apply((command,)))[0], sent_at
        except faults as error:
            return not_answered(error, command), sent_at

    return send


class AsyncSharedClaims(SharedClaimsBase):
    """The claims and waits of all attempts of one event loop, each in its task."""

    def __init__(
        self, duplicates: Duplicates, running: RunningAttempts, clock: Clock, send: Send
    ) -> None:
        super().__init__(duplicates, running, clock)
        self._send = send

    async def apply(self, progress: AsyncProgress, claim: Claim) -> CommandResult:
        """Apply a claim. Its reply may come from an attempt that runs here or from a duplicate's
        claim; if there is none of them, it is sent."""
        progress.claim, progress.reply = claim, None
        try:
            result = await self._share(progress, claim)
        except BaseException:
            self.duplicates.leave(claim)
            raise
        progress.reply = result.reply
        return result

    async def _share(self, progress: AsyncProgress, claim: Claim) -> CommandResult:
        now = self._clock.now()
        reply, progress.handed = progress.handed, None
        if reply is None:
            reply = self._running.reply(claim, now)
        if reply is None and not self.duplicates.lead(claim):
            reply = await self._wait_for_reply(progress, claim)
        if reply is not None:
            return CommandResult(reply, now, self._clock.now(), shared=True)
        reply, sent_at = await self._send(claim, progress.abandon)
        self.duplicates.replied(claim, reply)
        return CommandResult(reply, sent_at, self._clock.now())

    async def _wait_for_reply(self, progress: AsyncProgress, claim: Claim) -> ClaimReply | None:
        """The reply that follows from the claim under way; None if this one must be sent too."""
        alarm = _Alarm()
        waiter = Waiter(claim, alarm.ring)
        try:
            if self.duplicates.lead_or_wait(waiter):
                return None
            while waiter.reply is None and not waiter.leads:
                try:
                    await alarm.wait()
                except asyncio.CancelledError:
                    progress.abandon()
        except BaseException:
            self.duplicates.leave(claim, waiter)
            raise
        return waiter.reply

    async def sleep(self, progress: AsyncProgress, effect: Sleep) -> int:
        """Wait for the end of the attempt that holds the key, or for the time to poll again."""
        alarm = _Alarm()
        waiter = self._sleeper(progress)
        waiter.wake = alarm.ring
        clock = self._clock
        us = min(effect.most, FOLLOWER_POLL_US)
        try:
            if self.duplicates.start_sleep(waiter):
                # Read only now: an attempt that ends after this wakes those who sleep.
                left = self._running.time_left(waiter.claim.id, clock.now())
                us = min(left, us) if left else clock.jitter(effect.us)
            timer = clock.later(us, alarm.ring)
            try:
                await alarm.wait()
            except asyncio.CancelledError:
                progress.abandon()
            finally:
                timer.cancel()
        finally:
            self.duplicates.leave(waiter.claim, waiter)
        progress.handed = waiter.reply
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
