"""Tasks that outlive their requests, and how others wait for them.

A server may cancel a request, but never what the request has begun (I14): that runs in a task of
its own. To wait for a task or a future costs more than most of the work that is waited for, so

1. a task begins at once, in the step of the loop that starts it, and runs to its first real wait.
   Most apps have answered by then, and nobody has to wait for them;
2. a `Latch` makes a future only if somebody waits for it. Each waiter has its own, so that a waiter
   that is cancelled takes nothing from the others, and no `shield` is needed.

Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import sys
import types
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Latch(Generic[T]):
    """Something that happens once, with a value."""

    is_set = False
    value: T
    _waiters: tuple[asyncio.Future[None], ...] = ()

    def set(self, value: T) -> None:
        """It has happened; a second time changes nothing, but wakes those whom the first one did
        not because a signal's handler interrupted it."""
        if not self.is_set:
            self.is_set = True
            self.value = value
        for waiter in self._waiters:
            if not waiter.done():  # else it was cancelled
                waiter.set_result(None)

    async def wait(self) -> T:
        if not self.is_set:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters = (*self._waiters, waiter)
            await waiter
        return self.value


class RequestTask:
    """One task of a request. It knows its end in the same step, and before asyncio's task does.

    ended   set with the error that ended it, or None. An error is kept here and not raised in the
            task, because nobody may be there to see it
    """

    def __init__(
        self,
        work: Coroutine[Any, Any, None],
        running: set[RequestTask],
        on_end: Callable[[], None] | None,
    ) -> None:
        self.ended: Latch[BaseException | None] = Latch()
        self._running = running
        self._on_end = on_end
        self.task = start_now(self._run(work))
        if not self.ended.is_set:
            running.add(self)

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        error: BaseException | None = None
        try:
            await work
        except Exception as raised:
            error = raised
        except BaseException as raised:  # a cancellation, or what ends the whole process
            error = raised
            raise
        finally:
            self._running.discard(self)
            self.ended.set(error)
            if self._on_end is not None:
                self._on_end()

    async def join(self) -> None:
        """Wait for its end; raises its error. Cancelling this does not cancel the task."""
        error = self.ended.value if self.ended.is_set else await self.ended.wait()
        if error is not None:
            raise error

    async def cancel(self) -> None:
        """Cancel the task, and wait until it has ended."""
        if not self.ended.is_set:
            self.task.cancel()
            await asyncio.wait({self.task})


class RequestTasks:
    """The tasks of running requests, whether or not their clients are still there.

    background  those of apps that go on after their response was stored
    """

    def __init__(self) -> None:
        self._running: set[RequestTask] = set()
        self.background: set[asyncio.Task[Any] | None] = set()

    def start(
        self, work: Coroutine[Any, Any, None], on_end: Callable[[], None] | None = None
    ) -> RequestTask:
        """Begin the work at once. `on_end` is called in its task when it has ended."""
        return RequestTask(work, self._running, on_end)

    async def wait(self, seconds: float) -> None:
        """Wait for those that run on this loop, at most so long."""
        loop = asyncio.get_running_loop()
        tasks = {one.task for one in self._running} | self.background
        running = {task for task in tasks if task is not None and task.get_loop() is loop}
        if running:
            await asyncio.wait(running, timeout=seconds)


def start_now(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task, and run it up to its first real wait before this returns.

    From Python 3.12 on, asyncio does this itself. Before, the first step is made here, in the
    task's own context and with the task as the current one; then the task takes over. To the work
    there is no difference: it has one task and one context from its first line to its last.
    """
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)  # novm: not before 3.12
    context = copy_context()
    begun = _begun(work)
    task = asyncio.Task(begun, loop=loop, context=context)
    caller = asyncio.current_task(loop)  # None in a server that has tasks of another kind
    if caller is not None:
        _leave_task(loop, caller)
    _enter_task(loop, task)
    try:
        context.run(begun.send, None)
    finally:
        _leave_task(loop, task)
        if caller is not None:
            _enter_task(loop, caller)
    return task


async def _begun(work: Coroutine[Any, Any, None]) -> None:
    """The coroutine of such a task; a real one, because anyio looks into it."""
    await _first_step_first(work)


@types.coroutine
def _first_step_first(work: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
    """Make the first step of the work, then yield nothing: `start_now` returns. Resumed by the
    task, go on as if it had made that step itself."""
    steps = work.__await__()
    try:
        waits_for = steps.send(None)
    except StopIteration:
        yield
        return
    except BaseException:
        yield
        raise
    is_resumed = False
    while True:
        try:
            yield waits_for if is_resumed else None
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:  # cancelled, or the future it waits for has failed
            try:
                waits_for = steps.throw(error)
            except StopIteration:
                return
        else:
            if is_resumed:
                break
        is_resumed = True
    yield from steps
