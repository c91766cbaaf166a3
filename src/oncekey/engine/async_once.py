"""`AsyncOnce`: the public class of the asyncio engine, with the same names as `Once`, awaited."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from oncekey.core.abandoned import TRIES_DEFAULT
from oncekey.core.duration import Duration, microseconds
from oncekey.core.errors import StoreUnavailable
from oncekey.core.identity import KeyLike
from oncekey.core.move_marks import check_alone
from oncekey.core.origin import Origin
from oncekey.core.policy import Policy, PolicyOptions
from oncekey.core.store import SWEEP_LIMIT_DEFAULT, AsyncStore, StoreLimits
from oncekey.engine.attempts.async_attempt import AsyncAttempt
from oncekey.engine.attempts.async_body import AsyncBody
from oncekey.engine.attempts.async_runner import AsyncRunner
from oncekey.engine.attempts.attempt_outcomes import Outcomes
from oncekey.engine.background.completer import AsyncCompleter
from oncekey.engine.background.completion_flow import COMPLETE_LIMIT_DEFAULT, Completed, Completion
from oncekey.engine.background.periodic_task import AsyncPeriodicTask, check_limit
from oncekey.engine.background.sweeper import AsyncSweeper
from oncekey.engine.body_check import LAMBDA, check_body
from oncekey.engine.clock import Clock
from oncekey.engine.event_loop import drain, running_loop
from oncekey.engine.guard import Picker, guarded
from oncekey.engine.jobs import JobFactory
from oncekey.engine.keys.administration import sweep_store
from oncekey.engine.keys.key_admin import AsyncKeyAdmin
from oncekey.engine.keys.key_status import KeyStatus, status_of
from oncekey.engine.once_base import (
    InTransactionBase,
    OperationsBase,
    check_background,
    guarantee_reader,
    make_parts,
)
from oncekey.engine.registry import Operation, Registered
from oncekey.engine.results import Result
from oncekey.engine.store_urls import async_store

if TYPE_CHECKING:
    from oncekey.engine.signatures import AsyncGuard

T = TypeVar("T")

DRAIN_DEFAULT = "30s"


class AsyncOperations(OperationsBase):
    """What can be done with keys: `run`, `guard` and `get`, on the store itself or inside a
    caller's transaction."""

    _runner: AsyncRunner

    async def _get_ready(self) -> None:
        """Do what must be done before the first use. If it fails, the next use tries again; several
        tasks may do it at once."""

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
        origin: Origin | None = None,
        **options: Unpack[PolicyOptions],
    ) -> Result[T]:
        """Run `body(attempt)` at most once for this key, or replay its stored result.

        Cancelling the caller does not cancel a body that has begun: it goes on, and its outcome
        is stored for the next retry. For the options see `Once.run`.
        """
        if codec is None and getattr(body, "__name__", "") != LAMBDA:
            codec = self._jobs.body_codec(body, operation)
        known = self._outcomes.replay(operation, key, scope, request, codec, origin)
        if known is not None:
            return known
        check_body(body, operation, is_async=True)
        if not self._is_ready:
            await self._get_ready()
        job = self._jobs.make(operation, key, scope, request, codec, options, origin)
        return await self._runner.run(job, body)

    def guard(
        self,
        operation: str,
        *,
        key: Picker,
        scope: str | Picker = "",
        request: Picker | None = None,
        codec: Any = None,
        **options: Unpack[PolicyOptions],
    ) -> AsyncGuard:
        """Decorate an async function to run at most once per key; see `Once.guard`."""
        self._jobs.check_options(operation, codec, options)

        def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
            function = guarded(
                fn,
                operation,
                key=key,
                scope=scope,
                request=request,
                codec=codec,
                codec_of=self._jobs.codec_of,
                options=options,
                is_async=True,
            )

            @functools.wraps(fn)
            async def once_only(*args: Any, **kwargs: Any) -> Any:
                return (await function.run(self.run, args, kwargs)).value

            return once_only

        return decorate

    async def get(
        self, operation: str, key: KeyLike, *, scope: str = "", codec: Any = None
    ) -> KeyStatus | None:
        """The status of a key, without running or changing anything."""
        await self._ready()
        id, reader = self._jobs.locate(operation, key, scope, codec)
        return status_of(await self._runner.look(id), reader)


def _apply_at_once(store: AsyncStore) -> Any:
    """The store's `apply_at_once`, if its own class has one: that of a store inside of it, which a
    wrapper hands through, would go around the wrapper."""
    has_one = store.immediate and hasattr(type(store), "apply_at_once")
    return store.apply_at_once if has_one else None  # type: ignore[attr-defined]


