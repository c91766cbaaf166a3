"""Sync facades of async stores and engines, so that one test covers sync and async code.

A test is written once, as sync code. For asyncio its store and its engine live on an event loop in
a separate thread; each call becomes a coroutine there, and a sync body runs in a worker thread,
where it may wait for barriers without stopping the loop. Must not know any test or store.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from oncekey.core.commands import Command, Reply, Seen
from oncekey.core.errors import ConfigurationError
from oncekey.core.guarantees import Guarantee
from oncekey.core.record import Record
from oncekey.core.search import Cursor, Measures, Page, Query
from oncekey.core.store import (
    SWEEP_LIMIT_DEFAULT,
    AsyncStore,
    CallerTransaction,
    Store,
    StoreLimits,
    Unfinished,
)
from oncekey.engine.async_once import AsyncOnce
from oncekey.engine.attempts.async_attempt import AsyncAttempt, AsyncParallel
from oncekey.engine.background.completion_flow import COMPLETE_LIMIT_DEFAULT, Completed
from oncekey.engine.event_bus import Subscriber
from oncekey.engine.keys.key_status import KeyStatus
from oncekey.engine.results import Result

T = TypeVar("T")

BODY_THREADS = 128  # more than the bodies that any test has waiting at once
RESULT_TIMEOUT_SECONDS = 120.0
YIELDS_MAX = 1_000_000


async def yield_until(condition: Callable[[], bool]) -> None:
    """Yields to the event loop until the condition holds; another task makes it true."""
    for _ in range(YIELDS_MAX):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never held")


class LoopThread:
    """An event loop in a separate thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(ThreadPoolExecutor(BODY_THREADS))
        self._thread = threading.Thread(target=self._main, name="test-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(RESULT_TIMEOUT_SECONDS)

    def close(self) -> None:
        """Stops the loop and cancels what still runs on it, as asyncio.run does."""
        self.run(self._cancel_all())
        self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class SyncStore:
    """An async store with the methods of a sync one."""

    def __init__(self, store: AsyncStore, loop: LoopThread) -> None:
        self.inner = store
        self._loop = loop
        limits = StoreLimits.of(store)
        self.outcome_max = limits.outcome_max
        self.record_max = limits.record_max
        self.lease_min = limits.lease_min
        self.terms_max = limits.terms_max
        self.sweep_lag = limits.sweep_lag

    @property
    def guarantee(self) -> Guarantee:
        return self.inner.guarantee

    @property
    def lazy(self) -> bool:
        return self.inner.lazy

    @property
    def immediate(self) -> bool:
        return self.inner.immediate

    @property
    def max_in_flight(self) -> int:
        return self.inner.max_in_flight

    def apply(self, commands: Sequence[Command], /) -> list[Reply]:
        return self._loop.run(self.inner.apply(commands))

    def bind(self, check: bytes, /) -> Seen:
        return self._loop.run(self.inner.bind(check))

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT, /) -> int:
        return self._loop.run(self.inner.sweep(limit))

    def elect(self, token: bytes, lease: int, /) -> bool:
        return self._loop.run(self.inner.elect(token, lease))

    def unfinished(self, after: int, limit: int, /) -> Unfinished:
        return self._loop.run(self.inner.unfinished(after, limit))

    def search(self, query: Query, limit: int, after: Cursor, /) -> Page:
        return self._loop.run(self.inner.search(query, limit, after))

    def history(self, id: bytes, /) -> list[Record]:
        return self._loop.run(self.inner.history(id))

    def measure(self) -> Measures:
        return self._loop.run(self.inner.measure())

    def join(self, connection: Any, /) -> CallerTransaction:
        raise ConfigurationError("a sync facade takes part in no transaction")

    def close(self) -> None:
        self._loop.run(self.inner.close())


class SyncAttempt:
    """An async attempt with the methods of a sync one, for a body in a worker thread."""

    def __init__(self, attempt: AsyncAttempt, loop: LoopThread) -> None:
        self._attempt = attempt
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._attempt, name)

    def step(self, name: str, fn: Callable[..., T], **options: Any) -> T:
        value: T = self._loop.run(
            self._attempt.step(name, _threaded(fn), **_with_threaded_probe(options))
        )
        return value

    def parallel(self) -> SyncParallel:
        return SyncParallel(self._attempt.parallel(), self._loop)

    def renew(self) -> None:
        self._loop.run(self._attempt.renew())


