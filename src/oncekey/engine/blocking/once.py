"""`Once`: the public face of the blocking engine.

Owns the store's and the threads' life time, also across fork. All rules are below it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from oncekey.core.abandoned import TRIES_DEFAULT
from oncekey.core.duration import Duration
from oncekey.core.events import Event
from oncekey.core.guarantees import Guarantee
from oncekey.core.identity import KeyLike
from oncekey.core.policy import Policy, PolicyOptions
from oncekey.core.store import SWEEP_LIMIT_DEFAULT, Store
from oncekey.engine.blocking.attempt import Attempt
from oncekey.engine.blocking.completer import Completer
from oncekey.engine.blocking.operations import Operations
from oncekey.engine.blocking.periodic import PeriodicTask
from oncekey.engine.blocking.runner import Runner
from oncekey.engine.blocking.sweeper import Sweeper
from oncekey.engine.clock import Clock
from oncekey.engine.completer_base import (
    COMPLETE_LIMIT_DEFAULT,
    Completed,
    Completing,
    Completion,
    Registered,
    as_kept,
)
from oncekey.engine.guard import check_operation, check_recover
from oncekey.engine.jobs import Kernel, Subscriber
from oncekey.engine.lifetime import Holdings, free_when_dropped, reopen_store, was_closed
from oncekey.engine.once_base import make_kernel
from oncekey.engine.periodic_base import at_least_one, period
from oncekey.engine.registered_operation import Operation
from oncekey.engine.results import Result
from oncekey.engine.store_urls import blocking_store
from oncekey.engine.sweeper_base import sweep_plan

T = TypeVar("T")


class Once(Operations):
    """Makes operations with side effects safe to retry, from threads.

        once = Once("sqlite:///payments.db", policy=Policy(lease="30s", keep="24h"))
        result = once.run("charge", key, lambda attempt: gateway.charge(order), request=payload)

    store         a URL (memory://, sqlite:///file, postgresql://...) or a Store object
    policy        defaults for every operation
    secret        keys the digests in the store; must stay the same for the store's life
    codec         how results become bytes; JSON unless said otherwise
    cache         how many finished outcomes to keep in this process; 0 for none
    raw_keys      also store the callers' keys as given, for operators to read
    sweep_every   remove garbage in the background, this often; of all engines on a store that
                  are told to, one at a time does it
    sweep_limit   how many records it removes at a time
    complete_every  finish in the background what was left behind of the registered operations,
                  this often (see `operation`); complete_limit is how many at a time
    """

    def __init__(
        self,
        store: Store | str,
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
        self._store = blocking_store(store)
        try:
            kernel = make_kernel(
                self._store.guarantee,
                policy=policy,
                secret=secret,
                codec=codec,
                cache=cache,
                raw_keys=raw_keys,
                clock=clock,
            )
            if not self._store.lazy:
                self._store.bind(kernel.identities.check_value())
        except BaseException:
            if isinstance(store, str):
                self._store.close()
            raise
        runner = Runner(
            kernel,
            self._store.apply,
            coalesce=not self._store.immediate,
            max_in_flight=self._store.max_in_flight,
        )
        super().__init__(kernel, runner)
        kernel.promise = partial(getattr, self._store, "guarantee")
        self._is_ready = not self._store.lazy
        self._closed = False
        opened = self._store if isinstance(store, str) else None  # nobody else can close it
        self._holdings = Holdings(opened, opened=not self._store.lazy)
        self._completing = Completing(kernel)
        self._completer = Completer(self._store, runner, self._completing, kernel.clock)
        self._complete_limit = complete_limit
        self._sweeper = Sweeper(self._store, plan, kernel.clock, self._ready) if plan else None
        self._background: list[PeriodicTask] = [self._sweeper] if self._sweeper else []
        if complete_period is not None:
            work = (self._complete, kernel.clock, self._ready)
            self._background.append(PeriodicTask("completer", complete_period, *work))
        self._start_background()
        self._watch()
        _alive.add(self)

    def _watch(self) -> None:
        self._holdings.running = [*self._runner.parts, *self._background]
        self._if_dropped = free_when_dropped(self, self._holdings)

    def _get_ready(self) -> None:
        if not self._closed:
            self._store.bind(self._kernel.identities.check_value())
        if self._closed:  # perhaps meanwhile
            raise was_closed(self)
        self._kernel.adopt(self._store.guarantee)
        self._holdings.opened = True
        self._start_background()  # again, in a forked child
        self._is_ready = True

    def _start_background(self) -> None:
        for background in self._background:
            background.start()

    @property
    def guarantee(self) -> Guarantee:
        """What the store can promise; an operation's `require=` is held against it."""
        return self._store.guarantee

    def in_transaction(self, connection: Any) -> Operations:
        """The same operations inside your own transaction on the same database.

        Claim, your rows and the outcome commit together, or none of them does.
        """
        if self._closed:
            raise was_closed(self)
        kernel = self._kernel.for_transaction()
        enlisted = self._store.join(connection)
        real = getattr(enlisted, "connection", connection)
        runner = Runner(kernel, enlisted.apply, coalesce=False, enlisted=enlisted, connection=real)
        return _InTransaction(kernel, runner, self)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Give every decision to `subscriber` as an `Event`; the returned function ends that."""
        return self._kernel.subscribe(subscriber)

    def notify(self, notice: Event) -> None:
        """Give the subscribers a notice of an adapter's own."""
        self._kernel.notify(notice)

    def sweep(self, limit: int = SWEEP_LIMIT_DEFAULT) -> int:
        """Remove at most `limit` records nothing needs any more; how many were removed."""
        self._ready()
        return self._store.sweep(limit)

    def operation(
        self,
        operation: str,
        *,
        codec: Any = None,
        tries: int = TRIES_DEFAULT,
        **options: Unpack[PolicyOptions],
    ) -> Callable[[Callable[[Attempt, Any], T]], Operation[Result[T]]]:
        """Register a function `fn(attempt, request)` as an operation that can be
        finished without its caller; `.run(key, request)` of what this makes runs it.

        Its request, plain values, is kept with its key before it begins. `complete()`, or
        `complete_every=`, then drives what was left behind to an end: it asks `recover=` about
        unknown keys, and runs retry-safe ones again, `tries` times at most.
        """

        def decorate(fn: Callable[[Attempt, Any], T]) -> Operation[Result[T]]:
            check_operation(fn, operation, is_async=False)
            check_recover(options.get("recover"), operation)
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
        check_recover(recover, operation)
        options = {"recover": recover}
        self._completing.register(operation, None, codec=codec, tries=tries, options=options)

    def _run_registered(
        self, registered: Registered, key: KeyLike, request: Any, scope: str
    ) -> Result[Any]:
        known = self._kernel.replay(registered.operation, key, scope, request, registered.codec)
        if known is not None:
            return known
        self._ready()
        given = as_kept(request)
        job = self._completing.job(registered, key, scope, given)
        body = registered.body
        assert body is not None
        return self._runner.run(job, lambda attempt: body(attempt, given))

    def complete(
        self,
        limit: int = COMPLETE_LIMIT_DEFAULT,
        *,
        tell: Callable[[Completion], object] = lambda done: None,
    ) -> Completed:
        """Finish what is due of the registered operations that were left behind, at most `limit`;
        `tell` hears of each as it is done. Safe from many processes at once."""
        at_least_one("limit", limit, "operations")
        self._ready()
        return self._completer.round(limit, tell)

    def _complete(self) -> None:
        self._completer.round(self._complete_limit)

    def close(self) -> None:
        """Stop the heartbeats and the sweeper, close the store. Finish your own work first; what a
        completer is running is waited for. After it nothing answers, until `reopen`."""
        self._completer.stop()
        for background in self._background:
            background.stop()
        self._close_up()
        self._runner.stop()
        self._store.close()
        self._if_dropped.detach()

    def _close_up(self) -> None:
        self._closed = True
        self._is_ready = False
        self._kernel.cache.close()

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

    def __enter__(self) -> Self:
        self.reopen()
        self._ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _InTransaction(Operations):
    """A lazy store must have been reached before anything is claimed in its name."""

    def __init__(self, kernel: Kernel, runner: Runner, once: Once) -> None:
        super().__init__(kernel, runner)
        self._once = once
        self._is_adopted = once._is_ready

    def _get_ready(self) -> None:
        self._once._ready()
        self._kernel.adopt(self._once.guarantee)
        self._is_adopted = True

    @property
    def _is_ready(self) -> bool:
        return self._is_adopted and not self._once._closed

    @_is_ready.setter
    def _is_ready(self, is_ready: bool) -> None:
        self._is_adopted = is_ready


_alive: weakref.WeakSet[Once] = weakref.WeakSet()


def _after_fork() -> None:
    """A child has none of its parent's threads, and locks some of them may have held."""
    for once in list(_alive):
        once._runner.reset()
        once._holdings.running = [*once._runner.parts, *once._background]
        once._completer.reset()
        for background in once._background:
            background.reset()
            once._is_ready = False  # the first use starts it here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