class AsyncOnce(AsyncKeyAdmin, AsyncOperations):
    """Makes operations with side effects safe to retry, from asyncio. Options as for `Once`.

    The store is opened, and its sweeper started, on first use or by `async with`, which a server
    that is away does not keep from going on: the first call tells that. Several event loops may
    share one.
    """

    _is_async = True
    _runner: AsyncRunner
    _completer: AsyncCompleter

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
        background = check_background(sweep_every, sweep_limit, complete_every, complete_limit)
        self._store: AsyncStore = async_store(store)
        parts = make_parts(
            guarantee_reader(self._store),
            policy=policy,
            secret=secret,
            codec=codec,
            cache=cache,
            raw_keys=raw_keys,
            clock=clock,
            limits=StoreLimits.of(self._store),
        )
        super().__init__(parts, store, opened=False)
        self._is_ready = False
        self._runner = AsyncRunner(
            *parts,
            self._store.apply,
            apply_at_once=_apply_at_once(self._store),
            coalesce=not self._store.immediate,
            max_in_flight=self._store.max_in_flight,
        )
        self._completer = AsyncCompleter(self._store, self._runner, self._registry)
        self._complete_limit = background.complete_limit
        self._background: list[AsyncPeriodicTask] = []
        clock_, life = parts.jobs.clock, (self._ready, self._set_not_ready)
        if background.sweep is not None:
            sweeper = AsyncSweeper(self._store, background.sweep, clock_, *life)
            self._background.append(sweeper)
        if (every := background.complete_every) is not None:
            task = AsyncPeriodicTask("completer", every, self._complete, clock_, *life)
            self._background.append(task)
        self._track()

    def _running_parts(self) -> list[Any]:
        self._runner.engine = weakref.ref(self)
        return [*self._background]

    async def _get_ready(self) -> None:
        running_loop()
        if not self._closed:
            check_alone(await self._store.bind(self._jobs.identities.check_value()))
        self._set_ready()

    def _set_not_ready(self) -> None:
        """The background tasks ended with their loop: the next use starts them again."""
        self._is_ready = False

    def in_transaction(self, connection: Any) -> AsyncOperations:
        """The same operations inside your own transaction on the same database.

        Claim, your rows and the outcome commit together, or none of them does.
        """
        parts, transaction, connection = self._join(connection)
        runner = AsyncRunner(
            *parts,
            transaction.apply,
            coalesce=False,
            transaction=transaction,
            connection=connection,
        )
        return _InTransaction(*parts, runner, self)

    async def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT) -> int:
        """Remove at most `limit` records that nothing needs any more; how many were removed."""
        return await self._plan(sweep_store(limit))

    def operation(
        self,
        operation: str,
        *,
        codec: Any = None,
        tries: int = TRIES_DEFAULT,
        **options: Unpack[PolicyOptions],
    ) -> Callable[[Callable[[AsyncAttempt, Any], Awaitable[T]]], Operation[Awaitable[Result[T]]]]:
        """Register an async function `fn(attempt, request)` as an operation that can be finished
        without its caller; see `Once.operation`."""

        def decorate(
            fn: Callable[[AsyncAttempt, Any], Awaitable[T]],
        ) -> Operation[Awaitable[Result[T]]]:
            made = self._register(fn, operation, codec, tries, options)
            return Operation(fn, made, self._run_registered)

        return decorate

    async def _run_registered(
        self, registered: Registered, key: KeyLike, request: Any, scope: str
    ) -> Result[Any]:
        name, codec = registered.operation, registered.codec
        known = self._outcomes.replay(name, key, scope, request, codec)
        if known is not None:
            return known
        await self._ready()
        job, body = self._registered_job(registered, key, scope, request)
        return await self._runner.run(job, body)

    async def complete(
        self,
        limit: int = COMPLETE_LIMIT_DEFAULT,
        *,
        on_completion: Callable[[Completion], object] = lambda done: None,
    ) -> Completed:
        """Finish abandoned runs of the registered operations that are due, at most `limit`;
        `on_completion` is called with each one. Safe from many processes at once."""
        check_limit("limit", limit, "operations")
        await self._ready()
        return await self._completer.complete(limit, on_completion)

    async def _complete(self) -> None:
        await self._completer.complete(self._complete_limit)

    async def drain(self, seconds: float) -> None:
        """Let the attempts that run on this loop end, also those whose callers are gone; after
        `seconds` cancel those that are left."""
        await drain(self._runner.loop_state(), seconds)

    async def close(self, *, drain: Duration = DRAIN_DEFAULT) -> None:
        """Let the running attempts end, on every loop and for `drain` at most, then close the
        store. Every call after it raises, until `reopen`."""
        running_loop()
        seconds = microseconds(drain, name="drain") / 1_000_000
        # Shielded from a cancellation of the caller: results of healthy attempts come first.
        closing = asyncio.ensure_future(self._close(seconds))
        await asyncio.shield(closing)

    async def _close(self, seconds: float) -> None:
        self._completer.stop()
        for background in self._background:
            await background.stop()
        # A running attempt may run others, so nothing is refused before all have ended.
        await self._runner.drain_all(seconds)
        self._set_closed()
        await self._runner.drain_all(seconds)  # those that came in between
        if self._closed:
            await self._store.close()
            self._finalizer.detach()

    async def __aenter__(self) -> Self:
        """Open the engine, and reach the store if it answers; see `Once.__enter__`."""
        self.reopen()
        try:
            await self._ready()
        except StoreUnavailable as error:
            self._enter_without(error)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class _InTransaction(InTransactionBase, AsyncOperations):
    def __init__(
        self, jobs: JobFactory, outcomes: Outcomes, runner: AsyncRunner, once: AsyncOnce
    ) -> None:
        super().__init__(jobs, outcomes, once)
        self._runner = runner
        self._engine = once

    async def _get_ready(self) -> None:
        try:
            await self._engine._ready()
        except StoreUnavailable as error:
            if self._engine._store.lazy or error.final:
                raise
            # Only what a new file needs is written, and that may wait for the caller's own lock.
            raise StoreUnavailable(
                f"{error}. A new file is set up before its first use: have that done before your "
                "transaction writes, by `async with once:` when the app starts",
                ambiguous=False,
            ) from error
        self._adopt()