class SyncParallel:
    """Parallel steps of an async attempt, for a sync body in a worker thread."""

    def __init__(self, steps: AsyncParallel, loop: LoopThread) -> None:
        self._steps = steps
        self._loop = loop

    def step(self, name: str, fn: Callable[..., T], **options: Any) -> asyncio.Task[T]:
        async def start() -> asyncio.Task[T]:
            return self._steps.step(name, _threaded(fn), **_with_threaded_probe(options))

        return self._loop.run(start())

    def __enter__(self) -> SyncParallel:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._loop.run(self._steps.__aexit__(kind, error, trace))


def _threaded(fn: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
    def in_thread(*args: Any) -> Coroutine[Any, Any, T]:
        return asyncio.to_thread(fn, *args)

    return in_thread


def _with_threaded_probe(options: dict[str, Any]) -> dict[str, Any]:
    """A step's options, with the probe wrapped to run in a thread like the step's function."""
    if options.get("probe") is not None:
        options = {**options, "probe": _threaded(options["probe"])}
    return options


class SyncOperation:
    """A registered async operation whose function is a sync one."""

    def __init__(self, operation: Any, loop: LoopThread) -> None:
        self._operation = operation
        self._loop = loop

    def run(self, key: Any, request: Any = None, *, scope: str = "") -> Result[Any]:
        result: Result[Any] = self._loop.run(self._operation.run(key, request, scope=scope))
        return result


class SyncOnce:
    """An AsyncOnce with the methods of Once: it takes sync bodies and returns results."""

    def __init__(self, once: AsyncOnce, loop: LoopThread) -> None:
        self.inner = once
        self._loop = loop

    @property
    def guarantee(self) -> Guarantee:
        return self.inner.guarantee

    def run(
        self, operation: str, key: Any, body: Callable[[Any], Any], **options: Any
    ) -> Result[Any]:
        async def in_thread(attempt: AsyncAttempt) -> Any:
            return await asyncio.to_thread(body, SyncAttempt(attempt, self._loop))

        return self._loop.run(self.inner.run(operation, key, in_thread, **options))

    def guard(self, operation: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        guard: Any = self.inner.guard(operation, **options)

        def decorate(fn: Callable[..., Any]) -> Any:
            @functools.wraps(fn)
            async def in_thread(*args: Any, **kwargs: Any) -> Any:
                if "attempt" in kwargs:
                    kwargs["attempt"] = SyncAttempt(kwargs["attempt"], self._loop)
                return await asyncio.to_thread(fn, *args, **kwargs)

            guarded = guard(in_thread)

            @functools.wraps(fn)
            def blocking(*args: Any, **kwargs: Any) -> Any:
                return self._loop.run(guarded(*args, **kwargs))

            return blocking

        return decorate

    def operation(self, operation: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        def decorate(fn: Callable[..., Any]) -> SyncOperation:
            async def in_thread(attempt: AsyncAttempt, request: Any) -> Any:
                return await asyncio.to_thread(fn, SyncAttempt(attempt, self._loop), request)

            return SyncOperation(self.inner.operation(operation, **options)(in_thread), self._loop)

        return decorate

    def recover_with(self, operation: str, recover: Callable[..., Any], **options: Any) -> None:
        self.inner.recover_with(operation, recover, **options)

    def complete(self, limit: int = COMPLETE_LIMIT_DEFAULT, **options: Any) -> Completed:
        return self._loop.run(self.inner.complete(limit, **options))

    def get(self, operation: str, key: Any, **options: Any) -> KeyStatus | None:
        return self._loop.run(self.inner.get(operation, key, **options))

    def administer(self, method: str, *args: Any, **options: Any) -> Any:
        """Call one of the operators' methods: list, find, past, resolve, release, stats."""
        return self._loop.run(getattr(self.inner, method)(*args, **options))

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        return self.inner.subscribe(subscriber)

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT) -> int:
        return self._loop.run(self.inner.sweep(limit))

    def close(self) -> None:
        self._loop.run(self.inner.close())


def is_async(store: Store | AsyncStore) -> bool:
    return inspect.iscoroutinefunction(store.apply)
