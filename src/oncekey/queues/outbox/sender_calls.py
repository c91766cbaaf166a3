"""Calls of a publisher's sender that a stop does not wait for longer than `stop_timeout`.

A client may wait for a broker that is frozen for as long as it likes, and nothing ends a call of a
thread from outside. So `run` gives the calls to a thread of its own, or to tasks, and waits for
their results. From `stop` on it waits until the time is over, for all that is left together: what
is being sent, and the broker to be left. A call that has not ended by then is left behind.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from oncekey.queues.broker import BrokerUnavailable
from oncekey.queues.broker_faults import CUT_OFF_S, answered

# A signal that comes just before a thread begins to wait is handled when the wait is over.
LONGEST_WAIT_S: Final = 1.0
T = TypeVar("T")
_Job = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]
_left_behind: Final[set[asyncio.Future[Any]]] = set()  # a loop itself keeps no task alive


class Unanswered(BrokerUnavailable):
    """The call had not ended when `stop_timeout` was over."""

    def __init__(self) -> None:
        super().__init__(
            "the broker had not answered when stop_timeout was over; what was not confirmed may "
            "have arrived, and is sent again under the same id"
        )


class _Calls:
    """What both kinds have.

    left_behind   whether a call has not ended in time
    """

    def __init__(self, seconds: float) -> None:
        self.left_behind = False
        self._seconds = seconds
        self._until: float | None = None

    def _begin_to_stop(self) -> None:
        if self._until is None:
            self._until = time.monotonic() + self._seconds

    @property
    def _left(self) -> float | None:
        """How many seconds are left; None while there is no end."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def _unanswered(self) -> Unanswered:
        self.left_behind = True
        return Unanswered()


class ThreadCalls(_Calls):
    """The calls of one `run` of an OutboxPublisher, made one after the other in one thread.

    interruption   what a signal's handler raised while a call was waited for; the call is finished
                   first, and then it is for `run` to raise
    """

    def __init__(self, name: str, seconds: float, on_interruption: Callable[[], object]) -> None:
        super().__init__(seconds)
        self.interruption: BaseException | None = None
        self._on_interruption = on_interruption
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # Its `put` may be called by a signal's handler, which a lock's owner may not.
        self._news: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(
            target=_work, args=(self._jobs,), name=f"oncekey-send-{name}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """From now on the time counts."""
        self._begin_to_stop()
        self._news.put(None)

    def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """The result of a call; raises what it raises, or Unanswered."""
        result: Future[T] = Future()
        result.add_done_callback(lambda _: self._news.put(None))
        try:
            self._jobs.put((result, call, arguments))
            self._wait(result)
        except BaseException as interruption:
            self.interruption = interruption
            self._on_interruption()
            self._wait(result)
        if not result.done():
            raise self._unanswered()
        return result.result()

    def end(self) -> None:
        """Let the thread end when the calls that it was given are over."""
        self._jobs.put(None)

    def _wait(self, result: Future[Any]) -> None:
        while not result.done() and (left := self._left) != 0:
            wait = LONGEST_WAIT_S if left is None else min(left, LONGEST_WAIT_S)
            with suppress(Empty):
                self._news.get(timeout=wait)


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        result, call, arguments = job
        try:
            result.set_result(call(*arguments))
        except BaseException as error:  # for whoever waits for it
            result.set_exception(error)
        del job, result, call, arguments  # an idle thread keeps no messages


class TaskCalls(_Calls):
    """The same for an AsyncOutboxPublisher: each call is a task."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """From now on the time counts."""
        self._begin_to_stop()
        self._stopped.set()

    async def run(self, call: Awaitable[T], *, cancel: bool = True) -> T:
        """The result of a call; raises what it raises, or Unanswered. A call that has not ended by
        then is cancelled, or else goes on while its loop does."""
        task = asyncio.ensure_future(answered(call))
        try:
            await self._wait(task)
        except GeneratorExit:
            raise  # the event loop is shutting down: nothing can be awaited any more
        except BaseException:  # the publisher is cancelled
            task.cancel()
            await asyncio.wait((task,), timeout=CUT_OFF_S)
            _leave(task)
            raise
        if not task.done():
            if cancel:
                task.cancel()
            _leave(task)
            raise self._unanswered()
        return task.result()

    async def _wait(self, task: asyncio.Future[Any]) -> None:
        if not self._stopped.is_set():
            stopped = asyncio.ensure_future(self._stopped.wait())
            try:
                await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopped.cancel()
        if not task.done():
            await asyncio.wait((task,), timeout=self._left)


def _leave(task: asyncio.Future[Any]) -> None:
    """Keep a task whose result nobody waits for."""
    _left_behind.add(task)
    task.add_done_callback(_forget)


def _forget(task: asyncio.Future[Any]) -> None:
    _left_behind.discard(task)
    if not task.cancelled():
        task.exception()  # so that asyncio does not call it unseen
