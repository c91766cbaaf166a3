"""Shares the claims and waits of one attempt with its duplicates on the same event loop.

Owns the asyncio answers to a claim and to a sleep that watches a key. What is shared and with
whom is engine/duplicates.py; the rules of an attempt are core/attempt_flow.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from oncekey.core.commands import Claim, Command
from oncekey.core.effects import ApplyCommand, CommandResult, Sleep
from oncekey.engine.clock import Clock
from oncekey.engine.duplicates import FOLLOWER_POLL_US, AttemptEnd, Duplicates, Told, Waiter
from oncekey.engine.holders import Holders

Send = Callable[[Command, Callable[[], None], int | None], Awaitable[CommandResult]]


class AsyncSharedClaims:
    """For one attempt, from its first claim to its end. A cancellation of its caller is told to
    `interrupted` and ends no wait for a reply."""

    __slots__ = ("_clock", "_duplicates", "_end", "_handed", "_holders", "_interrupted", "_send")

    def __init__(
        self,
        duplicates: Duplicates,
        holders: Holders,
        clock: Clock,
        send: Send,
        interrupted: Callable[[], None],
    ) -> None:
        self._duplicates = duplicates
        self._holders = holders
        self._clock = clock
        self._send = send
        self._interrupted = interrupted
        self._handed: Told | None = None
        self._end = AttemptEnd()

    async def apply(self, effect: ApplyCommand, deadline: int | None) -> CommandResult:
        """The answer to a claim: an attempt's that runs here, a duplicate's, or the store's. To any
        other command: the store's; one of them ends the attempt."""
        claim = effect.command
        if type(claim) is not Claim:
            result = await self._send(claim, self._interrupted, deadline)
            self._end.answered(claim, result)
            return result
        self._end.asked(claim)
        if effect.repeated:
            result = await self._send(claim, self._interrupted, None)
        else:
            result = await self._shared(claim)
        self._end.claimed(claim, result)
        return result

    async def _shared(self, claim: Claim) -> CommandResult:
        now = self._clock.now()
        told, self._handed = self._handed, None
        if told is None:
            told = self._holders.reply(claim, now)
        if told is not None:
            return CommandResult(told, now, now, shared=True)
        waiter = Waiter(claim)
        try:
            if not self._duplicates.lead(waiter):
                told = await self._wait_for_reply(waiter)
                if told is not None:
                    return CommandResult(told, now, self._clock.now(), shared=True)
            result = await self._send(claim, self._interrupted, None)
            self._duplicates.answered(waiter, result.reply)
        except BaseException:
            self._duplicates.leave(waiter)
            raise
        return result

    async def _wait_for_reply(self, waiter: Waiter) -> Told | None:
        """What the claim that is on its way told this one; None where it must send its own."""
        alarm = _Alarm()
        waiter.wake = alarm.ring
        if self._duplicates.join(waiter):
            return None
        while waiter.reply is None and not waiter.leads:
            try:
                await alarm.wait()
            except asyncio.CancelledError:
                self._interrupted()
        return waiter.reply

    async def sleep(self, effect: Sleep) -> int:
        """Wait for the end of the attempt that holds the key, or for the time to poll again."""
        claim = self._end.claim
        assert claim is not None
        alarm = _Alarm()
        waiter = Waiter(claim, alarm.ring, self._end.caller, unsure=self._end.unsure)
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

    def end(self, everywhere: Iterable[Duplicates]) -> None:
        """The attempt is over, however it ended; it may be waited for on other loops too."""
        self._end.tell(everywhere)


class _Alarm:
    """Wakes one task of this loop, from any thread."""

    __slots__ = ("_loop", "_ringing")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ringing: asyncio.Future[None] = self._loop.create_future()

    async def wait(self) -> None:
        if self._ringing.cancelled():  # the task was, and waits again
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
