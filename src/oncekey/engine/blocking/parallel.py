"""Parallel steps of one attempt, in threads.

Every step runs to its end, also if others fail: each is stored by itself, and a retry runs only
those that are missing. Owns the threads of one `with attempt.parallel()` block.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from oncekey.core.errors import ConfigurationError
from oncekey.engine.attempt_steps import error_to_raise

V = TypeVar("V")

PARALLEL_MAX: Final = 16


class Parallel:
    """What `with attempt.parallel() as steps:` gives: `steps.step(...)` starts a step and returns
    its future. At most 16 run at once, the others wait."""

    def __init__(
        self, step: Callable[..., Any], refuse: Callable[[str, bool], None], *, in_transaction: bool
    ) -> None:
        if in_transaction:
            raise ConfigurationError(
                "parallel(): in a transaction steps run one after the other, since they are "
                "written on its one connection"
            )
        self._step = step
        self._refuse = refuse
        self._names: dict[str, Future[Any]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._started: list[Future[Any]] = []

    def step(self, name: str, fn: Callable[..., V], **options: Any) -> Future[V]:
        """Start `attempt.step` with these arguments; the future has its value or its error."""
        if self._pool is None:
            raise ConfigurationError("parallel(): use it as `with attempt.parallel() as steps:`")
        before = self._names.get(name)
        self._refuse(name, before is not None and not before.done())
        # In a copy of this context, since a thread begins with an empty one.
        work = partial(self._step, name, fn, **options)
        future: Future[V] = self._pool.submit(copy_context().run, work)
        self._started.append(future)
        self._names[name] = future
        return future

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(PARALLEL_MAX, thread_name_prefix="oncekey-step")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._pool is not None
        pool, self._pool = self._pool, None
        interrupted: BaseException | None = None
        while True:
            try:
                pool.shutdown(wait=True)
                break
            except BaseException as interruption:
                # Ctrl-C is raised once all threads have ended, since they cannot be stopped.
                interrupted = interrupted or interruption
        failed = [e for e in (future.exception() for future in self._started) if e is not None]
        if interrupted is not None:
            raise interrupted
        if failed and error is None:
            raise error_to_raise(failed)
