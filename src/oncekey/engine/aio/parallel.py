"""Parallel steps of one attempt, in tasks.

Every step runs to its end, also if others fail: each is stored by itself, and a retry runs only
those that are missing. A TaskGroup would cancel the others in the middle of their calls. Owns the
tasks of one `async with attempt.parallel()` block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from oncekey.engine.attempt_steps import error_to_raise

V = TypeVar("V")


class AsyncParallel:
    """What `async with attempt.parallel() as steps:` gives: `steps.step(...)` starts a step and
    returns its task."""

    def __init__(
        self, step: Callable[..., Coroutine[Any, Any, Any]], refuse: Callable[[str, bool], None]
    ) -> None:
        self._step = step
        self._refuse = refuse
        self._names: dict[str, asyncio.Task[Any]] = {}
        self._tasks: list[asyncio.Task[Any]] = []

    def step(
        self, name: str, fn: Callable[..., Awaitable[V] | V], **options: Any
    ) -> asyncio.Task[V]:
        """Start `attempt.step` with these arguments; the task has its value or its error."""
        before = self._names.get(name)
        self._refuse(name, before is not None and not before.done())
        work = self._step(name, fn, **options)
        task: asyncio.Task[V] = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        self._names[name] = task
        return task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        interrupted = isinstance(error, asyncio.CancelledError)
        if interrupted:
            self._cancel()
        # Wait until all have ended, however often we are cancelled: each must store what it has
        # begun, and the key must not be released while one of them is running.
        while running := [task for task in self._tasks if not task.done()]:
            try:
                await asyncio.wait(running)
            except asyncio.CancelledError:
                interrupted = True
                self._cancel()
        failed = [e for e in map(_error, self._tasks) if e is not None]
        if error is None and interrupted:
            raise asyncio.CancelledError
        if error is None and failed:
            raise error_to_raise(failed)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


def _error(task: asyncio.Task[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()
