"""Awaits work in its caller's task, and hands it over to another task if the caller is cancelled.

The claim of a key must not be torn by a cancellation: once it was sent, its reply has to be waited
for, and what it has claimed must be given back. A task for every claim would do, but a replay and a
rejection need nothing else, and most callers are never cancelled. So the claim is awaited here, and
only the claim of a caller that leaves becomes a task.
"""

from __future__ import annotations

from asyncio import CancelledError, _get_running_loop
from collections.abc import Callable, Coroutine, Generator
from inspect import CORO_SUSPENDED, getcoroutinestate
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Work = Coroutine[Any, Any, T]


@coroutine
def in_callers_task(work: Work[T], hand_over: Callable[[], None]) -> Generator[Any, Any, T]:
    """Await the work. If the caller is cancelled or interrupted while the work waits, it leaves at
    once: `hand_over` must have the rest awaited elsewhere, by `resumed`."""
    try:
        waits_for = work.send(None)
        while True:
            yield waits_for
            waits_for = work.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    except BaseException:  # also GeneratorExit: a signal's handler raised above this
        if getcoroutinestate(work) == CORO_SUSPENDED:  # else the exception is its own
            if _get_running_loop() is None:
                work.close()  # nothing can be awaited any more
            else:
                hand_over()
        raise


@coroutine
def resumed(work: Work[T]) -> Generator[Any, Any, T]:
    """Await the rest of work that was handed over. It is given a cancellation first, since what it
    waited for was cancelled with its caller."""
    error: BaseException | None = CancelledError()
    try:
        while True:
            waits_for = work.send(None) if error is None else work.throw(error)
            error = None
            try:
                yield waits_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as another:
                error = another
    except StopIteration as stop:
        value: T = stop.value
        return value
