"""Drivers: they do what the cases ask for, with threads for sync clients and tasks for async ones.

`drive` and `drive_async` run a generator of actions to its end. What a client raises becomes an
answer. Single requests are sent from the caller's own thread, where a test may have a transaction
open; only those that are sent together have threads of their own.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
    Sized,
)
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from oncekey.core.errors import ConfigurationError
from oncekey.core.flow_driver import drive, drive_async
from oncekey.testing.app_check.check_actions import (
    Action,
    CountEffects,
    Gate,
    Pause,
    Send,
    SendAndLeave,
    SendTogether,
    Together,
)
from oncekey.testing.app_check.client_adapters import Send as Sender
from oncekey.testing.app_check.sample_request import Answer, AnswerKind, Submission, no_answer

HOLD_SECONDS: Final = 0.3  # for duplicates that wait for the one that is held
ANSWER_SECONDS: Final = 30.0
PAUSE_SECONDS: Final = 0.01
_POLL_SECONDS: Final = 0.001
_LEAVE_SECONDS: Final = 0.05
# With the usual 5 ms a short handler would end before another thread began.
_SWITCH_SECONDS: Final = 1e-5

THROWN_AWAY: Final = "its response was thrown away"
LEFT: Final = "its client left while the handler ran"

R = TypeVar("R")
Counts = Callable[[], Any]


def run_case(flow: Generator[Action, Any, R], senders: Mapping[str, Sender], effects: Counts) -> R:
    """Run a generator of actions with sync clients."""
    return drive(flow, _ThreadDriver(senders, effects).perform)


async def run_case_async(
    flow: Generator[Action, Any, R], senders: Mapping[str, Sender], effects: Counts
) -> R:
    """Run a generator of actions with async clients."""
    return await drive_async(flow, _TaskDriver(senders, effects).perform)


def _late() -> Answer:
    return Answer(AnswerKind.FAILED, f"no answer within {ANSWER_SECONDS:.0f} s", object())


# --- threads --------------------------------------------------------------------------------------


class _ThreadDriver:
    def __init__(self, senders: Mapping[str, Sender], effects: Counts) -> None:
        self._senders = senders
        self._effects = effects

    def perform(self, action: Action) -> Any:
        if isinstance(action, Send):
            return self._send(action.submission)
        if isinstance(action, SendTogether):
            return self._send_together(action.submissions, action.gate)
        if isinstance(action, SendAndLeave):
            self._send(action.submission)
            return THROWN_AWAY
        if isinstance(action, CountEffects):
            return counted(self._effects())
        assert isinstance(action, Pause)
        time.sleep(PAUSE_SECONDS)
        return None

    def _send(self, submission: Submission) -> Answer:
        try:
            answer = self._senders[submission.client](submission)
        except Exception as error:  # of the app: some clients raise what it raised
            return no_answer(error)
        if isinstance(answer, Answer):
            return answer
        answer.drop()
        raise ConfigurationError("this client is async; await assert_idempotent_async(...)")

    def _send_together(self, submissions: tuple[Submission, ...], gate: Gate | None) -> Together:
        answers = [_late() for _ in submissions]
        barrier = threading.Barrier(len(submissions))
        changed = threading.Condition()
        answered = 0

        def send(number: int) -> None:
            nonlocal answered
            barrier.wait(ANSWER_SECONDS)
            try:
                answers[number] = self._send(submissions[number])
            finally:
                _close_database_connections()
                with changed:
                    answered += 1
                    changed.notify_all()

        threads = [
            threading.Thread(target=send, args=(number,), daemon=True)
            for number in range(len(submissions))
        ]
        if gate is not None:
            gate.arm()
        was_held = False
        with _quick_switches():
            for thread in threads:
                thread.start()
            if gate is not None:
                until = time.monotonic() + ANSWER_SECONDS
                with changed:
                    while not gate.is_held() and answered < len(threads):
                        changed.wait(_POLL_SECONDS)
                        if time.monotonic() > until:
                            break
                    was_held = gate.is_held()
                    changed.wait_for(lambda: answered >= len(threads) - 1, HOLD_SECONDS)
                gate.release()
            until = time.monotonic() + ANSWER_SECONDS
            for thread in threads:
                thread.join(max(0.0, until - time.monotonic()))
        return Together(list(answers), was_held)


@contextmanager
def _quick_switches() -> Iterator[None]:
    """Let threads take turns often, so that short handlers overlap."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _close_database_connections() -> None:
    """Django opens connections for each thread, and a thread that ends does not close them."""
    database = sys.modules.get("django.db")
    # Imported by something, Django may still not be set up, and then it has no connections.
    if database is not None and sys.modules["django.conf"].settings.configured:
        database.connections.close_all()


