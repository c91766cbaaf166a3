"""Steps of one attempt side by side, in tasks.

Every step runs to its end, whatever becomes of the others: each is recorded by itself, and a re-run
repeats only what is missing. A TaskGroup would cancel the others in the middle of their calls. Owns
the tasks of one such block; the steps are the attempt's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from oncekey.engine.failing import first_of

V = TypeVar("V")


class AsyncParallel:
    """`step` starts one and gives its task."""

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
        """As the attempt's own `step`; the task has what that gives."""
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
        # Until all have ended, however often we are told to leave: what they have begun is theirs
        # to record, and the key must not be given on while one of them is running.
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
            raise first_of(failed)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


def _error(task: asyncio.Task[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()
