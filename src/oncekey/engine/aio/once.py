"""`AsyncOnce`: the public face of the asyncio engine. The same names as `Once`, awaited.

Owns the store's life time and the draining of running attempts. All rules are below it.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from oncekey.core.abandoned import TRIES_DEFAULT
from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import StoreUnavailable
from oncekey.core.events import Event
from oncekey.core.guarantees import Guarantee
from oncekey.core.identity import KeyLike
from oncekey.core.policy import Policy, PolicyOptions
from oncekey.core.store import SWEEP_LIMIT_DEFAULT, AsyncStore
from oncekey.engine.aio.attempt import AsyncAttempt
from oncekey.engine.aio.completer import AsyncCompleter
from oncekey.engine.aio.operations import AsyncOperations
from oncekey.engine.aio.periodic import AsyncPeriodicTask
from oncekey.engine.aio.runner import AsyncRunner
from oncekey.engine.aio.sweeper import AsyncSweeper
from oncekey.engine.clock import Clock
from oncekey.engine.completer_base import (
    COMPLETE_LIMIT_DEFAULT,
    Completed,
    Completing,
    Completion,
    Registered,
    as_kept,
)
from oncekey.engine.guard import check_operation
from oncekey.engine.jobs import Kernel, Subscriber
from oncekey.engine.lifetime import Holdings, free_when_dropped, reopen_store, was_closed
from oncekey.engine.once_base import make_kernel
from oncekey.engine.periodic_base import at_least_one, period
from oncekey.engine.registered_operation import Operation
from oncekey.engine.results import Result
from oncekey.engine.store_urls import async_store
from oncekey.engine.sweeper_base import sweep_plan

T = TypeVar("T")

DRAIN_DEFAULT = "30s"


class AsyncOnce(AsyncOperations):
    """Makes operations with side effects safe to retry, from asyncio. Options as for `Once`.

    The store is opened, and its sweeper started, on first use or by `async with`. Several event
    loops may share one.
    """

    def __init__(
        self,
        store: AsyncStore | str,
        *,
        policy: Policy | None = None,
        secret: bytes | str | None = None,
        codec: Any = None,
        cache: int | None = None,
        raw_keys: bool = False,
        sweep_every: Duration | None = None,
        sweep_limit: int = SWEEP_LIMIT_DEFAULT,
        complete_every: Duration | None = None,
        complete_limit: int = COMPLETE_LIMIT_DEFAULT,
        clock: Clock | None = None,
    ) -> None:
        plan = sweep_plan(sweep_every, sweep_limit)
        at_least_one("complete_limit", complete_limit, "operations")
        complete_period = period("complete_every", complete_every)
        self._store = async_store(store)
        kernel = make_kernel(
            self._store.guarantee,
            policy=policy,
            secret=secret,
            codec=codec,
            cache=cache,
            raw_keys=raw_keys,
            clock=clock,
        )
        runner = AsyncRunner(
            kernel,
            self._store.apply,
            coalesce=not self._store.immediate,
            max_in_flight=self._store.max_in_flight,
        )
        super().__init__(kernel, runner)
        store_ = self._store
        kernel.promise = lambda: store_.guarantee
        self._is_ready = False
        self._closed = False
        self._holdings = Holdings(self._store if isinstance(store, str) else None, opened=False)
        self._completing = Completing(kernel)
        self._completer = AsyncCompleter(self._store, runner, self._completing, kernel.clock)
        self._complete_limit = complete_limit
        self._sweeper = (
            AsyncSweeper(self._store, plan, kernel.clock, self._not_ready) if plan else None
        )
        self._background: list[AsyncPeriodicTask] = [self._sweeper] if self._sweeper else []
        if complete_period is not None:
            self._background.append(
                AsyncPeriodicTask(
                    "completer", complete_period, self._complete, kernel.clock, self._not_ready
                )
            )
        self._watch()
        _alive.add(self)

    def _watch(self) -> None:
        self._runner.engine = weakref.ref(self)
        self._holdings.running = [*self._background]
        self._if_dropped = free_when_dropped(self, self._holdings)

    async def _get_ready(self) -> None:
        if not self._closed:
            await self._store.bind(self._kernel.identities.check_value())
        if self._closed:  # perhaps meanwhile
            raise was_closed(self)
        self._kernel.adopt(self._store.guarantee)
        self._holdings.opened = True
        for background in self._background:
            background.start()
        self._is_ready = True

    def _not_ready(self) -> None:
        """What runs in the background ended with its loop: the next use starts it again."""
        self._is_ready = False

    @property
    def guarantee(self) -> Guarantee:
        """What the store can promise; an operation's `require=` is held against it."""
        return self._store.guarantee

    def in_transaction(self, connection: Any) -> AsyncOperations:
        """The same operations inside your own transaction on the same database.

        Claim, your rows and the outcome commit together, or none of them does.
        """
        if self._closed:
            raise was_closed(self)
        kernel = self._kernel.for_transaction()
        enlisted = self._store.join(connection)
        real = getattr(enlisted, "connection", connection)
        runner = AsyncRunner(
            kernel, enlisted.apply, coalesce=False, enlisted=enlisted, connection=real
        )
        return _InTransaction(kernel, runner, self)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Give every decision to `subscriber` as an `Event`; the returned function ends that."""
        return self._kernel.subscribe(subscriber)

    def notify(self, notice: Event) -> None:
        """Give the subscribers a notice of an adapter's own."""
        self._kernel.notify(notice)

    async def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT) -> int:
        """Remove at most `limit` records nothing needs any more; how many were removed."""
        await self._ready()
        return await self._store.sweep(limit)

    def operation(
        self,
        operation: str,
        *,
        codec: Any = None,
        tries: int = TRIES_DEFAULT,
        **options: Unpack[PolicyOptions],
    ) -> Callable[[Callable[[AsyncAttempt, Any], Awaitable[T]]], Operation[Awaitable[Result[T]]]]:
        """Register an async function `fn(attempt, request)` as an operation that can be
        finished without its caller; `.run(key, request)` of what this makes runs it.

        Its request, plain values, is kept with its key before it begins. `complete()`, or
        `complete_every=`, then drives what was left behind to an end: it asks `recover=` about
        unknown keys, and runs retry-safe ones again, `tries` times at most.
        """

        def decorate(
            fn: Callable[[AsyncAttempt, Any], Awaitable[T]],
        ) -> Operation[Awaitable[Result[T]]]:
            check_operation(fn, operation, is_async=True)
            made = self._completing.register(
                operation, fn, codec=codec, tries=tries, options=options
            )
            return Operation(fn, made, self._run_registered)

        return decorate

    @property
    def operations(self) -> tuple[str, ...]:
        """The names of the registered operations."""
        return tuple(self._completing.registered)

    def recover_with(
        self,
        operation: str,
        recover: Callable[..., Any],
        *,
        codec: Any = None,
        tries: int = TRIES_DEFAULT,
    ) -> None:
        """Let `complete()` ask `recover` about unknown keys of an operation that is run elsewhere
        or otherwise, such as "http"."""
        options = {"recover": recover}
        self._completing.register(operation, None, codec=codec, tries=tries, options=options)

    async def _run_registered(
        self, registered: Registered, key: KeyLike, request: Any, scope: str
    ) -> Result[Any]:
        known = self._kernel.replay(registered.operation, key, scope, request, registered.codec)
        if known is not None:
            return known
        await self._ready()
        given = as_kept(request)
        job = self._completing.job(registered, key, scope, given)
        body = registered.body
        assert body is not None
        return await self._runner.run(job, lambda attempt: body(attempt, given))

    async def complete(
        self,
        limit: int = COMPLETE_LIMIT_DEFAULT,
        *,
        tell: Callable[[Completion], object] = lambda done: None,
    ) -> Completed:
        """Finish what is due of the registered operations that were left behind, at most `limit`;
        `tell` hears of each as it is done. Safe from many processes at once."""
        at_least_one("limit", limit, "operations")
        await self._ready()
        return await self._completer.round(limit, tell)

    async def _complete(self) -> None:
        await self._completer.round(self._complete_limit)

    async def drain(self, seconds: float) -> None:
        """Let the attempts running on this loop end, also those whose callers are gone; after
        `seconds` cancel what is left."""
        await self._runner.drain(seconds)

    async def close(self, *, drain: Duration = DRAIN_DEFAULT) -> None:
        """Let the running attempts end, on every loop and for `drain` at most, then close the
        store. After it nothing answers, until `reopen`."""
        seconds = microseconds(drain, name="drain") / 1_000_000
        # Also when the caller is being cancelled: results of healthy attempts come first.
        closing = asyncio.ensure_future(self._close(seconds))
        await asyncio.shield(closing)

    async def _close(self, seconds: float) -> None:
        self._completer.stop()
        for background in self._background:
            await background.stop()
        # What runs may have others run, so nothing is refused before all have ended.
        await self._runner.drain_all(seconds)
        self._closed = True
        self._is_ready = False
        self._kernel.cache.close()
        await self._runner.drain_all(seconds)  # what came in between
        if self._closed:
            await self._store.close()
            self._if_dropped.detach()

    def reopen(self) -> None:
        """After `close`: have everything work again, from the next use on. Nothing where it is
        open. ConfigurationError where its store was given and cannot be opened again."""
        if not self._closed:
            return
        reopen_store(self._store)
        self._runner.reset()
        self._completer.reset()
        for background in self._background:
            background.restart()
        self._kernel.cache.reopen()
        self._closed = False
        self._watch()

    async def __aenter__(self) -> Self:
        self.reopen()
        await self._ready()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class _InTransaction(AsyncOperations):
    """The store must have been reached before anything is claimed in its name: a file may still
    be without its tables."""

    def __init__(self, kernel: Kernel, runner: AsyncRunner, once: AsyncOnce) -> None:
        super().__init__(kernel, runner)
        self._once = once
        self._is_adopted = once._is_ready

    async def _get_ready(self) -> None:
        try:
            await self._once._ready()
        except StoreUnavailable as error:
            if self._once._store.lazy or error.final:
                raise
            # Only what a new file needs is written, and that may wait for the caller's own lock.
            raise StoreUnavailable(
                f"{error}. A new file is set up before its first use: have that done before your "
                "transaction writes, by `async with once:` when the app starts",
                ambiguous=False,
            ) from error
        self._kernel.adopt(self._once.guarantee)
        self._is_adopted = True

    @property
    def _is_ready(self) -> bool:
        return self._is_adopted and not self._once._closed

    @_is_ready.setter
    def _is_ready(self, is_ready: bool) -> None:
        self._is_adopted = is_ready


_alive: weakref.WeakSet[AsyncOnce] = weakref.WeakSet()


def _after_fork() -> None:
    for once in list(_alive):
        once._runner.reset()
        once._completer.reset()
        for background in once._background:
            background.reset()
            once._is_ready = False  # the first use starts it here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