def counted(effects: Any) -> int:
    """A number of effects, from a number or from a collection of them."""
    if isinstance(effects, int):
        return effects
    if isinstance(effects, Sized):
        return len(effects)
    if isinstance(effects, Coroutine):
        effects.close()
        raise ConfigurationError("effects= is async; await assert_idempotent_async(...)")
    raise ConfigurationError(
        f"effects= returned a {type(effects).__name__}; it must return how often the operation "
        "ran, as a whole number or a collection"
    )


# --- tasks ----------------------------------------------------------------------------------------


class _TaskDriver:
    def __init__(self, senders: Mapping[str, Sender], effects: Counts) -> None:
        self._senders = senders
        self._effects = effects

    async def perform(self, action: Action) -> Any:
        if isinstance(action, Send):
            return await self._send(action.submission)
        if isinstance(action, SendTogether):
            return await self._send_together(action.submissions, action.gate)
        if isinstance(action, SendAndLeave):
            return await self._send_and_leave(action.submission, action.gate)
        if isinstance(action, CountEffects):
            effects = self._effects()
            return counted(await effects if isinstance(effects, Awaitable) else effects)
        assert isinstance(action, Pause)
        await asyncio.sleep(PAUSE_SECONDS)
        return None

    async def _send(self, submission: Submission) -> Answer:
        try:
            answer = self._senders[submission.client](submission)
            return answer if isinstance(answer, Answer) else await answer.answer()
        except Exception as error:  # of the app: some clients raise what it raised
            return no_answer(error)

    async def _send_together(
        self, submissions: tuple[Submission, ...], gate: Gate | None
    ) -> Together:
        if gate is not None:
            gate.arm()
        tasks = [asyncio.ensure_future(self._send(submission)) for submission in submissions]
        was_held = False
        if gate is not None:
            was_held = await _most_done(tasks, gate)
            gate.release()
        await asyncio.wait(tasks, timeout=ANSWER_SECONDS)
        answers = [task.result() if task.done() else _late() for task in tasks]
        for task in tasks:
            task.cancel()
        return Together(answers, was_held)

    async def _send_and_leave(self, submission: Submission, gate: Gate | None) -> str:
        """A client that leaves cancels its request."""
        if gate is None:
            await self._send(submission)
            return THROWN_AWAY
        gate.arm()
        task = asyncio.ensure_future(self._send(submission))
        until = time.monotonic() + ANSWER_SECONDS
        while not gate.is_held() and not task.done() and time.monotonic() < until:
            await asyncio.wait([task], timeout=_POLL_SECONDS)
        left = not task.done()
        task.cancel()
        # A handler in a thread is waited for also by a request that is cancelled.
        await asyncio.wait([task], timeout=_LEAVE_SECONDS)
        gate.release()
        await asyncio.wait([task], timeout=ANSWER_SECONDS)
        return LEFT if left else THROWN_AWAY


async def _most_done(tasks: Sequence[asyncio.Future[Answer]], gate: Gate) -> bool:
    """Wait until one is held and the others are answered, or wait for it; True if one is held."""
    until = time.monotonic() + ANSWER_SECONDS
    pending = set(tasks)
    while pending and not gate.is_held() and time.monotonic() < until:
        _, pending = await asyncio.wait(pending, timeout=_POLL_SECONDS)
    was_held = gate.is_held()
    until = time.monotonic() + HOLD_SECONDS
    while len(pending) > 1 and (left := until - time.monotonic()) > 0:
        _, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
    return was_held
