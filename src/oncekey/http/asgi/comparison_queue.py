"""Compares costly bodies in one thread of the process, callers in turn.

A few hundred bytes may take tens of milliseconds to be put into their canonical form. If each
request had a thread for that, the threads of one caller would share the interpreter's lock with the
event loop, and every other caller would wait for them. So there is one thread, which takes one
comparison of each caller after the other, and a caller has no more than COMPARISONS_WAITING_MAX in
the queue. What is compared also pauses by itself, see canonical_json.py.

Owns the order and the limit. Must not know what is compared, and no framework.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from oncekey.http.exchange import Exchange, RunArguments
from oncekey.http.message import Request, Response
from oncekey.http.rules import Rule

COMPARISONS_WAITING_MAX: Final = 250
# The thread ends if nothing came for so long: most apps never need it.
IDLE_SECONDS: Final = 10.0

T = TypeVar("T")


class TooManyWaiting(Exception):
    """The caller has as many comparisons in the queue as it may."""


class _Work(NamedTuple):
    context: Context
    call: Callable[[], Any]
    result: Future[Any]


class ComparisonQueue:
    """The comparisons that wait, by caller, and the thread that makes them."""

    def __init__(
        self, most: int = COMPARISONS_WAITING_MAX, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        self._most = most
        self._idle_seconds = idle_seconds
        self.reset()

    def reset(self) -> None:
        """Begin without a thread: at the start, and in a forked child."""
        self._came = threading.Condition()
        # By caller, in the order in which they are served; none of the queues is empty.
        self._waiting: dict[str, deque[_Work]] = {}
        self._has_thread = False

    async def run(self, caller: str, call: Callable[[], T]) -> T:
        """Make a call in the caller's turn. Raises TooManyWaiting at once instead of queueing one
        more than the caller may have there."""
        result: Future[T] = Future()
        self._add(caller, _Work(copy_context(), call, result))
        return await asyncio.wrap_future(result)

    def _add(self, caller: str, work: _Work) -> None:
        with self._came:
            queued = self._waiting.get(caller)
            if queued is not None and len(queued) >= self._most:
                raise TooManyWaiting
            if not self._has_thread:
                threading.Thread(
                    target=self._serve, name="oncekey-comparisons", daemon=True
                ).start()
                self._has_thread = True
            if queued is None:
                self._waiting[caller] = deque((work,))
            else:
                queued.append(work)
            self._came.notify()

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            context, call, result = work
            if not result.set_running_or_notify_cancel():
                continue  # its client has gone
            try:
                value = context.run(call)
            except BaseException as error:
                result.set_exception(error)
            else:
                result.set_result(value)
            del work, context, call, result  # nothing of a request is held while this waits

    def _next(self) -> _Work | None:
        """The first comparison of the caller whose turn it is; None if the thread is to end."""
        with self._came:
            if not self._waiting and not self._came.wait_for(self._is_due, self._idle_seconds):
                self._has_thread = False
                return None
            caller = next(iter(self._waiting))
            queued = self._waiting.pop(caller)
            work = queued.popleft()
            if queued:
                self._waiting[caller] = queued  # behind all others
            return work

    def _is_due(self) -> bool:
        return bool(self._waiting)


# One for the process: it is the interpreter's lock that callers share.
COMPARISONS: Final = ComparisonQueue()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=COMPARISONS.reset)


async def compare_in_turn(
    exchange: Exchange, rule: Rule, key: str, caller: str, request: Request
) -> RunArguments | Response:
    """What `exchange.run_arguments` gives for a request that is slow to compare; or the refusal of
    a caller that has too many of them."""
    call = partial(exchange.run_arguments, rule, key, caller, request)
    try:
        return await COMPARISONS.run(caller, call)
    except TooManyWaiting:
        return exchange.too_many_comparisons()
