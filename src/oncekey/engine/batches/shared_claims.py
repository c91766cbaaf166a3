"""Shares the claims and waits of an attempt with the duplicates of its key in this process.

`RunningAttempts` are the attempts that run in this process. They reply to the claims of their
duplicates, so that no command is sent. `SharedClaimsBase` is what an attempt's end means for the
duplicates that wait for it; `SharedClaims` and `AsyncSharedClaims` perform two effects of the
attempt flow, a claim and a sleep that watches a key, in threads or on an event loop. Who waits for
whom is in duplicates.py. A cancellation of an async attempt's caller is recorded in its progress,
and ends no wait for a reply.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from oncekey.core.commands import Busy, Claim, Claimed, Command, Mismatched, Replay, Reply, Unknown
from oncekey.core.effects import CommandResult, Sleep
from oncekey.core.fingerprint import version_of
from oncekey.core.record import State
from oncekey.engine.attempts.async_body import AsyncProgress
from oncekey.engine.attempts.attempt_base import AttemptBase
from oncekey.engine.attempts.runner_base import Progress
from oncekey.engine.batches.batch import Sent, faults_in, not_answered
from oncekey.engine.batches.duplicates import FOLLOWER_POLL_US, ClaimReply, Duplicates, Waiter
from oncekey.engine.clock import Clock


class RunningAttempts:
    """The attempts whose bodies run in this process, by the id of their key.

    By the store's promise an attempt holds its key until its own deadline, so until then the store
    could only reply that the key is busy. After the deadline, and once the attempt's end is being
    stored, only the store can tell. Safe from any thread: each step is one operation on a dict.
    """

    def __init__(self) -> None:
        self.by_id: dict[bytes, AttemptBase] = {}

    def add(self, attempt: AttemptBase) -> None:
        self.by_id[attempt._grant.claim.id] = attempt

    def remove(self, attempt: AttemptBase) -> None:
        """Must be called before the attempt's end is sent to the store."""
        id, by_id = attempt._grant.claim.id, self.by_id
        if by_id.get(id) is attempt:  # not one that has taken over
            by_id.pop(id, None)

    def time_left(self, id: bytes, now: int) -> int:
        """For how long an attempt of this process surely still holds the key; 0 if none does."""
        running = self.by_id.get(id)
        if running is None or running._lost:
            return 0
        return max(0, running._deadline - now)

    def reply(self, claim: Claim, now: int) -> Busy | Mismatched | None:
        """The reply to a claim of a key that is held here; None if the store must reply."""
        running = self.by_id.get(claim.id)
        if running is None:
            return None
        left = running._deadline - now
        if running._lost or left <= 0:
            return None
        fingerprint = running._grant.claim.fingerprint
        if fingerprint != claim.fingerprint:
            return Mismatched(version_of(fingerprint))
        return Busy(left)


class SharedClaimsBase:
    """The claims and waits of all attempts of a process, or of one event loop."""

    def __init__(self, duplicates: Duplicates, running: RunningAttempts, clock: Clock) -> None:
        self.duplicates = duplicates
        self._running = running
        self._clock = clock

    def leads(self, claim: Claim) -> bool:
        """True if nothing here can reply to this claim, neither an attempt that runs here nor the
        claim of a duplicate: then it is sent, and `duplicates.replied` or `leave` must follow."""
        return claim.id not in self._running.by_id and self.duplicates.lead(claim)

    def _sleeper(self, progress: Progress) -> Waiter:
        """An attempt that waits for the end of the one that holds its key."""
        caller = progress.job.claim.owner
        return Waiter(progress.claim, caller=caller, unknown=type(progress.reply) is Unknown)

    def end(self, progress: Progress) -> None:
        """An attempt is over, here or on another event loop, however it ended: give those who wait
        for it the outcome, or let one of them ask the store."""
        claim, duplicates = progress.claim, self.duplicates
        if duplicates.has_waiters(claim.id):
            # Without a reply its claim may have been made, or may yet be.
            if progress.reply is None or type(progress.reply) is Claimed:
                duplicates.key_ended(claim, outcome_of(progress, self._clock.now()))
            duplicates.poller_left(claim.id, progress.job.claim.owner)


def outcome_of(progress: Progress, now: int) -> Replay | None:
    """What the attempt has stored, as a replay for its duplicates."""
    if progress.stored is None:
        return None
    finish, sent_at = progress.stored
    if finish.state is State.UNKNOWN or type(progress.reply) is not Claimed:
        return None
    # Counted from before it was stored, so that it never outlives the record.
    left = max(0, progress.claim.keep - (now - sent_at))
    return Replay(finish.state, finish.body, progress.reply.attempt, finish.fence, left)


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
