"""`AsyncOnce`: the public face of the asyncio engine. The same names as `Once`, awaited.

Owns the store's life time and the draining of running attempts. All rules are below it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import weakref
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from oncekey.core.contract import SWEEP_LIMIT_DEFAULT, AsyncStore
from oncekey.core.duration import Duration, microseconds
from oncekey.core.identity import KeyLike
from oncekey.core.levels import Guarantee
from oncekey.core.policy import Policy
from oncekey.engine.aio.attempt import AsyncAttempt
from oncekey.engine.aio.runner import AsyncBody, AsyncRunner
from oncekey.engine.aio.sweeper import AsyncSweeper
from oncekey.engine.clock import Clock
from oncekey.engine.guarding import Picker, call, guarded
from oncekey.engine.kernel import Kernel, Subscriber
from oncekey.engine.results import Result
from oncekey.engine.setup import make_kernel
from oncekey.engine.status import KeyStatus, status_of
from oncekey.engine.sweeping import sweep_plan
from oncekey.engine.urls import async_store

T = TypeVar("T")

DRAIN_DEFAULT = "30s"


class AsyncOperations:
    """What can be done with keys, on the store itself or inside a caller's transaction."""

    def __init__(self, kernel: Kernel, runner: AsyncRunner) -> None:
        self._kernel = kernel
        self._runner = runner
        self._is_ready = True

    @property
    def policy(self) -> Policy:
        """What holds for every operation that says nothing else."""
        return self._kernel.policy

    async def _get_ready(self) -> None:
        """What must have happened before the first use. Where it fails, the next use tries
        again; tasks that come first at once may all do it."""

    async def _ready(self) -> None:
        if not self._is_ready:
            await self._get_ready()

    async def run(
        self,
        operation: str,
        key: KeyLike,
        body: AsyncBody[T],
        *,
        scope: str = "",
        request: Any = None,
        codec: Any = None,
        **options: Any,
    ) -> Result[T]:
        """Run `body(attempt)` at most once for this key, or replay what it answered.

        Cancelling the caller does not cancel a body that has begun: it goes on, and its outcome
        is stored for the next retry.
        """
        known = self._kernel.replay(operation, key, scope, request, codec)
        if known is not None:
            return known
        if not self._is_ready:
            await self._get_ready()
        job = self._kernel.job(operation, key, scope, request, codec, options)
        return await self._runner.run(job, body)

    def guard(
        self,
        operation: str,
        *,
        key: Picker,
        scope: str | Picker = "",
        request: Picker | None = None,
        codec: Any = None,
        **options: Any,
    ) -> Callable[[Callable[..., Awaitable[T]]], Callable[..., Awaitable[T]]]:
        """Decorate an async function to run at most once per key; see `Once.guard`."""
        self._kernel.check_guard(operation, codec, options)

        def decorate(fn: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
            how = guarded(fn, operation, key=key, scope=scope, request=request, is_async=True)

            @functools.wraps(fn)
            async def once_only(*args: Any, **kwargs: Any) -> T:
                key_, scope_, request_ = how.pick(args, kwargs)

                def body(attempt: AsyncAttempt) -> Awaitable[T]:
                    given = {**kwargs, "attempt": attempt} if how.wants_attempt else kwargs
                    work: Awaitable[T] = call(fn, args, given)
                    return work

                result = await self.run(
                    operation,
                    key_,
                    body,
                    scope=scope_,
                    request=request_,
                    codec=codec,
                    **options,
                )
                return result.value

            return once_only

        return decorate

    async def get(
        self, operation: str, key: KeyLike, *, scope: str = "", codec: Any = None
    ) -> KeyStatus | None:
        """Where a key stands, without running or changing anything."""
        await self._ready()
        id, reader = self._kernel.locate(operation, key, scope, codec)
        return status_of(await self._runner.look(id), reader)


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
        clock: Clock | None = None,
    ) -> None:
        plan = sweep_plan(sweep_every, sweep_limit)
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
            lanes=self._store.lanes,
        )
        super().__init__(kernel, runner)
        self._is_ready = False
        self._sweeper: AsyncSweeper | None = None
        if plan is not None:
            self._sweeper = AsyncSweeper(self._store, plan, kernel.clock, self._not_ready)
        _alive.add(self)

    async def _get_ready(self) -> None:
        await self._store.bind(self._kernel.identities.check_value())
        self._kernel.adopt(self._store.guarantee)
        if self._sweeper is not None:
            self._sweeper.start()
        self._is_ready = True

    def _not_ready(self) -> None:
        """The sweeper ended with its loop: the next use starts it again."""
        self._is_ready = False

    @property
    def guarantee(self) -> Guarantee:
        """What the store can promise; an operation's `require=` is held against it."""
        return self._store.guarantee

    def in_transaction(self, connection: Any) -> AsyncOperations:
        """The same operations inside your own transaction on the same database.

        Claim, your rows and the outcome commit together, or none of them does.
        """
        kernel = self._kernel.for_transaction()
        enlisted = self._store.enlist(connection)
        real = getattr(enlisted, "connection", connection)
        runner = AsyncRunner(
            kernel, enlisted.apply, coalesce=False, enlisted=enlisted, connection=real
        )
        return _InTransaction(kernel, runner, self)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Give every decision to `subscriber` as a Notice; the returned function ends that."""
        return self._kernel.subscribe(subscriber)

    async def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT) -> int:
        """Remove at most `limit` records nothing needs any more; how many were removed."""
        await self._ready()
        return await self._store.sweep(limit)

    async def drain(self, seconds: float) -> None:
        """Let the attempts running on this loop end, also those whose callers are gone; after
        `seconds` cancel what is left."""
        await self._runner.drain(seconds)

    async def close(self, *, drain: Duration = DRAIN_DEFAULT) -> None:
        """Let the attempts running on this loop end (for `drain` at most), close the store."""
        seconds = microseconds(drain, name="drain") / 1_000_000
        # Also when the caller is being cancelled: results of healthy attempts come first.
        closing = asyncio.ensure_future(self._close(seconds))
        await asyncio.shield(closing)

    async def _close(self, seconds: float) -> None:
        if self._sweeper is not None:
            await self._sweeper.stop()
        await self._runner.drain(seconds)
        await self._store.close()

    async def __aenter__(self) -> Self:
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
    """A lazy store must have been reached before anything is claimed in its name.

    Others are left alone: what `bind` writes may wait for the caller's own transaction.
    """

    def __init__(self, kernel: Kernel, runner: AsyncRunner, once: AsyncOnce) -> None:
        super().__init__(kernel, runner)
        self._once = once
        self._is_ready = once._is_ready or not once._store.lazy

    async def _get_ready(self) -> None:
        await self._once._ready()
        self._kernel.adopt(self._once.guarantee)
        self._is_ready = True


_alive: weakref.WeakSet[AsyncOnce] = weakref.WeakSet()


def _after_fork() -> None:
    for once in list(_alive):
        once._runner.reset()
        if once._sweeper is not None:
            once._sweeper.reset()
            once._is_ready = False  # the first use starts it here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
