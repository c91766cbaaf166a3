"""Renews the leases of running attempts, by a thread of the process or by tasks of an event loop.

An attempt that ends before a third of its lease costs no more than an entry in a dict. The thread
renews those that run longer together, in one batch. On an event loop one timer serves all attempts,
and each that runs longer gets a task; the coalescer sends their renewals together. When to renew is
in core/heartbeat_flow.py.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import replace
from typing import cast

from oncekey.core.commands import Command
from oncekey.core.effects import CommandResult, DeadlineExtended, Sleep, command_of
from oncekey.core.errors import StoreUnavailable
from oncekey.core.heartbeat_flow import RENEWALS_PER_LEASE, heartbeat
from oncekey.engine.attempts.attempt_base import AttemptBase
from oncekey.engine.clock import Clock, Timer, sleep

ApplyMany = Callable[[Sequence[Command]], list[CommandResult]]

_FOREVER_US = 3_600_000_000
_AFTER_FAILURE_US = 100_000

_log = logging.getLogger("oncekey")


class _Beat:
    """The heartbeat of one attempt: its flow, and when it is due next."""

    __slots__ = ("attempt", "due", "flow")

    def __init__(self, attempt: AttemptBase, due: int) -> None:
        self.attempt = attempt
        self.due = due
        self.flow = heartbeat(replace(attempt._grant, deadline=attempt._deadline))
        next(self.flow)  # up to its first Sleep

    def renewal(self, now: int) -> Command:
        """The command to send now; the flow is at a Sleep and goes on to a command."""
        command = command_of(self.flow.send(now))
        assert command is not None
        return command

    def renewed(self, result: CommandResult) -> bool:
        """Give the flow the result of a renewal; False if the attempt was lost."""
        try:
            effect = self.flow.send(result)
            while isinstance(effect, DeadlineExtended):
                self.attempt._extend(effect.deadline)
                effect = self.flow.send(None)
        except StopIteration:
            self.attempt._mark_lost()
            return False
        assert isinstance(effect, Sleep)
        self.due = result.at + effect.us
        return True


class Heartbeat:
    """Renews the attempts it watches, from any thread."""

    def __init__(self, apply_many: ApplyMany, clock: Clock) -> None:
        self._apply_many = apply_many
        self._clock = clock
        self._attempts: dict[int, AttemptBase] = {}
        self._beats: dict[int, _Beat] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._planned = 0
        self._watched = 0
        self._watched_before = -1  # how many had been watched when the last plan was made
        self._shortest = _FOREVER_US
        self._thread: threading.Thread | None = None
        self._stopped = False

    def watch(self, attempt: AttemptBase) -> None:
        """Renew this attempt until `forget`."""
        self._attempts[id(attempt)] = attempt
        grant = attempt._grant
        lease = grant.claim.lease
        if lease < self._shortest:
            self._shortest = lease
        self._watched += 1
        if self._thread is None:
            self._start()
        if grant.deadline - lease + lease // RENEWALS_PER_LEASE < self._planned:
            self._wake.set()

    def forget(self, attempt: AttemptBase) -> None:
        self._attempts.pop(id(attempt), None)

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def abandon(self) -> None:
        """The engine was dropped: stop, without waiting for it."""
        self._stopped = True
        self._wake.set()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._stopped:
                self._planned = 0
                self._thread = threading.Thread(
                    target=self._run, name="oncekey-heartbeat", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._renew_or_sleep()
            except Exception:  # every attempt of this process depends on this thread
                _log.exception("the heartbeat failed; it is tried again")
                self._beats.clear()  # their flows may have ended; new ones are made
                self._clock.wait(self._wake, _AFTER_FAILURE_US)

    def _renew_or_sleep(self) -> None:
        """Renew what is due, or sleep until something is."""
        now = self._clock.now()
        self._update_beats()
        due = [beat for beat in self._beats.values() if beat.due <= now]
        if due:
            self._renew(due, now)
            return
        self._wake.clear()
        # While the plan is being made it is "never", so an attempt that is added now either is
        # seen below or sets the event.
        self._planned = never = now + _FOREVER_US
        self._update_beats()
        # While attempts come and go, waking at a third of the shortest lease is enough for any of
        # them, and none of them has to wake this thread.
        idle = self._watched == self._watched_before
        self._watched_before = self._watched
        latest = never if idle else now + self._shortest // RENEWALS_PER_LEASE
        self._planned = min([latest, *(beat.due for beat in self._beats.values())])
        if self._planned > now and not self._stopped:
            self._clock.wait(self._wake, self._planned - now)

    def _update_beats(self) -> None:
        """Make a beat for each attempt that has none, remove those of attempts that ended."""
        attempts = dict(self._attempts)
        for key, attempt in list(attempts.items()):
            if not attempt._is_running():  # interrupted so often that nobody could forget it
                del attempts[key]
                self.forget(attempt)
        for key in self._beats.keys() - attempts.keys():
            del self._beats[key]
        for key, attempt in attempts.items():
            beat = self._beats.get(key)
            if beat is None or beat.attempt is not attempt:  # an id may be used again
                self._beats[key] = _Beat(attempt, _first_due(attempt))

    def _renew(self, due: Sequence[_Beat], now: int) -> None:
        commands = [beat.renewal(now) for beat in due]
        for beat, result in zip(due, self._apply_many(commands), strict=True):
            if not beat.renewed(result):
                self.forget(beat.attempt)


def _first_due(attempt: AttemptBase) -> int:
    lease = attempt._grant.claim.lease
    return attempt._grant.deadline - lease + lease // RENEWALS_PER_LEASE


# An attempt that is due within this part of its lease is renewed with the others, so that all are
# looked through a few times per lease, however many there are.
_DUE_SOON_PART = 4 * RENEWALS_PER_LEASE


class AsyncHeartbeat:
    """One per event loop: all its calls must come from that loop."""

    def __init__(self, clock: Clock, apply: Callable[[Command], Awaitable[CommandResult]]) -> None:
        self._clock = clock
        self._apply = apply
        self._waiting: dict[AttemptBase, int] = {}  # when each is due first
        self._beats: dict[AttemptBase, asyncio.Task[None]] = {}
        self._timer: Timer | None = None
        self._planned = 0

    def watch(self, attempt: AttemptBase) -> None:
        """Renew this attempt until `forget`."""
        lease = attempt._grant.claim.lease
        due = attempt._grant.deadline - lease + lease // RENEWALS_PER_LEASE
        self._waiting[attempt] = due
        if self._timer is None or due < self._planned:
            self._plan(due)

    def forget(self, attempt: AttemptBase) -> None:
        # The timer stays: the next attempt probably needs it, and a new one has a cost.
        if self._waiting.pop(attempt, None) is None:
            beat = self._beats.pop(attempt, None)
            if beat is not None:
                beat.cancel()

    def stop(self) -> None:
        """The engine is being closed: no attempt is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self, due: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._planned = due
        left = max(0, due - self._clock.now())
        # In an empty context: it serves all attempts, not only that of the caller.
        self._timer = Context().run(self._clock.later, left, self._start_beats)

    def _start_beats(self) -> None:
        """Start the heartbeats of all attempts that are due now or soon."""
        self._timer = None
        now = self._clock.now()
        for attempt, due in list(self._waiting.items()):
            if due <= now + attempt._grant.lease // _DUE_SOON_PART:
                del self._waiting[attempt]
                beat = asyncio.get_running_loop().create_task(self._beat(attempt))
                self._beats[attempt] = beat
        if self._waiting:
            self._plan(min(self._waiting.values()))

    async def _beat(self, attempt: AttemptBase) -> None:
        flow = heartbeat(replace(attempt._grant, deadline=attempt._deadline))
        next(flow)  # up to its first Sleep, which was the timer's
        result: object = self._clock.now()
        while True:
            try:
                effect = flow.send(result)
            except StopIteration:
                attempt._mark_lost()
                return
            if not attempt._is_running():  # interrupted so often that nobody could forget it
                self._beats.pop(attempt, None)
                return
            result = None
            if type(effect) is DeadlineExtended:
                attempt._extend(effect.deadline)
            elif type(effect) is Sleep:
                await sleep(self._clock, effect.us)
            else:
                result = await self._renewed(cast(Command, effect))

    async def _renewed(self, command: Command) -> CommandResult:
        """The result of a renewal. Whatever the store raised, it is tried again."""
        sent_at = self._clock.now()
        try:
            return await self._apply(command)
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the attempt has ended; else a store's driver has cancelled its own call
            _log.exception("a heartbeat could not be sent; it is tried again")
            failed = StoreUnavailable(f"{type(error).__name__}: {error}")
            return CommandResult(failed, sent_at, self._clock.now())
